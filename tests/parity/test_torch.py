"""Against what torch has: nn.TransformerEncoder, its fast path off, pre and post; nn.RMSNorm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import encoderkit
from encoderkit.testing import make_ctx


@pytest.fixture(autouse=True)
def slow_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def weights(theirs: nn.TransformerEncoder, norm: str) -> dict[str, Tensor]:
    """Return their weights under our names."""
    rename = {
        "self_attn.out_proj": "attention.branch.out",
        "linear1": "ffn.branch.up",
        "linear2": "ffn.branch.down",
        "norm1": f"attention.placement.{norm}",
        "norm2": f"ffn.placement.{norm}",
    }
    found = {}
    for name, tensor in theirs.state_dict().items():
        layer, path = name.split(".", 2)[:2], name.split(".", 2)[2] if name[0] == "l" else ""
        if name.startswith("norm."):
            found[name.replace("norm.", "final.")] = tensor
        elif path.startswith("self_attn.in_proj_"):
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                leaf = path.removeprefix("self_attn.in_proj_")
                found[f"layers.{layer[1]}.attention.branch.{letter}.{leaf}"] = part
        else:
            module, leaf = path.rsplit(".", 1)
            found[f"layers.{layer[1]}.{rename[module]}.{leaf}"] = tensor
    return found


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_values_and_gradients(placement: str, act: str, attention: str) -> None:
    torch.manual_seed(0)
    pre = placement == "pre"
    layer = nn.TransformerEncoderLayer(
        24, 4, 48, 0.0, act, 1e-6, batch_first=True, norm_first=pre, dtype=torch.float64
    )
    final = nn.LayerNorm(24, eps=1e-6, dtype=torch.float64) if pre else None
    theirs = nn.TransformerEncoder(layer, 3, final, enable_nested_tensor=False)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    ours = encoderkit.build(
        *[f"placement={placement}", f"ffn={act}", f"attention={attention}", "attention.bias=true"],
        *["position=none", "model.d_model=24", "model.d_ff=48", "model.n_heads=4"],
        dtype=torch.float64,
    )
    ours.load_state_dict(weights(theirs, "before" if pre else "after"))
    x = torch.randn(4, 9, 24, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(9) < torch.tensor([9, 4, 1, 6])[:, None]
    for train in (True, False):
        theirs.train(train)
        wanted = theirs(x, src_key_padding_mask=~valid)[valid]
        got = ours.train(train)(x, valid)[valid]
        assert (wanted - got).abs().max() < 1e-12
    probe = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad((wanted * probe).sum(), x, retain_graph=True)
    (own,) = torch.autograd.grad((got * probe).sum(), x)
    assert (gradient - own).abs().max() < 1e-12


def test_rms_norm() -> None:
    ours = encoderkit.build("norm=rmsnorm", "norm.eps=1e-5", dtype=torch.float64).final
    theirs = nn.RMSNorm(64, eps=1e-5, dtype=torch.float64)
    draws = torch.Generator().manual_seed(0)
    gain = torch.randn(64, generator=draws, dtype=torch.float64)
    x = torch.randn(7, 64, generator=draws, dtype=torch.float64) * 3
    pair = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    with torch.no_grad():
        for norm in (ours, theirs):
            norm.weight.copy_(gain)
    results = [ours(pair[0], make_ctx([7])), theirs(pair[1])]
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
    for y in results:
        y.sin().sum().backward()
    torch.testing.assert_close(pair[0].grad, pair[1].grad, atol=1e-12, rtol=0)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-12, rtol=0)
