"""Feed-forward networks: a layer's work on each token by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn import FFN, ConfigError, Ctx, Dropout, Fault, Site
from encoderkit_builtin.catalogue_ffns import GLUOptions, MLPOptions, MoEOptions


def quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), the approximation of gelu that CLIP uses (arXiv 1606.08415)."""
    return x * F.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (arXiv 2109.08668)."""
    return F.relu(x).square()


def identity(x: Tensor) -> Tensor:
    """Return x: a linear MLP, or a bilinear GLU (arXiv 2002.05202)."""
    return x


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "relu2": relu2,
    "mish": F.mish,  # x tanh(ln(1 + e^x)), arXiv 1908.08681
    "identity": identity,
    "sigmoid": F.sigmoid,
}


class MLP(FFN):
    """Two linear maps with an activation between them (arXiv 1706.03762).

    down(act(up(x)))

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: MLPOptions, site: Site) -> None:
        super().__init__()
        width = opts.width or site.d_ff
        self.act = opts.act
        self.up = nn.Linear(site.d_model, width, bias=opts.bias)
        self.down = nn.Linear(width, site.d_model, bias=opts.bias)
        self.dropout = Dropout(opts.dropout, site.path)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the transformed tokens."""
        inner = ACTS[self.act](self.up(x))  # (N, F)
        y: Tensor = self.down(self.dropout(inner, ctx))  # (N, D)
        return y


class GLU(FFN):
    """A linear map whose channels are gated by those of another (arXiv 2002.05202).

    down(act(gate(x)) * up(x))

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: GLUOptions, site: Site) -> None:
        super().__init__()
        width = opts.width or gated_width(site.d_ff)
        self.act = opts.act
        self.up = nn.Linear(site.d_model, width, bias=opts.bias)
        self.gate = nn.Linear(site.d_model, width, bias=opts.bias)
        self.down = nn.Linear(width, site.d_model, bias=opts.bias)
        self.dropout = Dropout(opts.dropout, site.path)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the transformed tokens."""
        inner = ACTS[self.act](self.gate(x)) * self.up(x)  # (N, F)
        y: Tensor = self.down(self.dropout(inner, ctx))  # (N, D)
        return y


class MoE(FFN):
    """A mixture of experts, each an MLP or a GLU; a token goes through its best `top_k` alone.

    sum over the top k of p_e(x) expert_e(x), p = softmax(router(x)) over all experts

    That is arXiv 2101.03961 for top_k=1 and arXiv 2409.02060 for more. No expert is ever full, so
    no token is dropped. The loss "balance" is balance * E sum_e f_e P_e over the real tokens of a
    (micro-)batch: f_e is the expert's share of what they chose, P_e its mean p_e; it is least,
    `balance`, where both are even. The router computes in float32 at least.

    Shapes: x (N, D) -> (N, D)

    Errors: ConfigError for a top_k above the number of experts.
    """

    selects = ("router",)

    def __init__(self, opts: MoEOptions, site: Site) -> None:
        super().__init__()
        if opts.top_k > opts.experts:
            problem = f"must be at most ffn.experts={opts.experts}."
            hint = f"Try ffn.top_k={opts.experts}."
            raise ConfigError([Fault(f"ffn.top_k={opts.top_k}", problem, hint)])
        self.top_k, self.balance = opts.top_k, opts.balance
        self.router = nn.Linear(site.d_model, opts.experts, bias=False)
        sites = (replace(site, path=f"{site.path}.experts.{n}") for n in range(opts.experts))
        own: dict[str, Any] = {"act": opts.act, "width": opts.width, "bias": opts.bias}
        own["dropout"] = opts.dropout
        self.experts = nn.ModuleList(
            GLU(GLUOptions(**own), at) if opts.gated else MLP(MLPOptions(**own), at) for at in sites
        )

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the transformed tokens, zeros for padding."""
        k, experts = self.top_k, len(self.experts)
        odds = self.odds(x)  # (N, E)
        # A sort and no topk: of equals, as for a token of zeros, the first are chosen everywhere.
        ranked = odds.sort(dim=1, descending=True, stable=True)
        weights, chosen = (t[:, :k] for t in ranked)  # (N, k)
        if ctx.valid is not None:  # padding goes to an expert that is not there
            padding = ~ctx.valid.reshape(-1, 1)  # (N, 1)
            odds, chosen = odds.masked_fill(padding, 0), chosen.masked_fill(padding, experts)
        picks = chosen.flatten()  # (N k)
        counts = picks.bincount(minlength=experts)[:experts]  # (E)
        sizes = counts.tolist()
        order = picks.argsort(stable=True)[: sum(sizes)]  # (real N k), expert by expert
        groups = torch.split(x.repeat_interleave(k, 0)[order], sizes)
        made = torch.cat([e(own, ctx) for e, own in zip(self.experts, groups, strict=True)])
        slots = made.new_zeros(picks.shape[0], x.shape[1]).index_copy(0, order, made)  # (N k, D)
        total = counts.sum().clamp(min=1)
        shares, means = counts.to(odds.dtype) / total, odds.sum(0) * k / total  # (E) each
        ctx.out.loss("balance", self.balance * experts * (shares * means).sum())
        weights = weights[:, :, None].to(made.dtype)  # (N, k, 1)
        return (slots.view(x.shape[0], k, x.shape[1]) * weights).sum(1)  # (N, D)

    def odds(self, x: Tensor) -> Tensor:
        """Return the probability of each expert, for each token.

        Shapes: x (N, D) -> (N, E)
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(wide), self.router.weight.to(wide)).softmax(1)


def gated_width(d_ff: int) -> int:
    """Return the multiple of 8 nearest to 2/3 d_ff, at least 8: three maps then weigh as two."""
    return max(8, (d_ff + 6) // 12 * 8)
