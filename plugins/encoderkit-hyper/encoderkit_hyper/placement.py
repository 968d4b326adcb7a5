"""Hyper-connections themselves: imported when a model with `placement=hyper` is built."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from encoderkit.nn import Branch, Ctx, Placement, Site
from encoderkit_hyper import HyperOptions


class Mixing(nn.Module):
    """The learned weights that are the same for every token, without weight decay as in the paper.

    Shapes: alpha (n, 1+n), the column a and the matrix A; beta (n)
    """

    weight_decay = False

    def __init__(self, streams: int, read: int) -> None:
        super().__init__()
        columns = [torch.eye(streams)[:, [read]], torch.eye(streams)]
        self.alpha = nn.Parameter(torch.cat(columns, 1))  # (n, 1+n)
        self.beta = nn.Parameter(torch.ones(streams))


class Hyper(Placement):
    """Hyper-connections: n streams, read, kept and written by learned weights (arXiv 2409.19606).

    y_j = sum_i A_ij x_i + b_j f(N(h)),  h = sum_i a_i x_i

    Dynamic, each token adds s tanh(N(x_i) W) to the weights of its stream i, where W starts at 0.
    At the start the k-th sublayer reads stream k mod n, every stream keeps itself, and all are
    written: the streams are alike, and each is what pre-norm makes. At the end they are summed.

    Shapes: x (N, n, D) -> (N, n, D)
    """

    final_norm = True
    equation = "sum_i A_ij x_i + b_j f(N(sum_i a_i x_i)) in stream j"

    def __init__(self, opts: HyperOptions, site: Site) -> None:
        super().__init__()
        self.streams = opts.streams
        self.before = site.norm()
        self.static = Mixing(opts.streams, site.depth % opts.streams)
        self.dynamic = Turning(opts.streams, site) if opts.dynamic else None

    def enter(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return every stream, each of them x.

        Shapes: x (N, D) -> (N, n, D)
        """
        return x[:, None].expand(-1, self.streams, -1)  # (N, n, D)

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new streams."""
        alpha, beta = self.static.alpha, self.static.beta
        if self.dynamic is not None:
            more_alpha, more_beta = self.dynamic(x, ctx)
            alpha, beta = alpha + more_alpha, beta + more_beta  # (N, n, 1+n), (N, n)
        # No matmul, which autocast would round to bfloat16: the residual keeps the accuracy of x.
        mixed = x.new_zeros(())
        for stream, weights in zip(x.unbind(1), alpha.unbind(-2), strict=True):
            mixed = mixed + weights[..., None] * stream[:, None]  # (N, 1+n, D)
        y = f(self.before(mixed[:, 0], ctx), ctx)  # (N, D)
        return mixed[:, 1:] + beta[..., None] * y[:, None]  # (N, n, D)

    def leave(self, x: Tensor, final: Branch, ctx: Ctx) -> Tensor:
        """Return the sum of the streams, after the final norm.

        Shapes: x (N, n, D) -> (N, D)
        """
        return final(x.sum(1), ctx)


class Turning(nn.Module):
    """What each token adds to the mixing weights of its streams.

    s_alpha tanh(N(x_i) W_alpha),  s_beta tanh(N(x_i) W_beta)

    Shapes: x (N, n, D) -> (N, n, 1+n), (N, n)
    """

    def __init__(self, streams: int, site: Site) -> None:
        super().__init__()
        self.norm = site.norm()
        # No nn.Linear: the init part would draw it, and these must start at 0.
        self.alpha = nn.Parameter(torch.zeros(site.d_model, 1 + streams))
        self.beta = nn.Parameter(torch.zeros(site.d_model, 1))
        self.alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.beta_scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Return what is added to alpha and to beta."""
        seen = self.norm(x.reshape(-1, x.shape[2]), ctx).view(x.shape)  # (N, n, D)
        alpha = self.alpha_scale * (seen @ self.alpha).tanh()  # (N, n, 1+n)
        beta = self.beta_scale * (seen @ self.beta).tanh()  # (N, n, 1)
        return alpha, beta.squeeze(2)  # (N, n)
