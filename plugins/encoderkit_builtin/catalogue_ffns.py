"""The built-in feed-forward networks: names, options, summaries. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, option


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


@dataclass(slots=True, kw_only=True)
class MoEOptions(Options):
    """The options of `ffn=moe`."""

    experts: int = option(8, "how many experts there are", at_least=1, at_most=4096)
    top_k: int = option(2, "how many of them a token goes through", at_least=1)
    gated: bool = option(False, "experts are down(act(gate(x)) * up(x)), else down(act(up(x)))")
    act: str = option(
        "gelu",
        "the experts' activation; gelu is the exact one",
        choices=(
            *("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
            *("relu2", "mish", "identity", "sigmoid"),
        ),
    )
    width: int | None = option(
        None, "inner width of an expert; null is that of an ffn of its shape", at_least=1
    )
    bias: bool = option(False, "biases in the experts' linear maps")
    balance: float = option(0.01, "weight of the loss that evens out the experts", at_least=0)
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
    Part(
        "ffn",
        "moe",
        "encoderkit_builtin.ffns:MoE",
        "sum over the top k experts e of p_e(x) e(x), p = softmax(router(x)); a balance loss",
        MoEOptions,
        Traits(sparse=True),
    ),
    Part("ffn", "none", None, "takes the sublayer away, with its norm and residual"),
]
