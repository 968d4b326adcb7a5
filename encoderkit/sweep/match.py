"""Budgets that agree: a free width solved for parameters or FLOPs, steps for tokens or FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from encoderkit.config.schema import SweepOptions
from encoderkit.errors import ConfigError, Fault
from encoderkit.sweep.axes import key
from encoderkit.sweep.variant import Variant

MOST = 0.05  # beyond this mismatch a matched variant is refused
NOTED = 0.01  # beyond this one it is named

Again = Callable[[Variant, str], Variant]


@dataclass(frozen=True, slots=True)
class Matched:
    """A variant with its solved width or steps, and the keys that were set for it."""

    variant: Variant
    keys: tuple[str, ...] = ()


def match_width(variant: Variant, baseline: Variant, sweep: SweepOptions, again: Again) -> Matched:
    """Return the variant with the width that brings it nearest to the baseline.

    The width is `ffn.width` where the FFN has it, else `model.d_ff`, in multiples of
    `sweep.match_multiple`. `again` builds the variant with one more override.

    Errors: ConfigError where no width is free, or none comes within 5 %.
    """
    name = _free(variant, sweep)
    target = _size(baseline, sweep)
    step = sweep.match_multiple
    try:
        tried = [again(variant, f"{name}={width}") for width in (step, 2 * step)]
        low, high = (_size(each, sweep) for each in tried)
    except ConfigError as error:
        if not any(fault.where.startswith(f"{name}=") for fault in error.faults):
            raise
        low = high = 0.0  # no part reads it
    if high == low:
        raise _fixed(name, sweep)
    # Both are affine in the width.
    best = max(1, round((target - low) / (high - low)) + 1) * step
    found = again(variant, f"{name}={best}")
    keys: tuple[str, ...] = (name, "model.d_ff")  # which a width of its own makes idle
    if _off(variant, target, sweep) <= _off(found, target, sweep):
        found, keys = variant, ()
    off = _off(found, target, sweep)
    if off > MOST:
        problem = f"{off:.1%} is the nearest to the baseline's {sweep.match} that {name} gives."
        hint = "Choose match=none, a smaller sweep.match_multiple, or another baseline."
        raise ConfigError([Fault(f"sweep.match={sweep.match}", problem, hint)])
    return Matched(found, keys)


def _fixed(name: str, sweep: SweepOptions) -> ConfigError:
    problem = f"the {sweep.match} do not depend on {name}, so nothing can be matched."
    return ConfigError([Fault(f"sweep.match={sweep.match}", problem, "Choose match=none.")])


def _free(variant: Variant, sweep: SweepOptions) -> str:
    """Return the key of the width that may be set.

    Errors: ConfigError where it was said already.
    """
    options = variant.config.ffn.options
    name = "ffn.width" if hasattr(options, "width") else "model.d_ff"
    if name in map(key, variant.point) or getattr(options, "width", None) is not None:
        problem = f"would set {name}, which was said already."
        hint = f"Leave {name} out, or choose match=none."
        raise ConfigError([Fault(f"sweep.match={sweep.match}", problem, hint)])
    return name


def _size(variant: Variant, sweep: SweepOptions) -> float:
    """Return what is to agree.

    Errors: ConfigError where it is unknown.
    """
    size = variant.facts.stack if sweep.match == "params" else variant.facts.flops
    if size is None:
        problem = "a part's FLOPs depend on the data, and are unknown."
        raise ConfigError([Fault("sweep.match=flops", problem, "Try match=params.")])
    return size


def _off(variant: Variant, target: float, sweep: SweepOptions) -> float:
    return abs(_size(variant, sweep) - target) / max(target, 1)


def match_steps(variant: Variant, baseline: Variant, sweep: SweepOptions, again: Again) -> Matched:
    """Return the variant with as many steps as spend the baseline's tokens, FLOPs or seconds.

    The warm-up keeps its share of the steps.

    Errors: ConfigError where steps were said for some variants, FLOPs are unknown, or no number
    of steps comes within 5 %.
    """
    spent, whole = _spent(variant, sweep), _spent(baseline, sweep)
    train, base = variant.config.train, baseline.config.train
    steps = max(1, round(base.steps * whole / spent))
    if steps == train.steps:
        return Matched(variant)
    said = [name for name in ("train.steps", "train.warmup") if _varies(name, variant, baseline)]
    if said:
        problem = f"would set {said[0]}, which was said already."
        fault = Fault(f"sweep.budget={sweep.budget}", problem, "Choose budget=steps.")
        raise ConfigError([fault])
    off = abs(steps * spent / (base.steps * whole) - 1)
    if off > MOST:
        problem = f"{off:.1%} is the nearest to the baseline's {sweep.budget} that steps give."
        hint = "Choose budget=steps, or more steps."
        raise ConfigError([Fault(f"sweep.budget={sweep.budget}", problem, hint)])
    warmup = round(train.warmup * steps / train.steps)
    words = [f"train.steps={steps}", f"train.warmup={warmup}"]
    for word in words if steps > train.steps else reversed(words):  # never more warm-up than steps
        variant = again(variant, word)
    return Matched(variant, ("train.steps", "train.warmup"))


def _varies(name: str, variant: Variant, baseline: Variant) -> bool:
    words = [[text for text in each.point if key(text) == name] for each in (variant, baseline)]
    return words[0] != words[1]


def _spent(variant: Variant, sweep: SweepOptions) -> float:
    """Return what one step spends, up to a factor that all variants share.

    Errors: ConfigError where FLOPs are unknown.
    """
    if sweep.budget == "seconds":
        return variant.seconds or 0.0
    if sweep.budget == "tokens":
        return variant.config.train.batch
    if variant.facts.flops is None:
        problem = "a part's FLOPs depend on the data, and are unknown."
        raise ConfigError([Fault("sweep.budget=flops", problem, "Try budget=tokens.")])
    return variant.facts.flops * variant.config.train.batch
