"""Feed-forward networks: a layer's work on each token by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn import FFN, Ctx, Dropout, Site
from encoderkit_builtin.catalogue import GLUOptions, MLPOptions


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


def gated_width(d_ff: int) -> int:
    """Return the multiple of 8 nearest to 2/3 d_ff, at least 8: three maps then weigh as two."""
    return max(8, (d_ff + 6) // 12 * 8)
