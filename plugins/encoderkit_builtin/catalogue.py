"""What there is to choose: the built-in parts and their options. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, hookimpl, option
from encoderkit_builtin.catalogue_attentions import ATTENTIONS
from encoderkit_builtin.catalogue_ffns import FFNS
from encoderkit_builtin.catalogue_positions import POSITIONS
from encoderkit_builtin.catalogue_tasks import TASKS

API_VERSION = 1


@dataclass(slots=True, kw_only=True)
class LayerNormOptions(Options):
    """The options of `norm=layernorm`."""

    eps: float = option(1e-6, "added to the variance", above=0)
    bias: bool = option(True, "a learned shift beside the learned gain")


@dataclass(slots=True, kw_only=True)
class RMSNormOptions(Options):
    """The options of `norm=rmsnorm`."""

    eps: float = option(1e-6, "added to the mean square", above=0)
    offset: float = option(0.0, "added to the learned gain, which then starts at 1 - offset")


@dataclass(slots=True, kw_only=True)
class BatchNormOptions(Options):
    """The options of `norm=batchnorm`."""

    eps: float = option(1e-6, "added to the variance", above=0)
    momentum: float = option(0.1, "share of a batch in the running statistics", above=0, at_most=1)


@dataclass(slots=True, kw_only=True)
class ScaleNormOptions(Options):
    """The options of `norm=scalenorm`."""

    # 1e-3 is where rmsnorm's eps of 1e-6 stands; at 1e-5 float16 gradients of a zero row overflow.
    eps: float = option(1e-3, "the least length that a token is divided by", above=0)


@dataclass(slots=True, kw_only=True)
class DyTOptions(Options):
    """The options of `norm=dyt`."""

    alpha: float = option(0.5, "where the learned steepness of the tanh starts", above=0)


@dataclass(slots=True, kw_only=True)
class DerfOptions(Options):
    """The options of `norm=derf`."""

    alpha: float = option(0.5, "where the learned steepness of erf starts", above=0)
    shift: float = option(0.0, "where the learned shift inside erf starts")


NORMS = [
    Part(
        "norm",
        "layernorm",
        "encoderkit_builtin.norms:LayerNorm",
        "gain * (x - mean) / sqrt(var + eps) + bias over the channels of a token",
        LayerNormOptions,
    ),
    Part(
        "norm",
        "rmsnorm",
        "encoderkit_builtin.norms:RMSNorm",
        "(offset + gain) * x / sqrt(mean(x^2) + eps) over the channels of a token",
        RMSNormOptions,
    ),
    Part(
        "norm",
        "batchnorm",
        "encoderkit_builtin.norms:BatchNorm",
        "each channel over all real tokens of the batch; running statistics in eval",
        BatchNormOptions,
        Traits(
            batch_coupled=True,
            train_and_eval_differ=True,
            has_buffers=True,
            min_tokens_in_train=2,
            checkpoint_safe=False,
        ),
    ),
    Part(
        "norm",
        "scalenorm",
        "encoderkit_builtin.norms:ScaleNorm",
        "gain * x / max(|x|, eps), one gain for all channels",
        ScaleNormOptions,
    ),
    Part(
        "norm",
        "dyt",
        "encoderkit_builtin.norms:DyT",
        "gamma * tanh(alpha x) + beta, channel by channel, without statistics",
        DyTOptions,
    ),
    Part(
        "norm",
        "derf",
        "encoderkit_builtin.norms:Derf",
        "gamma * erf(alpha x + shift) + beta, channel by channel, without statistics",
        DerfOptions,
    ),
    Part("norm", "none", "encoderkit_builtin.norms:NoNorm", "x"),
]


@dataclass(slots=True, kw_only=True)
class LayerScaleOptions(Options):
    """The options of `placement=layerscale`."""

    start: float = option(1e-4, "where the learned gain of each channel starts", at_least=0)


PLACEMENTS = [
    Part("placement", "pre", "encoderkit_builtin.placements:Pre", "x + f(N(x)), a final norm"),
    Part("placement", "post", "encoderkit_builtin.placements:Post", "N(x + f(x))"),
    Part(
        "placement",
        "sandwich",
        "encoderkit_builtin.placements:Sandwich",
        "x + N(f(N(x))), a final norm",
    ),
    Part(
        "placement",
        "reordered",
        "encoderkit_builtin.placements:Reordered",
        "x + N(f(x)), a final norm",
    ),
    Part(
        "placement",
        "layerscale",
        "encoderkit_builtin.placements:LayerScale",
        "x + g * f(N(x)), a learned gain for each channel, a final norm",
        LayerScaleOptions,
    ),
    Part(
        "placement",
        "deepnorm",
        "encoderkit_builtin.placements:DeepNorm",
        "N(alpha x + f(x)), alpha = (2 L)^(1/4); weights of f start times (8 L)^(-1/4)",
    ),
    Part(
        "placement",
        "residual2",
        "encoderkit_builtin.placements:Residual2",
        "two streams, N(x + f(x)) and s + f(x); in the end x + N(s)",
    ),
    Part(
        "placement",
        "rezero",
        "encoderkit_builtin.placements:ReZero",
        "x + a f(x), a = 0 at the start; has no norm, so it needs norm=none",
    ),
    Part("placement", "none", "encoderkit_builtin.placements:NoResidual", "N(f(x)), no residual"),
]


@dataclass(slots=True, kw_only=True)
class BertOptions(Options):
    """The options of `init=bert`."""

    std: float = option(0.02, "the deviation of weights and embeddings", above=0)


INITS = [
    Part(
        "init",
        "xavier",
        "encoderkit_builtin.inits:Xavier",
        "weights N(0, 2 / (fan_in + fan_out)), biases 0, embeddings N(0, 1)",
    ),
    Part(
        "init",
        "torch",
        "encoderkit_builtin.inits:Torch",
        "weights and biases U(-b, b), b = fan_in^-1/2; embeddings N(0, 1)",
    ),
    Part(
        "init",
        "small",
        "encoderkit_builtin.inits:Small",
        "weights N(0, 2 / (5 fan_in)), biases 0, embeddings N(0, 1)",
    ),
    Part(
        "init",
        "bert",
        "encoderkit_builtin.inits:Bert",
        "weights and embeddings N(0, std^2) whatever the width, biases 0",
        BertOptions,
        Traits(fixed_scale=True),
    ),
    Part(
        "init",
        "deepnorm",
        "encoderkit_builtin.inits:DeepNorm",
        "xavier, the weights of branches but q and k times (8 L)^(-1/4)",
    ),
]


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add every built-in part."""
    return [*NORMS, *PLACEMENTS, *FFNS, *ATTENTIONS, *POSITIONS, *INITS, *TASKS]
