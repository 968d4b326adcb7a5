"""Sites and contexts for calling one part by itself, without a config or a stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from encoderkit.nn import Ctx, Norm, Site, Tables
from encoderkit.nn.context import packed


class PlainNorm(Norm):
    """Layer normalisation without parameters or options; stands in for the chosen norm.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.width = site.d_model

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Centre and scale every token."""
        return nn.functional.layer_norm(x, (self.width,))


def make_site(
    *,
    d_model: int = 16,
    d_ff: int = 32,
    n_heads: int = 2,
    n_layers: int = 2,
    layer: int = 0,
    slot: str = "ffn",
    norm: Callable[[Site], Norm] = PlainNorm,
    position: str = "none",
) -> Site:
    """Return a site as the build would make it for a part in `slot` of `layer`.

    `norm` builds what `site.norm()` returns; `position` is what `site.position()` returns.
    """
    return Site(
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        n_layers=n_layers,
        layer=layer,
        depth=2 * layer + (slot == "ffn"),
        slot=slot,
        path=f"layers.{layer}.{slot}",
        make_norm=norm,
        ask_position=lambda: position,
    )


def make_ctx(lengths: Sequence[int]) -> Ctx:
    """Return the context of a packed batch of sequences with these lengths, in tokens.

    The position "none" is prepared, so an attention part can be called with it.
    """
    sizes = list(lengths)
    ctx = packed(sizes, (len(sizes), max(sizes, default=0)), torch.device("cpu"))
    ctx.pos["none"] = Tables()
    return ctx
