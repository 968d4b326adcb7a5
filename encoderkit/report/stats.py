"""Means, spreads and paired differences, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences over `pairs` seeds, with its interval from `low` to `high`.

    One pair has a mean and no interval.
    """

    pairs: int
    mean: float
    low: float | None
    high: float | None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None of nothing."""
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # a sum beyond 1.8e308, or of infinities
        return sum(value / len(values) for value in values)


def sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation sqrt(sum (x - mean)^2 / (n - 1)); None below n = 2."""
    centre = mean(values)
    if centre is None or len(values) < 2:
        return None
    return math.hypot(*(x - centre for x in values)) / math.sqrt(len(values) - 1)


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Return the difference to the baseline over the seeds that both have; None without any.

    mean ± t(0.975, n - 1) sd / sqrt(n)
    """
    differences = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    centre, spread = mean(differences), sd(differences)
    if centre is None:
        return None
    if spread is None:
        return Difference(len(differences), centre, None, None)
    n = len(differences)
    half = t_quantile((1 + LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return Difference(n, centre, centre - half, centre + half)


def t_quantile(p: float, df: int) -> float:
    """Return the t below which Student's t with `df` degrees of freedom falls with probability p.

    For 0.5 <= p < 1, by bisection on the distribution function, to about 1e-12.
    """
    low, high = 0.0, 1.0
    while t_probability(high, df) < p:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_probability(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_probability(t: float, df: int) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is below t >= 0.

    With tan a = t / sqrt(df), the finite sums in cos a of Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(df))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    terms = []
    for k in range(3 if odd else 2, df + 1, 2):
        terms.append(term)
        term *= cosine * cosine * (k - 1) / k
    inside = sine * math.fsum(terms)
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return 0.5 + inside / 2
