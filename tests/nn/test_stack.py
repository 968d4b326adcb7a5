from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from encoderkit.api import Traits
from encoderkit.config.request import configure
from encoderkit.config.schema import Config
from encoderkit.errors import InputError
from encoderkit.nn import Branch, Ctx, EncoderStack, Norm, Out, Placement, Site, Tables
from encoderkit.nn.build import build_stack
from encoderkit.nn.context import packed
from encoderkit.nn.stack import enter_padded
from encoderkit_builtin.norms import NoNorm

HEADLESS = ("model.d_model=16", "model.n_layers=2")
SMALL = (*HEADLESS, "model.n_heads=2")
VARIANTS = {
    "default": (),
    "naive": ("attention=naive", "position=none", "placement=post"),
    "rope": ("position=rope", "norm=rmsnorm", "ffn=swiglu", "attention.bias=true"),
    "learned": ("position=learned", "placement=none", "ffn=geglu"),
    "batchnorm": ("norm=batchnorm", "placement=post", "ffn=silu"),
    "bare": ("norm=none", "attention=none", "position=none"),
}
variants = pytest.mark.parametrize("name", VARIANTS)


@functools.cache
def request(name: str, *more: str) -> Config:
    sizes = HEADLESS if name == "bare" else SMALL
    return configure(*sizes, *VARIANTS[name], *more)


def make(name: str, *more: str, dtype: torch.dtype = torch.float64) -> EncoderStack:
    return build_stack(request(name, *more), dtype=dtype)


def batch(valid: Tensor, fill: float = 0.0) -> Tensor:
    """Return tokens (B, S, 16) that depend on their slot, with `fill` in the padding."""
    x = torch.randn(*valid.shape, 16, generator=torch.Generator().manual_seed(0)).double()
    return x.masked_fill(~valid[..., None], fill)


def ragged() -> Tensor:
    """Return validity (5, 9): full, right, left padding, holes, and a row without a token."""
    valid = torch.ones(5, 9, dtype=torch.bool)
    valid[1, 4:] = valid[2, :3] = valid[3, ::2] = valid[4] = False
    return valid


def loss_gradients(stack: EncoderStack, x: Tensor, valid: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = stack(x, valid)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return list(torch.autograd.grad((y * weight).sum(), [x, *stack.parameters()]))


@variants
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_a_row_in_its_batch_equals_the_row_alone(name: str, rows: list[list[bool]]) -> None:
    valid = torch.tensor(rows)
    stack, x = make(name).eval(), batch(valid)
    with torch.no_grad():
        y = stack(x, valid)
        dense = make(name).eval().use_layout("dense")(x, valid)
        packed = stack(x[valid], lengths=valid.sum(1))
        alone = [stack(row[keep][None])[0] for row, keep in zip(x, valid, strict=True)]
    assert y.shape == x.shape and bool((y[~valid] == 0).all())
    assert torch.allclose(y, dense, rtol=0, atol=1e-12)
    assert torch.allclose(y[valid], packed, rtol=0, atol=1e-12)
    assert torch.allclose(y[valid], torch.cat(alone), rtol=0, atol=1e-12)


@variants
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30])
def test_what_stands_in_the_padding_reaches_nothing(name: str, train: bool, fill: float) -> None:
    valid = ragged()
    clean, dirty = (make(name).train(train) for _ in range(2))
    assert torch.equal(clean(batch(valid), valid), dirty(batch(valid, fill), valid))
    pairs = zip(
        loss_gradients(clean, batch(valid), valid),
        loss_gradients(dirty, batch(valid, fill), valid),
        strict=True,
    )
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(clean.buffers(), dirty.buffers(), strict=True))


@variants
def test_padding_reaches_nothing_in_the_dense_layout(name: str) -> None:
    valid, stack = ragged(), make(name).eval().use_layout("dense")
    pairs = zip(
        loss_gradients(stack, batch(valid), valid),
        loss_gradients(stack, batch(valid, float("nan")), valid),
        strict=True,
    )
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in pairs)


