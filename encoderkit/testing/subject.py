"""A part under examination: built as often as a property asks, called on any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from encoderkit.api import Kind
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen, Config, ModelOptions
from encoderkit.nn import Ctx, EncoderStack, Out, Site
from encoderkit.nn.build import build_stack
from encoderkit.nn.context import dense, packed
from encoderkit.nn.init import redraw
from encoderkit.testing.bench import AttentionBench, Bench, PlacementBench, PositionBench
from encoderkit.testing.case import Case
from encoderkit.testing.make import make_site

Reference = Callable[[Any, Tensor, Sequence[int]], Tensor]
STREAM: tuple[Kind, ...] = ("norm", "placement", "ffn", "attention", "position")
CPU = torch.device("cpu")


class Subject:
    """One part with its options, in a configuration whose other parts are the usual ones.

    `reference(module, x, lengths)` computes in float64, in another way, what the part computes.
    """

    def __init__(self, kind: Kind, config: Config, reference: Reference | None = None) -> None:
        self.kind = kind
        self.config = config
        self.chosen: Chosen = getattr(config, kind)
        self.part = self.chosen.entry.part
        self.traits = self.part.traits
        self.options = self.chosen.options
        self.reference = reference

    def with_options(self, **values: Any) -> Subject:
        """Return the subject with other values for some of its options."""
        options = replace(self.options, **values)
        return self.with_chosen(Chosen(self.chosen.entry, options))

    def with_chosen(self, chosen: Chosen) -> Subject:
        """Return another part of the same kind in the same configuration."""
        swapped: Any = {self.kind: chosen}
        return Subject(self.kind, replace(self.config, **swapped), self.reference)

    def cases(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases in declared dtypes, with as many tokens as training needs."""
        least, known = self.traits.min_tokens_in_train, self.traits.precisions
        enough = [c for c in cases if not c.train or not 0 < sum(c.lengths) < least]
        return [c for c in enough if str(c.dtype).removeprefix("torch.") in known]

    def raw(self, case: Case, *, seed: int = 0, layer: int = 0) -> nn.Module:
        """Return the part as its constructor makes it, under draws of its own."""
        return self.constructed(self.site(case, layer), seed)

    def site(self, case: Case, layer: int = 0) -> Site:
        """Return a site for the part."""
        slot = {"attention": "attention", "position": ""}.get(self.kind, "ffn")
        return make_site(
            d_model=case.width, d_ff=case.d_ff, n_heads=case.heads, layer=layer, slot=slot
        )

    def constructed(self, site: Site, seed: int = 0) -> nn.Module:
        """Return what the part's constructor makes at a site, under draws of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: nn.Module = self.chosen.entry.load()(self.options, site)
        return made

    def bench(self, case: Case, *, seed: int = 0, layer: int = 0) -> Bench:
        """Return the part ready to be called, with values that no constructor gives by habit.

        All parameters are moved at random, and one batch of training has gone through it, so that
        a gain of 1, a bias of 0 or fresh running statistics cannot hide a fault.
        """
        made = self.seat(self.raw(case, seed=seed, layer=layer), case)
        init = self.config.init
        redraw(made, init.entry.load()(init.options), seed)
        draws = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for p in made.part.parameters():
                if p.is_floating_point():
                    p.add_(torch.randn(p.shape, generator=draws).to(p.dtype), alpha=0.3)
        made.to(dtype=case.dtype)
        if self.traits.has_buffers:
            warm = replace(case, lengths=(5, 4))
            with torch.no_grad():
                self.run(made.train(), self.tokens(warm, seed=seed + 77) + 0.5, warm.lengths)
        return made.train(case.train)

    def seat(self, part: nn.Module, case: Case) -> Bench:
        """Return the part in the bench of its kind."""
        if self.kind == "placement":
            return PlacementBench(part, case.width, case.heads)
        if self.kind == "position":
            return PositionBench(part, case.width, case.heads)
        return AttentionBench(part) if self.kind == "attention" else Bench(part)

    @staticmethod
    def tokens(case: Case, *, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Return random tokens for a case, the same each time.

        Shapes: -> (N, D)
        """
        draws = torch.Generator().manual_seed(1000 + seed)
        shape = (sum(case.lengths), case.width)
        return (torch.randn(shape, generator=draws, dtype=torch.float64) * scale).to(case.dtype)

    @staticmethod
    def context(
        lengths: Sequence[int],
        *,
        extra: int = 0,
        shift: int = 0,
        step: int | None = 0,
        device: torch.device = CPU,
    ) -> Ctx:
        """Return a packed context; the door's S is `extra` longer, positions start at `shift`."""
        sizes = list(lengths)
        ctx = packed(sizes, (len(sizes), max(sizes, default=0) + extra), device)
        ctx.positions = ctx.positions + shift
        ctx.n_positions += shift
        ctx.step = step
        return ctx

    def run(
        self,
        bench: Bench,
        x: Tensor,
        lengths: Sequence[int],
        *,
        extra: int = 0,
        shift: int = 0,
        step: int | None = 0,
        out: Out | None = None,
    ) -> Tensor:
        """Return what the part makes of packed tokens.

        Shapes: x (N, D) -> (N, D)
        """
        ctx = self.context(lengths, extra=extra, shift=shift, step=step, device=x.device)
        if out is not None:
            ctx.out = out
        y: Tensor = bench(x, ctx)
        return y

    @staticmethod
    def run_dense(bench: Bench, x: Tensor, valid: Tensor, *, out: Out | None = None) -> Tensor:
        """Return what the part makes of a dense batch.

        Shapes: x (B, S, D), valid (B, S) -> (B, S, D)
        """
        b, s, d = x.shape
        ctx = dense(valid, (b, s), x.device)
        ctx.out = out or ctx.out
        y: Tensor = bench(x.reshape(b * s, d), ctx)
        return y.reshape(b, s, d)

    def stack(self, *, layers: int = 2) -> EncoderStack:
        """Return a small stack with the part in it, in float64; without norms if it asks for none.

        A norm that no part asks for would be refused.
        """
        sizes = ModelOptions(d_model=8, n_layers=layers, n_heads=2, d_ff=16)
        config, site = replace(self.config, model=sizes), self.site(Case())
        if self.kind == "placement":
            self.constructed(site)
            config = config if site.norms else replace(config, norm=configure("norm=none").norm)
        return build_stack(config, dtype=torch.float64)

    def without_positions(self) -> Subject:
        """Return the subject in a stack that adds nothing to x, so that zeros stay zeros."""
        if self.kind == "position":
            return self
        none = configure({"position": "none"}).position
        return Subject(self.kind, replace(self.config, position=none), self.reference)

    def max_positions(self, wanted: int) -> int:
        """Return how many positions the part has, at most `wanted`: its option `max_len`."""
        return min(wanted, getattr(self.options, "max_len", wanted))
