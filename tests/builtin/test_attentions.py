from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderkit.nn import Attention, Ctx, Out
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.attentions import SDPA, Naive
from encoderkit_builtin.catalogue import AttentionOptions

BACKENDS = [Naive, SDPA]
LENGTHS = [3, 3, 1, 0, 5]
backends = pytest.mark.parametrize("cls", BACKENDS)


def make(cls: type[Attention], *, bias: bool = True, dropout: float = 0.0) -> Attention:
    torch.manual_seed(0)
    site = make_site(d_model=12, n_heads=3, slot="attention")
    return cls(AttentionOptions(bias=bias, dropout=dropout), site).double()


def tokens(n: int = sum(LENGTHS)) -> Tensor:
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(0)).double()


def reference(attention: Attention, x: Tensor, lengths: list[int]) -> Tensor:
    """Return attention by plain loops over sequences, heads and queries."""
    q, k, v = attention.q(x), attention.k(x), attention.v(x)
    y, start = torch.zeros_like(x), 0
    for length in lengths:
        for head in range(3):
            channels = slice(4 * head, 4 * head + 4)
            for i in range(start, start + length):
                scores = [q[i, channels] @ k[j, channels] / 2 for j in range(start, start + length)]
                weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                y[i, channels] = weights @ v[start : start + length, channels]
        start += length
    out: Tensor = attention.out(y)
    return out


@backends
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [12]])
@pytest.mark.parametrize("bias", [True, False])
def test_a_backend_is_the_plain_loops(cls: type[Attention], lengths: list[int], bias: bool) -> None:
    attention, x = make(cls, bias=bias), tokens()
    y = attention(x, make_ctx(lengths))
    assert torch.allclose(y, reference(attention, x, lengths), rtol=0, atol=1e-12)
    assert (attention.q.bias is not None) is bias and (attention.out.bias is not None) is bias


def test_backends_have_one_gradient() -> None:
    naive, sdpa = make(Naive), make(SDPA)
    sdpa.load_state_dict(naive.state_dict())
    grads = []
    for attention in (naive, sdpa):
        x = tokens().requires_grad_()
        loss = (attention(x, make_ctx(LENGTHS)) * torch.linspace(-1, 1, 12)).sum()
        grads.append(torch.autograd.grad(loss, [x, *attention.parameters()]))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*grads, strict=True))


@backends
def test_no_token_at_all(cls: type[Attention]) -> None:
    attention = make(cls)
    for lengths in ([], [0, 0]):
        x = tokens(0).requires_grad_()
        attention(x, make_ctx(lengths)).sum().backward()
        assert x.grad is not None and x.grad.shape == (0, 12)


def test_the_reference_records_its_weights() -> None:
    ctx = make_ctx(LENGTHS)
    ctx.out = out = Out()
    x = tokens()
    naive = make(Naive, bias=False)
    naive(x, ctx)
    (weights,) = out.records.values()
    assert [tuple(w.shape) for w in weights] == [(3, n, n) for n in LENGTHS]
    q, k = (w(x[6:7])[:, :4] for w in (naive.q, naive.k))
    assert torch.equal(weights[2], torch.ones(3, 1, 1))
    q, k = naive.q(x[7:])[:, 4:8], naive.k(x[7:])[:, 4:8]
    assert torch.allclose(weights[4][1], (q @ k.T / 2).softmax(1), rtol=0, atol=1e-12)


@backends
def test_dropout_falls_on_the_weights_and_differs_between_sequences(
    cls: type[Attention],
) -> None:
    attention, lengths = make(cls, dropout=0.5, bias=False), [40, 39, 40]
    with torch.no_grad():
        attention.q.weight.zero_()  # so that all weights are 1/T
        attention.v.weight.copy_(torch.eye(12))
        attention.out.weight.copy_(torch.eye(12))
    x = torch.eye(12).double().repeat(10, 1)[:119]

    def run(step: int | None) -> Tensor:
        ctx: Ctx = make_ctx(lengths)
        ctx.step = step
        return attention(x, ctx)

    first, before = run(7), torch.get_rng_state()
    assert torch.equal(first, run(7)) and not torch.equal(first, run(8))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first[:39], first[40:79])
    assert (
        0.9
        < float(first.detach().sum() / attention.eval()(x, make_ctx(lengths)).detach().sum())
        < 1.1
    )
    attention.train()
    torch.manual_seed(1)
    drawn = run(None)
    torch.manual_seed(1)
    assert torch.equal(drawn, run(None))


@backends
def test_big_scores_stay_finite(cls: type[Attention]) -> None:
    attention = make(cls)
    with torch.no_grad():
        attention.q.weight.mul_(1e4)
    x = tokens().requires_grad_()
    y = attention(x, make_ctx(LENGTHS))
    y.sum().backward()
    assert bool(y.isfinite().all()) and x.grad is not None and bool(x.grad.isfinite().all())