@variants
@pytest.mark.parametrize("layout", ["packed", "dense"])
def test_gradients_are_those_without_the_empty_row(name: str, layout: Any) -> None:
    valid, stack = ragged(), make(name).eval().use_layout(layout)
    x = batch(valid)
    whole = loss_gradients(stack, x, valid)
    assert bool((whole[0][~valid] == 0).all())
    y = stack(x[:4], valid[:4])
    weight = torch.linspace(-1, 1, x.numel(), dtype=y.dtype).view_as(x)[:4]
    fewer = torch.autograd.grad((y * weight).sum(), list(stack.parameters()))
    assert all(
        torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(whole[1:], fewer, strict=True)
    )


@variants
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 3)])
@pytest.mark.parametrize("train", [True, False])
def test_a_batch_of_nothing(name: str, shape: tuple[int, int], train: bool) -> None:
    stack = make(name).train(train)
    before = [buffer.clone() for buffer in stack.buffers()]
    x = torch.full((*shape, 16), float("nan"), dtype=torch.float64, requires_grad=True)
    y = stack(x, torch.zeros(shape, dtype=torch.bool))
    assert y.shape == x.shape and bool((y == 0).all())
    y.sum().backward()
    grads = [p.grad for p in stack.parameters() if p.grad is not None]
    assert grads and all(bool((grad == 0).all()) for grad in grads)
    assert all(torch.equal(a, b) for a, b in zip(before, stack.buffers(), strict=True))
    assert stack(x[:0].flatten(0, 1), lengths=[]).shape == (0, 16)
    assert stack(x[:, :0]).shape == (shape[0], 0, 16)


@variants
def test_a_full_batch_needs_no_valid(name: str) -> None:
    valid = torch.ones(3, 4, dtype=torch.bool)
    stack, x = make(name).eval(), batch(valid)
    assert torch.equal(stack(x), stack(x, valid))
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(stack(strided), stack(x))


def test_packing_a_full_batch_is_a_view() -> None:
    x = torch.rand(3, 4, 16)
    for valid in (None, torch.ones(3, 4, dtype=torch.bool)):
        door = enter_padded(x, valid, None)
        assert door.tokens.data_ptr() == x.data_ptr()
        assert door.leave(door.tokens).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope"])
@pytest.mark.parametrize("layout", ["packed", "dense"])
def test_positions_of_the_caller_replace_the_count(position: str, layout: Any) -> None:
    stack = make("default", f"position={position}").eval().use_layout(layout)
    valid = ragged()
    x, count = batch(valid), (valid.cumsum(1) - 1).clamp(min=0)
    assert torch.equal(stack(x, valid, positions=count), stack(x, valid))
    assert not torch.allclose(stack(x, valid, positions=count.flip(0)), stack(x, valid))
    for garbage in (3, 10**6, -5):
        positions = count.masked_fill(~valid, garbage)
        assert torch.equal(stack(x, valid, positions=positions), stack(x, valid))


@variants
@pytest.mark.parametrize("again", ["deepcopy", "pickle", "state_dict", "torch.save"])
def test_a_copy_computes_the_same_bits(name: str, again: str) -> None:
    stack, valid = make(name), ragged()
    stack(batch(valid), valid)  # moves the running statistics of a BatchNorm
    ways: dict[str, Callable[[], EncoderStack]] = {
        "deepcopy": lambda: copy.deepcopy(stack),
        "pickle": lambda: pickle.loads(pickle.dumps(stack)),
        "torch.save": lambda: saved(stack),
        "state_dict": lambda: loaded(make(name, "seed=5"), stack),
    }
    other = ways[again]()
    for train in (False, True):
        ours, theirs = (s.train(train)(batch(valid), valid) for s in (stack, other))
        assert torch.equal(ours, theirs)
    loaded(stack, other)


