"""The mixture of experts: what it computes, what it costs, and where its loss goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.cli import main
from encoderkit.errors import ConfigError
from encoderkit.nn import Out
from encoderkit.nn.context import dense
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue_ffns import GLUOptions, MLPOptions, MoEOptions
from encoderkit_builtin.ffns import GLU, MLP, MoE


def made(**options: Any) -> MoE:
    """Return a mixture with routers of some spread, in float64."""
    torch.manual_seed(1)
    moe = MoE(MoEOptions(**options), make_site(d_model=8, d_ff=12)).double()
    with torch.no_grad():
        moe.router.weight.copy_(torch.randn(moe.router.weight.shape))
    return moe


def tokens(n: int = 40) -> Tensor:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_each_token_is_the_weighted_sum_of_its_best_experts(gated: bool, top_k: int) -> None:
    moe, x, ctx = made(experts=5, top_k=top_k, gated=gated, bias=True), tokens(), make_ctx([40])
    y = moe(x, ctx)
    for n in range(40):
        odds = (moe.router.weight @ x[n]).softmax(0)
        order = sorted(range(5), key=lambda e: -odds[e].item())
        wanted = sum(odds[e] * moe.experts[e](x[n : n + 1], ctx)[0] for e in order[:top_k])
        assert torch.allclose(y[n], wanted, rtol=0, atol=1e-12)


def test_experts_are_ffns_of_either_shape() -> None:
    site = make_site(d_model=8, d_ff=24)
    mixes = (MoE(MoEOptions(gated=gated, act="silu"), site).experts[3] for gated in (False, True))
    alone = MLP(MLPOptions(bias=False), site), GLU(GLUOptions(), site)
    for expert, other in zip(mixes, alone, strict=True):
        assert type(expert) is type(other) and expert.act == "silu"
        shapes = ({k: t.shape for k, t in m.state_dict().items()} for m in (expert, other))
        assert next(shapes) == next(shapes)


def test_one_expert_is_that_expert() -> None:
    moe, x = made(experts=1, top_k=1), tokens()
    assert torch.allclose(moe(x, make_ctx([40])), moe.experts[0](x, make_ctx([40])), atol=1e-12)


@pytest.mark.parametrize("top_k", [1, 2])
def test_an_expert_sees_its_own_tokens_alone_and_none_is_dropped(top_k: int) -> None:
    moe, seen = made(experts=4, top_k=top_k), []
    for expert in moe.experts:
        expert.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    with torch.no_grad():  # all prefer one expert: it takes them all
        moe.router.weight.zero_()
    y = moe(tokens(), make_ctx([40]))
    assert seen == [40] * top_k + [0] * (4 - top_k)
    assert bool((y.abs().amax(1) > 0).all())


def test_padding_goes_nowhere() -> None:
    moe, x, seen = made(experts=3), tokens(), []
    valid = torch.rand(4, 10, generator=torch.Generator().manual_seed(2)) < 0.5
    valid[1] = False
    for expert in moe.experts:
        expert.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    loud, quiet = Out(), Out()
    ctx = dense(valid, (4, 10), torch.device("cpu"))
    ctx.out = loud
    y = moe(x, ctx)
    real = valid.flatten()
    assert sum(seen) == 2 * int(real.sum()) and not y[~real].any()
    ctx = make_ctx([int(real.sum())])
    ctx.out = quiet
    assert torch.allclose(moe(x[real], ctx), y[real], rtol=0, atol=1e-12)
    assert loud.losses["balance"].item() == pytest.approx(quiet.losses["balance"].item(), rel=1e-12)
    assert torch.isfinite(quiet.losses["balance"])


def balance(moe: MoE, x: Tensor) -> Tensor:
    ctx, out = make_ctx([len(x)]), Out()
    ctx.out = out
    moe(x, ctx)
    assert out.losses.keys() == {"balance"}
    return out.losses["balance"]


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_balance_loss_is_its_equation(top_k: int) -> None:
    """E sum_e f_e P_e times its weight: f_e the share of choices, P_e the mean probability."""
    moe, x = made(experts=4, top_k=top_k, balance=0.5), tokens()
    odds = (x @ moe.router.weight.T).softmax(1)
    share, mean = [0.0] * 4, odds.mean(0).tolist()
    for row in odds:
        for e in sorted(range(4), key=lambda e: -row[e].item())[:top_k]:
            share[e] += 1 / (40 * top_k)
    wanted = 0.5 * 4 * sum(f * p for f, p in zip(share, mean, strict=True))
    assert balance(moe, x).item() == pytest.approx(wanted, rel=1e-12)


def test_the_balance_loss_is_least_where_all_is_even_and_pulls_there() -> None:
    moe = made(experts=8, top_k=1, balance=1.0)
    with torch.no_grad():
        moe.router.weight.copy_(9 * torch.eye(8))
    assert balance(moe, torch.eye(8).double()).item() == pytest.approx(1)
    one = torch.eye(8).double()[:1].expand(8, 8)
    assert 7.9 < balance(moe, one).item() < 8
    (pull,) = torch.autograd.grad(balance(moe, one), [moe.router.weight])
    assert pull[0, 0] > 0 and bool((pull[1:, 0] < 0).all())


def test_without_tokens_the_loss_is_0() -> None:
    assert balance(made(), tokens(0)).item() == 0


def test_equals_are_chosen_from_the_front() -> None:
    moe, seen = made(experts=4, top_k=2), []
    for n, expert in enumerate(moe.experts):
        expert.register_forward_pre_hook(lambda _, args, n=n: seen.append((n, len(args[0]))))
    moe(torch.zeros(3, 8).double(), make_ctx([3]))
    assert seen == [(0, 3), (1, 3), (2, 0), (3, 0)]


def test_experts_drop_by_masks_of_their_own() -> None:
    paths = [expert.dropout.path for expert in made(dropout=0.5).experts]
    assert len(set(paths)) == 8 and paths[0] == "layers.0.ffn.experts.0"


def test_more_choices_than_experts_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        encoderkit.build("ffn=moe", "ffn.experts=4", "ffn.top_k=5")
    (fault,) = error.value.faults
    assert (fault.where, fault.problem) == ("ffn.top_k=5", "must be at most ffn.experts=4.")
    assert fault.hint == "Try ffn.top_k=4."


def test_routing_is_float32_in_a_model_of_bfloat16() -> None:
    moe, x = made(experts=6), tokens().to(torch.bfloat16)
    moe.to(torch.bfloat16)
    exact = (x.double() @ moe.router.weight.double().T).softmax(1)
    assert moe.odds(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        found = moe.odds(x)
    assert torch.allclose(found.double(), exact, rtol=0, atol=1e-6)


def test_the_loss_reaches_training_metrics_and_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["model.n_layers=2", "model.d_model=16", "model.n_heads=2", "ffn=moe", "ffn.experts=4"]
    small += ["train=smoke", "train.steps=20", "train.warmup=1", "train.judge_stall=false"]
    last, even = {}, {}
    for weight in (0.0, 3.0):
        assert main(["train", *small, f"ffn.balance={weight}", f"sweep.dir=at{weight}"]) == 0
        (place,) = Path(f"at{weight}").glob("*/record.json")
        lines = (place.parent / "metrics.jsonl").read_text().splitlines()
        logged = [m for m in map(json.loads, lines) if m["name"] == "train/part/balance"]
        assert [m["step"] for m in logged] == list(range(1, 21))
        last[weight] = json.loads(place.read_text())["metrics"]["part/balance"]
        assert last[weight] == logged[-1]["value"]
        even[weight] = [m["value"] for m in logged]
    assert even[0.0] == [0.0] * 20
    assert last[3.0] < even[3.0][0] and last[3.0] / 6 < 1.1  # two layers, each at least 3
