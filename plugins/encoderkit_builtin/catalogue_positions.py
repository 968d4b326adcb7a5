"""The built-in positions: names, options, summaries. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, option


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


@dataclass(slots=True, kw_only=True)
class T5Options(Options):
    """The options of `position=t5`."""

    buckets: int = option(
        32, "numbers for each head, half of them a side; even", at_least=4, at_most=1024
    )
    max_distance: int = option(
        128, "from this distance on there is one bucket", at_least=2, at_most=2**31
    )
    shared: bool = option(True, "one table for all layers, else one each")


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
    Part(
        "position",
        "alibi",
        "encoderkit_builtin.positions:ALiBi",
        "-m_h |i - j| on the scores, a fixed slope m_h for each head",
        traits=Traits(order_aware=True, needs=frozenset({"bias"})),
    ),
    Part(
        "position",
        "t5",
        "encoderkit_builtin.positions:T5",
        "b_h(j - i) on the scores, learned for each head and bucket of distances",
        T5Options,
        Traits(order_aware=True, needs=frozenset({"bias"})),
    ),
]