def saved(stack: EncoderStack) -> EncoderStack:
    file = io.BytesIO()
    torch.save(stack, file)
    file.seek(0)
    found: EncoderStack = torch.load(file, weights_only=False)
    return found


def loaded(into: EncoderStack, source: EncoderStack) -> EncoderStack:
    into.load_state_dict(source.state_dict(), strict=True)
    return into


@variants
def test_eval_draws_nothing_and_repeats_itself(name: str) -> None:
    dropout = [] if name == "bare" else ["attention.dropout=0.5"]
    stack = make(name, "ffn.dropout=0.5", *dropout).eval()
    valid, before = ragged(), torch.get_rng_state()
    x = batch(valid)
    assert torch.equal(stack(x, valid), stack(x, valid, step=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_hangs_on_the_step_and_not_on_the_generator() -> None:
    stack = make("default", "ffn.dropout=0.5", "attention.dropout=0.5")
    valid, before = ragged(), torch.get_rng_state()
    x = batch(valid)
    first = stack(x, valid, step=3)
    assert torch.equal(first, stack(x, valid, step=3))
    assert not torch.equal(first, stack(x, valid, step=4))
    assert torch.equal(torch.get_rng_state(), before)
    other = make("default", "ffn.dropout=0.5", "attention.dropout=0.5", "seed=1", "seed_init=0")
    assert not torch.equal(first, other(x, valid, step=3))


@variants
@pytest.mark.parametrize("train", [True, False])
def test_autocast_gives_one_dtype_with_and_without_gradients(name: str, train: bool) -> None:
    stack, valid = make(name, dtype=torch.float32).train(train), ragged()
    x = batch(valid).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = stack(x, valid)
        with torch.no_grad():
            bare = stack(x, valid)
    assert y.dtype == bare.dtype and bool(y.isfinite().all())
    y.float().square().sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in stack.parameters())


@torch.no_grad()
@variants
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_low_precision_stack_runs(name: str, dtype: torch.dtype) -> None:
    stack, valid = make(name).eval().to(dtype), ragged()
    y, exact = stack(batch(valid).to(dtype), valid), make(name).eval()(batch(valid), valid)
    assert y.dtype == dtype
    assert float((y - exact).abs().max()) < 0.03 * float(exact.abs().max())


def test_weights_are_recorded_for_each_sequence_where_somebody_listens() -> None:
    stack, valid = make("naive"), ragged()
    stack(batch(valid), valid, out=(out := Out()))
    assert list(out.records) == ["layers.0.attention", "layers.1.attention"]
    for weights in out.records.values():
        assert [tuple(w.shape) for w in weights] == [(2, n, n) for n in (9, 4, 6, 4, 0)]
        assert all(torch.allclose(w.sum(2), w.new_ones(w.shape[:2])) for w in weights)


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_what_does_not_fit_is_refused() -> None:
    stack, x = make("default"), batch(torch.ones(2, 3, dtype=torch.bool))
    flat, valid = x.view(6, 16), torch.ones(2, 3, dtype=torch.bool)
    refused(lambda: stack(x[..., :8]), "(B, S, 16)", "(2, 3, 8)")
    refused(lambda: stack(flat), "with lengths", "without lengths")
    refused(lambda: stack(x, lengths=[3, 3]), "(2, 3, 16) with lengths")
    refused(lambda: stack(x, valid.double()), "torch.bool", "torch.float64", "valid.bool()")
    refused(lambda: stack(x, valid[:, :2]), "valid: must be (B, S)", "(2, 2)")
    refused(lambda: stack(flat, valid, lengths=[3, 3]), "Packed tokens need no valid")
    refused(lambda: stack(flat, lengths=[3, 4]), "add up to the 6 tokens", "add up to 7")
    refused(lambda: stack(flat, lengths=[-1, 7]), "at least 0", "the least is -1")
    for odd in ([2.0, 4.0], torch.tensor([2.0, 4.0]), torch.tensor([[2, 4]]), torch.tensor(6), "6"):
        refused(lambda: stack(flat, lengths=odd), "lengths: must be B whole numbers")  # noqa: B023
    refused(lambda: stack(x, positions=torch.arange(3)), "one for each slot", "(3,)")
    refused(lambda: stack(x, positions=torch.rand(2, 3)), "int64 or int32", "torch.float32")
    negative = torch.tensor([[0, 1, 2], [-1, 0, 1]])
    refused(lambda: stack(x, positions=negative), "the least is -1")
    refused(lambda: stack(flat, lengths=[3, 3], positions=negative.view(6)), "the least is -1")
    stack.use_layout("dense")
    refused(lambda: stack(x, positions=negative), "the least is -1")
    refused(lambda: stack(flat, lengths=[3, 3]), "lengths", "dense")
    refused(lambda: stack.use_layout("jagged"), "'jagged'", "packed or dense")  # type: ignore[arg-type]


def test_dense_training_of_a_batch_coupled_part_is_refused_by_name() -> None:
    stack, x = make("batchnorm").use_layout("dense"), batch(ragged())
    refused(lambda: stack(x, ragged()), "norm=batchnorm", 'use_layout("packed")')
    assert stack.eval()(x, ragged()).shape == x.shape


def test_a_layout_that_a_part_does_not_know_is_refused_by_name(
    stranger: Callable[..., Any],
) -> None:
    class Own(NoNorm):
        pass

    only = Traits(layouts=frozenset({"packed"}))
    stack = build_stack(stranger("norm", Own, traits=only))
    assert stack.use_layout("packed") is stack
    refused(lambda: stack.use_layout("dense"), "norm=mine", "packed layout only", "another norm")


def test_positions_are_prepared_once_and_every_part_sees_one_context(
    stranger: Callable[..., Any],
) -> None:
    seen: list[Any] = []

    class Watch(Norm):
        def forward(self, x: Tensor, ctx: Any) -> Tensor:
            seen.append(ctx)
            return x

    stack = build_stack(stranger("norm", Watch, *SMALL, "position=rope"))
    stack(torch.rand(2, 3, 16), step=11)
    assert len(seen) == 5 and all(ctx is seen[0] for ctx in seen)
    assert (seen[0].layout, seen[0].shape, seen[0].lengths) == ("packed", (2, 3), [3, 3])
    assert seen[0].step == 11 and list(seen[0].pos) == ["rope"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="counts waits for a GPU")
@variants
def test_a_forward_waits_for_the_device_at_most_once(name: str) -> None:
    stack = make(name, dtype=torch.float32).cuda()
    valid = ragged().cuda()
    x = torch.rand(5, 9, 16, device="cuda")
    stack(x, valid).sum().backward()
    for arguments, waits in ((x, valid), 1), ((x,), 0):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning) as caught:
                torch.ones((), device="cuda").item()
                stack(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len([w for w in caught if "synchron" in str(w.message)]) - 1 <= waits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.0]],), "x: must be a tensor; it is list"),
        ((None,), "x: must be a tensor; it is NoneType"),
        ((torch.zeros(1, 2, 64), [[True, True]]), "valid: must be a tensor; it is list"),
    ],
)
def test_what_is_no_tensor_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_stack(configure("model.n_layers=1"))(*arguments)


