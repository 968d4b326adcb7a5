from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderkit.errors import ConfigError, InputError
from encoderkit.nn import Attention, Ctx, Out, Tables
from encoderkit.nn.build import build
from encoderkit.nn.context import dense
from encoderkit.testing import make_ctx, make_site, softmax_attention
from encoderkit_builtin.attentions import SDPA, Flash, Flex, Naive
from encoderkit_builtin.catalogue_attentions import AttentionOptions

BACKENDS = [Naive, SDPA, Flex]
LENGTHS = [3, 3, 1, 0, 5]  # 12 tokens
backends = pytest.mark.parametrize("cls", BACKENDS)
dropping = pytest.mark.parametrize("cls", [Naive, SDPA])


def make(cls: type[Attention], *, heads: int = 3, bias: bool = True, **options: Any) -> Attention:
    torch.manual_seed(0)
    site = make_site(d_model=12, n_heads=heads, slot="attention")
    return cls(AttentionOptions(bias=bias, **options), site).double()


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12)


def tokens(n: int = sum(LENGTHS)) -> Tensor:
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(0)).double()


@backends
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [12]])
@pytest.mark.parametrize("bias", [True, False])
def test_a_backend_is_the_plain_loops(cls: type[Attention], lengths: list[int], bias: bool) -> None:
    attention, x = make(cls, bias=bias), tokens()
    y = attention(x, make_ctx(lengths))
    assert torch.allclose(y, softmax_attention(attention, x, lengths), rtol=0, atol=1e-12)
    assert (attention.q.bias is not None) is bias and (attention.out.bias is not None) is bias


def test_backends_have_one_gradient() -> None:
    grads = []
    for attention in map(make, BACKENDS):
        x = tokens().requires_grad_()
        loss = (attention(x, make_ctx(LENGTHS)) * torch.linspace(-1, 1, 12)).sum()
        grads.append(torch.autograd.grad(loss, [x, *attention.parameters()]))
    for found in grads[1:]:
        assert all(map(same, grads[0], found))


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


@dropping
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


def plain_norm(x: Tensor) -> Tensor:
    """What `make_site` builds as a norm, over one vector."""
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt()


VARIANTS: list[dict[str, Any]] = [
    {"window": 1},
    {"window": 2},
    {"softcap": 0.7},
    {"window": 1, "softcap": 0.7},
    {"n_kv_heads": 2},
    {"n_kv_heads": 1, "window": 2},
    {"qk_norm": "head"},
    {"qk_norm": "head", "n_kv_heads": 2, "window": 1},
]


@backends
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_option_is_the_plain_loops_values_and_gradients(
    cls: type[Attention], options: dict[str, Any]
) -> None:
    if cls is SDPA and "softcap" in options:
        return  # refused: tests/config/test_needs.py
    attention = make(cls, heads=4, **options)
    told = {k: v for k, v in options.items() if k in ("window", "softcap")}
    if "qk_norm" in options:
        told["qk_norm"] = plain_norm
    found = []
    for ours in (True, False):
        x = tokens().requires_grad_()
        if ours:
            y = attention(x, make_ctx(LENGTHS))
        else:
            y = softmax_attention(attention, x, LENGTHS, **told)
        leaves = [x, *attention.parameters()]
        found.append([y, *torch.autograd.grad((y * torch.linspace(-1, 1, 12)).sum(), leaves)])
    assert all(map(same, *found))


@backends
def test_norms_over_all_channels(cls: type[Attention]) -> None:
    attention, x = make(cls, qk_norm="all", bias=False), tokens()
    twin = make(cls, bias=False)
    twin.load_state_dict(attention.state_dict())
    whole = torch.stack([plain_norm(row) for row in twin.q(x)])
    keys = torch.stack([plain_norm(row) for row in twin.k(x)])
    twin.q.forward = lambda _: whole  # type: ignore[method-assign]
    twin.k.forward = lambda _: keys  # type: ignore[method-assign]
    assert same(attention(x, make_ctx(LENGTHS)), twin(x, make_ctx(LENGTHS)))


class Leaning(Tables):
    """Adds a number of its own to every pair of tokens of every sequence."""

    def __init__(self, ctx: Ctx, heads: int) -> None:
        draws = torch.Generator().manual_seed(4)
        shapes = [(count, heads, n, n) for count, n in ctx.runs or [ctx.shape]]
        self.added = [torch.randn(shape, generator=draws).double() for shape in shapes]

    def biases(self, layer: int) -> list[Tensor]:
        return self.added


@pytest.mark.parametrize("cls", [Naive, SDPA])
@pytest.mark.parametrize("window", [None, 1])
def test_biases_are_the_plain_loops(cls: type[Attention], window: int | None) -> None:
    attention, x, ctx = make(cls, window=window), tokens(), make_ctx(LENGTHS)
    tables = Leaning(ctx, 3)
    ctx.pos["none"] = tables
    each = [one for run in tables.added for one in run]
    theirs = softmax_attention(attention, x, LENGTHS, biases=each, window=window)
    assert same(attention(x, ctx), theirs)


def test_a_bias_comes_after_the_cap() -> None:
    attention, x, ctx = make(Naive, softcap=0.5), tokens(), make_ctx(LENGTHS)
    tables = Leaning(ctx, 3)
    ctx.pos["none"] = tables
    each = [one for run in tables.added for one in run]
    assert same(
        attention(x, ctx), softmax_attention(attention, x, LENGTHS, biases=each, softcap=0.5)
    )


