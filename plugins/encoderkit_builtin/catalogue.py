"""What there is to choose: the built-in parts and their options. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, hookimpl, option
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
    Part("placement", "none", "encoderkit_builtin.placements:NoResidual", "N(f(x)), no residual"),
]


@dataclass(slots=True, kw_only=True)
class MLPOptions(Options):
    """The options of `ffn=mlp`."""

    act: str = option(
        "relu",
        "the activation; gelu is the exact one",
        choices=(
            *("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
            *("relu2", "mish", "identity"),
        ),
    )
    width: int | None = option(None, "inner width; null is model.d_ff", at_least=1)
    bias: bool = option(True, "biases in both linear maps")
    dropout: float = option(0.0, "dropout on the inner activations", at_least=0, below=1)


@dataclass(slots=True, kw_only=True)
class GLUOptions(Options):
    """The options of `ffn=glu`."""

    act: str = option(
        "silu",
        "the gate's activation; gelu is the exact one",
        choices=("sigmoid", "relu", "gelu", "gelu_tanh", "silu", "identity"),
    )
    width: int | None = option(
        None, "inner width; null is the multiple of 8 nearest to 2/3 model.d_ff", at_least=1
    )
    bias: bool = option(False, "biases in all three linear maps")
    dropout: float = option(0.0, "dropout on the inner activations", at_least=0, below=1)


FFNS = [
    Part(
        "ffn",
        "mlp",
        "encoderkit_builtin.ffns:MLP",
        "down(act(up(x)))",
        MLPOptions,
    ),
    Part(
        "ffn",
        "glu",
        "encoderkit_builtin.ffns:GLU",
        "down(act(gate(x)) * up(x))",
        GLUOptions,
    ),
    Part("ffn", "none", None, "takes the sublayer away, with its norm and residual"),
]


@dataclass(slots=True, kw_only=True)
class AttentionOptions(Options):
    """The options of the softmax attentions."""

    bias: bool = option(False, "biases in the q, k, v and out projections")
    dropout: float = option(
        0.0, "dropout on the attention weights", at_least=0, below=1, needs="dropout"
    )
    window: int | None = option(
        None, "the largest distance of a token that is seen, both sides", at_least=1, needs="window"
    )
    softcap: float | None = option(
        None, "c in c tanh(score / c), which bounds the scores", above=0, needs="softcap"
    )
    n_kv_heads: int | None = option(
        None,
        "heads of keys and values, shared by groups of query heads; null is n_heads",
        at_least=1,
    )
    qk_norm: str = option(
        "none",
        "the chosen norm after q and k: over each head, or over all channels",
        choices=("none", "head", "all"),
    )


ATTENTIONS = [
    Part(
        "attention",
        "naive",
        "encoderkit_builtin.attentions:Naive",
        "softmax(q k^T / sqrt(K)) v as written; the reference, records its weights",
        AttentionOptions,
        Traits(
            serves=frozenset({"rotation", "bias", "window", "softcap", "dropout", "weights"}),
        ),
    ),
    Part(
        "attention",
        "sdpa",
        "encoderkit_builtin.attentions:SDPA",
        "softmax(q k^T / sqrt(K)) v by torch's scaled_dot_product_attention",
        AttentionOptions,
        Traits(serves=frozenset({"rotation", "bias", "window", "dropout"})),
    ),
    Part("attention", "none", None, "takes the sublayer away, with its norm and residual"),
]


@dataclass(slots=True, kw_only=True)
class LearnedOptions(Options):
    """The options of `position=learned`."""

    max_len: int = option(512, "the longest sequence there is a vector for", at_least=1)


@dataclass(slots=True, kw_only=True)
class SinusoidalOptions(Options):
    """The options of `position=sinusoidal`."""

    layout: str = option(
        "interleaved",
        "sines and cosines in turn, or all sines in the first half",
        choices=("interleaved", "half"),
    )


@dataclass(slots=True, kw_only=True)
class RoPEOptions(Options):
    """The options of `position=rope`."""

    theta: float = option(
        10000.0,
        "the slowest pair of channels turns once in 2 pi theta",
        above=1,
        when="position.width!=2",  # the first pair turns once in 2 pi, whatever theta is
    )
    layout: str = option(
        "half",
        "of W turned channels, i goes with i + W/2, or each with its neighbour",
        choices=("half", "interleaved"),
        when="position.width!=2",
    )
    width: int | None = option(
        None, "channels of a head that are turned, an even number; null is all", at_least=2
    )


POSITIONS = [
    Part("position", "none", "encoderkit_builtin.positions:NoPosition", "no order at all"),
    Part(
        "position",
        "sinusoidal",
        "encoderkit_builtin.positions:Sinusoidal",
        "fixed sines and cosines, added to x before the first layer",
        SinusoidalOptions,
        Traits(order_aware=True, absolute=True, approximate=1e-5),  # float32 angles
    ),
    Part(
        "position",
        "learned",
        "encoderkit_builtin.positions:Learned",
        "a learned vector for each position, added to x before the first layer",
        LearnedOptions,
        Traits(order_aware=True, absolute=True),
    ),
    Part(
        "position",
        "rope",
        "encoderkit_builtin.positions:RoPE",
        "turns pairs of query and key channels by an angle that grows with position",
        RoPEOptions,
        Traits(order_aware=True, approximate=1e-5, needs=frozenset({"rotation"})),  # float32 angles
    ),
]

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
]


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add every built-in part."""
    return [*NORMS, *PLACEMENTS, *FFNS, *ATTENTIONS, *POSITIONS, *INITS, *TASKS]
