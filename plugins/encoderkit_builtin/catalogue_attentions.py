"""What there is to choose as attention, and the options; imported by the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, option


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


@dataclass(slots=True, kw_only=True)
class LinearOptions(Options):
    """The options of `attention=linear`."""

    bias: bool = option(False, "biases in the q, k, v and out projections")
    n_kv_heads: int | None = option(
        None,
        "heads of keys and values, shared by groups of query heads; null is n_heads",
        at_least=1,
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
    Part(
        "attention",
        "flex",
        "encoderkit_builtin.attentions:Flex",
        "softmax(q k^T / sqrt(K)) v by torch's flex_attention, one call for all sequences",
        AttentionOptions,
        Traits(serves=frozenset({"rotation", "window", "softcap"}), exports=False),
    ),
    Part(
        "attention",
        "flash",
        "encoderkit_builtin.attentions:Flash",
        "softmax(q k^T / sqrt(K)) v by torch's variable-length kernels, on CUDA",
        AttentionOptions,
        Traits(
            layouts=frozenset({"packed"}),
            serves=frozenset({"rotation", "window"}),
            devices=frozenset({"cuda"}),
            precisions=frozenset({"bfloat16", "float16"}),
        ),
    ),
    Part(
        "attention",
        "linear",
        "encoderkit_builtin.mixers:Linear",
        "phi(q) (phi(k)^T v) / phi(q) sum(phi(k)), phi(x) = elu(x) + 1; no softmax",
        LinearOptions,
        Traits(own_maths=True),
    ),
    Part(
        "attention",
        "fnet",
        "encoderkit_builtin.mixers:FNet",
        "Re(FFT(x)) over the tokens of a sequence and the channels; no parameters",
        traits=Traits(
            layouts=frozenset({"packed"}), order_aware=True, serves=frozenset(), own_maths=True
        ),
    ),
    Part("attention", "none", None, "takes the sublayer away, with its norm and residual"),
]
