"""torch.compile and torch.export of the dense layout, as in encoderkit/nn/stack.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import encoderkit
from encoderkit.nn import EncoderStack

VARIANTS = {
    "default": ("attention.dropout=0.1", "ffn.dropout=0.1"),
    "rope": ("position=rope", "norm=rmsnorm", "ffn=swiglu"),
    "learned": ("position=learned", "placement=post", "norm=batchnorm"),
    "alibi": ("position=alibi", "placement=residual2"),
    "t5": ("position=t5", "position.shared=false", "attention=naive"),
    "rezero": ("position=t5", "placement=rezero", "norm=none"),
    "moe": ("ffn=moe", "ffn.experts=3"),
    "naive": ("attention=naive", "position=none", "placement=none", "ffn=geglu"),
}
variants = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(name: str) -> EncoderStack:
    sizes = ("model.d_model=16", "model.n_heads=2", "model.n_layers=2")
    return encoderkit.build(*sizes, *VARIANTS[name]).eval().use_layout("dense")


def batch(b: int, s: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(b * 100 + s)
    valid = torch.rand(b, s) < 0.7
    valid[0] = False
    return torch.randn(b, s, 16), valid


@variants
def test_compiled_whole_it_computes_the_same(name: str) -> None:
    stack, (x, valid) = make(name), batch(3, 7)
    compiled = torch.compile(stack, fullgraph=True, backend="aot_eager")
    for arguments in ((x, valid), (x,)):
        assert torch.allclose(compiled(*arguments), stack(*arguments), rtol=0, atol=1e-6)
    ours, theirs = (s(x, valid).square().sum() for s in (stack, compiled))
    pairs = zip(
        *(torch.autograd.grad(y, list(stack.parameters())) for y in (ours, theirs)), strict=True
    )
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def test_lengths_do_not_multiply_graphs() -> None:
    counter = CompileCounter()
    compiled = torch.compile(make("rope"), fullgraph=True, backend=counter)
    with torch.no_grad():
        for s in range(3, 11):
            compiled(*batch(4, s))
    assert counter.frame_count <= 2


@variants
def test_exported_it_takes_any_batch_and_length(name: str) -> None:
    stack, (x, valid) = make(name), batch(3, 7)
    b = torch.export.Dim("b")
    s = torch.export.Dim("s", max=512) if name == "learned" else torch.export.Dim("s")
    shapes = {"x": {0: b, 1: s}, "valid": {0: b, 1: s}}
    exported = torch.export.export(stack, (x, valid), dynamic_shapes=shapes).module()
    for other in (batch(5, 11), batch(2, 4)):
        assert torch.allclose(exported(*other), stack(*other), rtol=0, atol=1e-6)
