"""Where a part stands: what it may know when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
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

    def noting(self, note: Callable[[str], None]) -> Site:
        """Return a copy that calls `note` with the name of whatever is read from it."""
        own = {spec.name: getattr(self, spec.name) for spec in fields(Site) if spec.init}
        return Noting(**own, note=note)

    def position(self) -> str:
        """Return the name under which `ctx.pos` holds this layer's position."""
        return self.ask_position()


def ignore(name: str) -> None:
    """Take no note."""


@dataclass(slots=True, kw_only=True)
class Noting(Site):
    """A site that tells what is read from it."""

    note: Callable[[str], None] = field(default=ignore, repr=False)

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and tell its name."""
        object.__getattribute__(self, "note")(name)
        return object.__getattribute__(self, name)

    def norm(self, width: int | None = None) -> Any:
        """Return a new norm; what is copied for its site has not been read."""
        told, self.note = object.__getattribute__(self, "note"), ignore
        try:
            return Site.norm(self, width)
        finally:
            self.note = told
