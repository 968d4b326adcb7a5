"""What a stack costs: its floating-point operations, counted while it runs without any data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from encoderkit.errors import EncoderkitError
from encoderkit.nn.base import Piece, Placement, Position
from encoderkit.nn.stack import EncoderStack


def flops(stack: EncoderStack, length: int) -> dict[str, float]:
    """Return the FLOPs of a forward pass for each token of one sequence, part by part.

    Keys are paths of parts, such as "layers.0.ffn.branch"; "" is what the stack does between its
    parts. What a part runs inside another, as the branch in its placement, counts for the inner
    one, so all values add up to the whole. Matrix products and convolutions count, with two FLOPs
    for a multiplication and its addition; FFTs, lookups and what goes channel by channel do not.
    A part whose shapes depend on data is unknown, nan: there are no data here.

    The stack has been built on the meta device, and is left in eval mode.

    Units: `length` in tokens.

    Errors: those of the parts, such as InputError for a sequence that is too long for a table.
    """
    stack.eval()
    meter = _Meter()
    dtype = next((p.dtype for p in stack.parameters()), torch.get_default_dtype())
    tokens = torch.empty(length, stack.d_model, dtype=dtype, device="meta")
    pieces = {path: part for path, part in stack.named_modules() if isinstance(part, Piece)}
    try:
        for path, part in pieces.items():
            for name in _calls(part):
                vars(part)[name] = meter.watched(path, getattr(part, name))
        with torch.no_grad(), meter.counter:
            stack(tokens, lengths=[length])
            meter.own[""] = meter.counter.get_total_flops() - meter.inner
    finally:
        for part in pieces.values():
            for name in _calls(part):
                vars(part).pop(name, None)
    return {path: spent / length for path, spent in meter.own.items()}


def _calls(part: Piece) -> tuple[str, ...]:
    """Return the methods by which a stack runs a part."""
    if isinstance(part, Position):
        return ("embed", "prepare")
    return ("enter", "forward", "leave") if isinstance(part, Placement) else ("forward",)


class _Meter:
    """Counts what watched calls spend, each without the watched calls inside it."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.own: dict[str, float] = {}
        self.inner = 0.0  # spent by the watched calls that the running one has made so far

    def watched(self, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same call, counted for `path`; when it fails, it returns x as it came."""
        self.own.setdefault(path, 0.0)

        def run(x: Any, *more: Any, **named: Any) -> Any:
            before, outer, self.inner = self.counter.get_total_flops(), self.inner, 0.0
            try:
                y = call(x, *more, **named)
            except EncoderkitError:
                raise
            except Exception:  # whatever a part says when it looks for data that are not there
                y, self.own[path] = x, math.nan
            spent = self.counter.get_total_flops() - before
            self.own[path] += spent - self.inner
            self.inner = outer + spent
            return y

        return run
