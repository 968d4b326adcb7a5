"""Which of a stack's parts ran in training, and which in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from torch import nn

from encoderkit.nn import Ctx, Position, Tables

Mode = Literal["train", "eval"]
Note = Callable[[], None]


class Ledger:
    """Fills `ran` with the paths of the parts that ran, by mode.

    Only parts that have not run in a mode yet are watched, and only while `watching`: once each has
    run nothing is left of it.
    """

    def __init__(self, model: nn.Module, ran: dict[str, list[str]]) -> None:
        self.ran = ran
        modules = dict(model.named_modules())
        slots: dict[str, str] = getattr(model, "slots", {})
        # What stands nowhere in the stack cannot run.
        self.modules = {path: modules[path] for path in slots if path in modules}

    @contextmanager
    def watching(self, mode: Mode) -> Iterator[None]:
        """Note what runs meanwhile."""
        ran = set(self.ran.setdefault(mode, []))
        if len(ran) == len(self.modules):
            yield
            return
        with ExitStack() as hooks:
            for path in self.modules.keys() - ran:
                hooks.enter_context(_watched(self.modules[path], partial(ran.add, path)))
            yield
        self.ran[mode] = sorted(ran)


@contextmanager
def _watched(module: nn.Module, note: Note) -> Iterator[None]:
    """Call `note` when a part runs."""
    if isinstance(module, Position):
        with _read(module, note):
            yield
        return
    hook = module.register_forward_pre_hook(lambda module, inputs: note())
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _read(position: Position, note: Note) -> Iterator[None]:
    """Call `note` when a position adds to x, or when somebody reads what it prepared."""
    embed, prepare = position.embed, position.prepare
    adds = type(position).embed is not Position.embed

    def noted(x: Any, ctx: Ctx) -> Any:
        if adds:
            note()
        return embed(x, ctx)

    def kept(ctx: Ctx) -> Tables:
        found = prepare(ctx)
        if not isinstance(ctx.pos, _Reading):
            ctx.pos = _Reading(ctx.pos)
        ctx.pos.notes[id(found)] = note
        return found

    held = dict(vars(position))
    vars(position).update(embed=noted, prepare=kept)
    try:
        yield
    finally:
        for name in ("embed", "prepare"):
            if name in held:
                vars(position)[name] = held[name]
            else:
                del vars(position)[name]


class _Reading(dict[str, Tables]):
    """The positions of a context, with a note when one of them is read."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        super().__init__(tables)
        self.notes: dict[int, Note] = {}

    def __getitem__(self, name: str) -> Tables:
        """Return what a position prepared."""
        found = super().__getitem__(name)
        if note := self.notes.get(id(found)):
            note()
        return found
