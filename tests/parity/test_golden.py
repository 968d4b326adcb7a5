"""Blocks and stacks against values that NumPy computed in float64 from the equations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import encoderkit

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = {
    "WQ": "attention.branch.q.weight",
    "WK": "attention.branch.k.weight",
    "WV": "attention.branch.v.weight",
    "WO": "attention.branch.out.weight",
    "W1": "ffn.branch.up.weight",
    "bf1": "ffn.branch.up.bias",
    "W2": "ffn.branch.down.weight",
    "bf2": "ffn.branch.down.bias",
}
STACKS = {
    "post_ln_gelu": ["norm=layernorm", "placement=post", "ffn=gelu", "ffn.width=40"],
    "pre_ln_gelu": ["norm.eps=1e-5", "ffn=gelu", "ffn.width=40", "model.final_norm=false"],
    "pre_rms_swiglu": ["norm=rmsnorm", "ffn=swiglu", "ffn.width=40", "model.final_norm=false"],
}


def weights(layers: list[dict[str, Any]], request: list[str]) -> dict[str, Tensor]:
    """Return the state dict that holds the golden weights; theirs multiply from the right."""
    norm = "after" if "placement=post" in request else "before"
    names = NAMES | {
        "g1": f"attention.placement.{norm}.weight",
        "b1": f"attention.placement.{norm}.bias",
        "g2": f"ffn.placement.{norm}.weight",
        "b2": f"ffn.placement.{norm}.bias",
    }
    if "ffn=swiglu" in request:
        names |= {"W1": "ffn.branch.gate.weight", "W3": "ffn.branch.up.weight"}
        del names["b1"], names["b2"]  # of no use under RMSNorm
    return {
        f"layers.{n}.{names[old]}": torch.from_numpy(np.array(value).T)
        for n, layer in enumerate(layers)
        for old, value in layer.items()
        if old in names
    }


@torch.no_grad()
def error(request: list[str], layers: list[dict[str, Any]], x: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, over a lone sequence and padded rows, holes among them."""
    stack = encoderkit.build(*request, "position=none", dtype=torch.float64)
    stack.load_state_dict(weights(layers, request))
    t, d = x.shape
    grid = torch.full((3, t + 4, d), float("nan"), dtype=torch.float64)
    valid = torch.zeros(3, t + 4, dtype=torch.bool)
    valid[0, :t] = valid[1, -t:] = True
    valid[2, torch.arange(t) + (torch.arange(t) > 1) * 3] = True
    grid[valid] = x.repeat(3, 1)
    padded = stack(grid, valid)
    lone = stack(x[None])
    packed = stack(x.repeat(2, 1), lengths=[t, t])
    dense = stack.eval().use_layout("dense")(grid, valid)
    assert padded[~valid].abs().max() == 0
    outs = [lone, packed.view(2, t, d), padded[valid].view(3, t, d), dense[valid].view(3, t, d)]
    return max(float((out - wanted).abs().max()) for out in outs)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_the_block(attention: str) -> None:
    golden = json.loads((GOLDEN / "encoder_block_post_relu.json").read_text())
    request = ["placement=post", "ffn=relu", f"attention={attention}", "model.d_model=8"]
    request += ["model.n_layers=1", "model.n_heads=2", "model.d_ff=32"]
    x, wanted = (torch.tensor(golden[key], dtype=torch.float64) for key in ("X", "out"))
    assert error(request, [golden["params"]], x, wanted) < 1e-12


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("name", STACKS)
def test_the_stacks(name: str, attention: str) -> None:
    golden = np.load(GOLDEN / f"encoder_stack_{name}.npz")
    layers: list[dict[str, Any]] = [{} for _ in range(6)]
    for key in golden.files:
        if key.startswith("layers."):
            _, n, tensor = key.split(".")
            layers[int(n)][tensor] = golden[key]
    request = [*STACKS[name], f"attention={attention}", "model.d_model=12", "model.n_layers=6"]
    request += ["model.n_heads=3"]
    x, wanted = torch.from_numpy(golden["X"]), torch.from_numpy(golden["out"])
    assert error(request, layers, x, wanted) < 1e-10
