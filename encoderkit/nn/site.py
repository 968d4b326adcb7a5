"""Where a part stands: what it may know when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class Site:
    """The place of one part. A part copies what it needs and never keeps the site.

    `layer` is -1 outside the layers; `slot` is the sublayer's name, `depth` the number of sublayers
    before it in the stack; `path` is the parameter path of the part. For a norm `d_model` is the
    width that it normalises.
    """

    d_model: int
    d_ff: int
    n_heads: int
    n_layers: int
    layer: int
    depth: int = 0
    slot: str
    path: str
    make_norm: Callable[[Site], Any] = field(repr=False)
    ask_position: Callable[[], str] = field(repr=False, default=lambda: "none")
    norms: int = field(default=0, init=False, repr=False)

    def norm(self, width: int | None = None) -> Any:
        """Return a new norm of the chosen kind over `width` channels; null is d_model."""
        self.norms += 1
        name = "norm" if self.norms == 1 else f"norm_{self.norms}"
        width = self.d_model if width is None else width
        return self.make_norm(replace(self, d_model=width, path=f"{self.path}.{name}"))

    def position(self) -> str:
        """Return the name under which `ctx.pos` holds this layer's position."""
        return self.ask_position()