def test_parallel_branches_share_a_norm_and_a_residual() -> None:
    stack = build_stack(configure(*SMALL, "model.sublayers=[attention+ffn]"), dtype=torch.float64)
    assert "layers.0.attention_ffn.branch.attention.q.weight" in stack.state_dict()
    (sublayer,) = stack.layers[0].values()  # type: ignore[operator]
    x, ctx = torch.randn(5, 16).double(), packed([5], (1, 5), torch.device("cpu"))
    ctx.pos = {"sinusoidal": Tables()}
    inner = sublayer.placement.before(x, ctx)
    attended, fed = (sublayer.branch.get_submodule(n)(inner, ctx) for n in ("attention", "ffn"))
    torch.testing.assert_close(sublayer(x, ctx), x + attended + fed)


def test_a_scaled_branch_counts_in_part() -> None:
    stack = build_stack(configure(*HEADLESS, "model.sublayers=[0.5*ffn]"), dtype=torch.float64)
    (sublayer,) = stack.layers[0].values()  # type: ignore[operator]
    x, ctx = torch.randn(5, 16).double(), packed([5], (1, 5), torch.device("cpu"))
    inner = sublayer.placement.before(x, ctx)
    torch.testing.assert_close(sublayer(x, ctx), x + sublayer.branch(inner, ctx) / 2)


