from __future__ import annotations

import torch

from encoderkit.nn import Norm
from encoderkit.testing import make_ctx, make_site


def test_a_site_builds_norms_of_any_width() -> None:
    site = make_site(d_model=6)
    x = torch.arange(12.0).reshape(2, 6)
    ctx = make_ctx([2])
    y = site.norm()(x, ctx)
    torch.testing.assert_close(y.mean(1), torch.zeros(2))
    torch.testing.assert_close(y.var(1, correction=0), torch.ones(2))
    half = site.norm(3)(x[:, :3], ctx)
    torch.testing.assert_close(half.mean(1), torch.zeros(2))


def test_a_site_says_where_it_is() -> None:
    site = make_site(layer=1, slot="attention", position="rope")
    assert (site.layer, site.slot, site.path) == (1, "attention", "layers.1.attention")
    assert site.position() == "rope"


def test_a_site_takes_a_norm_of_your_own() -> None:
    class Mine(Norm):
        def __init__(self, site: object) -> None:
            super().__init__()

    assert isinstance(make_site(norm=Mine).norm(), Mine)


def test_a_context_is_a_packed_batch() -> None:
    ctx = make_ctx([2, 0, 3])
    assert ctx.layout == "packed"
    assert ctx.shape == (3, 3)
    assert ctx.lengths == [2, 0, 3]
    assert ctx.offsets.tolist() == [0, 2, 2, 5]
    assert ctx.positions.tolist() == [0, 1, 0, 1, 2]
    assert ctx.max_len == 3
    q, k = torch.randn(2, 5, 1, 4)
    assert all(a is b for a, b in zip(ctx.pos["none"].rotate(q, k), (q, k), strict=True))


def test_a_context_may_be_empty() -> None:
    assert make_ctx([]).offsets.tolist() == [0]