@backends
def test_torch_s_own_attention_in_float64(cls: type[Attention]) -> None:
    attention, x = make(cls), tokens()
    rows = []
    for part in x.split(LENGTHS):
        q, k, v = (
            w(part).unflatten(1, (3, 4)).transpose(0, 1)
            for w in (attention.q, attention.k, attention.v)
        )
        rows.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    assert same(attention(x, make_ctx(LENGTHS)), attention.out(torch.cat(rows)))


@backends
@pytest.mark.parametrize("options", [{}, {"window": 1}], ids=str)
def test_dense_rows_are_masked(cls: type[Attention], options: dict[str, Any]) -> None:
    attention = make(cls, **options)
    valid = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).bool()
    x = tokens(16)
    ctx = dense(valid, (4, 4), torch.device("cpu"))
    ctx.pos["none"] = Tables()
    y = attention(x, ctx)
    assert bool(y.isfinite().all())
    lengths = valid.sum(1).tolist()
    assert same(y[valid.flatten()], attention(x[valid.flatten()], make_ctx(lengths)))


@backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_model_stays_near(cls: type[Attention], dtype: torch.dtype) -> None:
    attention, x = make(cls, window=2, n_kv_heads=1, qk_norm="head"), tokens()
    exact = attention(x, make_ctx(LENGTHS))
    y = attention.to(dtype)(x.to(dtype), make_ctx(LENGTHS))
    assert y.dtype == dtype
    assert float((y.double() - exact).detach().abs().max()) < 0.05


@pytest.mark.parametrize("attention", ["naive", "sdpa", "flex", "linear", "fnet"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_stacks_in_other_dtypes(attention: str, dtype: torch.dtype) -> None:
    stack = build(f"attention={attention}", "model.n_layers=1", dtype=dtype)
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.requires_grad_()
    y = stack(x, torch.tensor([[True] * 5, [True, True, False, False, False]]))
    y.float().sum().backward()
    assert y.dtype == dtype and x.grad is not None and bool(x.grad.isfinite().all())


def test_flex_in_training_leaks_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    attention = make(Flex, window=1, softcap=2.0)
    for lengths in ([12], [5, 7], LENGTHS):
        attention(tokens(), make_ctx(lengths)).sum().backward()
    assert not recwarn.list


# Flash: its kernels need CUDA; what is refused does not.


def wide(**options: Any) -> Flash:
    site = make_site(d_model=32, n_heads=2, slot="attention")
    return Flash(AttentionOptions(**options), site)


@pytest.mark.parametrize(("width", "heads"), [(12, 3), (1024, 2)])
def test_flash_takes_some_head_widths(width: int, heads: int) -> None:
    with pytest.raises(ConfigError) as error:
        Flash(AttentionOptions(), make_site(d_model=width, n_heads=heads))
    assert str(error.value) == (
        f"model.n_heads={heads}: attention=flash needs a head width of 8, 16, ... 256; {width} / "
        f"{heads} is {width // heads}. Try another model.n_heads, or attention=sdpa."
    )


def test_flash_needs_a_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    with pytest.raises(ConfigError, match="torch .* has no variable-length attention. Try"):
        wide()


def test_flash_counts_a_window_by_place() -> None:
    ctx = make_ctx([3])
    ctx.positions, ctx.counted = ctx.positions * 2, False
    with pytest.raises(InputError, match="flash counts attention.window by place. Leave them out"):
        wide(window=1)(torch.randn(3, 32), ctx)


def test_flash_without_tokens() -> None:
    assert wide()(torch.randn(0, 32), make_ctx([0])).shape == (0, 32)


@pytest.mark.parametrize("window", [None, 2])
def test_flash_hands_its_kernel_what_naive_sees(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_in(q: Tensor, k: Tensor, v: Tensor, *ends: Any, window_size: tuple[int, int]) -> Any:
        assert q.dtype == k.dtype == v.dtype
        assert [end.tolist() for end in ends[:2]] == [[0, 3, 6, 7, 7, 12]] * 2
        assert ends[0].dtype == torch.int32 and ends[2:] == (5, 5)
        rows, (left, right) = [], window_size
        for part in zip(*(t.split(LENGTHS) for t in (q, k, v)), strict=True):
            a, b, c = (t.transpose(0, 1) for t in part)
            n = a.shape[1]
            seen = torch.ones(n, n, dtype=torch.bool)
            if left >= 0:
                seen = seen.triu(-left).tril(right)
            rows.append(F.scaled_dot_product_attention(a, b, c, seen).transpose(0, 1))
        return torch.cat(rows)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
    flash = wide(window=window, n_kv_heads=1).double()
    naive = Naive(AttentionOptions(window=window, n_kv_heads=1), make_site(d_model=32))
    naive.double().load_state_dict(flash.state_dict())
    x = torch.randn(12, 32, generator=torch.Generator().manual_seed(0)).double()
    assert same(flash(x, make_ctx(LENGTHS)), naive(x, make_ctx(LENGTHS)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash runs on CUDA alone")
@pytest.mark.parametrize("name", ["flash", "flex"])
@pytest.mark.parametrize("window", ["null", "2"])
def test_on_cuda_kernels_are_naive(name: str, window: str) -> None:
    def run(attention: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        stack = build(
            f"attention={attention}", f"attention.window={window}", device="cuda", dtype=dtype
        )
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
        x = x.to(device="cuda", dtype=dtype).requires_grad_()
        y = stack(x, lengths=LENGTHS)
        y.float().square().mean().backward()
        assert x.grad is not None
        return y.detach().double(), x.grad.double()

    for ours, theirs in zip(run(name, torch.bfloat16), run("naive", torch.float64), strict=True):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 0.05