class Twin(Placement):
    """Two streams: what goes in, and the sum of what branches make of the first."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.norm = site.norm()

    def enter(self, x: Tensor, ctx: Ctx) -> Tensor:
        return torch.stack([x, torch.zeros_like(x)], 1)  # (N, 2, D)

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        y = f(self.norm(x[:, 0], ctx), ctx)
        return torch.stack([x[:, 0] + y, x[:, 1] + y], 1)  # (N, 2, D)

    def leave(self, x: Tensor, final: Branch, ctx: Ctx) -> Tensor:
        return x[:, 0] + final(x[:, 1], ctx)  # (N, D)


def test_streams_are_made_once_and_end_once(stranger: Callable[..., Config]) -> None:
    config = stranger("placement", Twin, *SMALL, "model.final_norm=true", "position=none")
    stack = build_stack(config, dtype=torch.float64)
    x = torch.randn(1, 5, 16).double()
    plain = build_stack(
        configure(*SMALL, "model.final_norm=false", "position=none"), dtype=torch.float64
    )
    # Twin is pre-norm with the sum of all branches beside it.
    plain.load_state_dict(
        {
            name.replace("placement.norm", "placement.before"): value
            for name, value in stack.state_dict().items()
            if not name.startswith("final")
        }
    )
    stream = plain(x)
    wanted = stream + F.layer_norm(stream - x, (16,), eps=1e-6)
    torch.testing.assert_close(stack(x), wanted)


def test_other_placements_join_the_streams_between_them(stranger: Callable[..., Config]) -> None:
    made = stranger("placement", Twin, *SMALL, "position=none")
    rules = configure(*SMALL, "model.layers=[{at:1,placement:post}]").model.layers
    config = replace(made, model=replace(made.model, layers=rules))
    stack = build_stack(config, dtype=torch.float64)
    assert isinstance(stack.final, NoNorm)  # the last placement decides
    x, ctx = torch.randn(5, 16).double(), packed([5], (1, 5), torch.device("cpu"))
    ctx.pos = {"none": Tables()}
    first, second = (list(layer.values()) for layer in stack.layers)  # type: ignore[operator]
    y = first[0].placement.enter(x, ctx)
    for sublayer in first:
        y = sublayer(y, ctx)
    y = y[:, 0] + y[:, 1]
    for sublayer in second:
        y = sublayer(y, ctx)
    torch.testing.assert_close(stack(x[None])[0], y)


def test_a_norm_before_the_first_layer() -> None:
    stack = build_stack(configure(*SMALL, "model.embed_norm={eps:1e-5}"), dtype=torch.float64)
    seen: list[Tensor] = []
    stack.layers[0]["attention"].register_forward_pre_hook(  # type: ignore[index, union-attr]
        lambda _, inputs: seen.append(inputs[0])
    )
    stack(torch.randn(1, 4, 16).double() * 9)
    torch.testing.assert_close(seen[0].std(1, correction=0), torch.ones(4).double())
    assert "embed_norm.weight" in stack.state_dict()
