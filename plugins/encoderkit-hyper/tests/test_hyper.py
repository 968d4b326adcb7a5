from __future__ import annotations

import pytest
import torch

import encoderkit
from encoderkit.testing import make_ctx, make_site
from encoderkit_hyper import HyperOptions
from encoderkit_hyper.placement import Hyper

WIDE = torch.float64


def stack(*request: str) -> torch.nn.Module:
    return encoderkit.build(*request, "norm.eps=1e-12", "model.n_layers=3", dtype=WIDE)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("choice", ["hyper", "hyper_dynamic"])
@pytest.mark.parametrize("streams", [1, 4])
def test_it_starts_as_pre_norm(choice: str, streams: int) -> None:
    own = stack(f"placement={choice}", f"placement.streams={streams}")
    x, pre = tokens(2, 7, 64), stack("placement=pre")
    # Not 0, for the eps of the final norm, which sees n times the stream.
    torch.testing.assert_close(own(x), pre(x), rtol=0, atol=1e-9)


def test_autocast_leaves_the_streams_their_accuracy() -> None:
    built, x, ctx = stack("placement=hyper").float(), tokens(5, 64).float(), make_ctx([5])
    part = built.layers[0]["ffn"].placement
    with torch.autocast("cpu", torch.bfloat16):
        y = part(part.enter(x, ctx), lambda h, _: torch.zeros_like(h), ctx)
    assert torch.equal(y, part.enter(x, ctx))


def test_one_stream_is_a_weighted_residual() -> None:
    part = Hyper(HyperOptions(streams=1), make_site(d_model=4)).to(WIDE)
    with torch.no_grad():
        part.static.alpha.copy_(torch.tensor([[2.0, 3.0]]))
        part.static.beta.copy_(torch.tensor([5.0]))
    x, ctx = tokens(3, 4), make_ctx([3])
    y = part.leave(part(part.enter(x, ctx), lambda h, _: h.sin(), ctx), lambda h, _: h, ctx)
    expected = 3 * x + 5 * torch.nn.functional.layer_norm(2 * x, (4,)).sin()
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


def test_the_sublayers_read_the_streams_in_turn() -> None:
    built = encoderkit.build("placement=hyper", "placement.streams=4", "model.n_layers=3")
    named = built.state_dict().items()
    read = [t[:, 0].tolist() for name, t in named if name.endswith("placement.static.alpha")]
    assert read == [[float(i == k % 4) for i in range(4)] for k in range(6)]


def test_streams_are_carried_from_sublayer_to_sublayer() -> None:
    built = stack("placement=hyper", "position=none")
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in built.named_parameters():
            if name.endswith(("static.alpha", "static.beta")):
                p.add_(torch.randn(p.shape, dtype=WIDE, generator=draws))
    x, ctx = tokens(5, 64), make_ctx([5])
    streams = [x] * 4
    for sublayer in (sublayer for layer in built.layers for sublayer in layer.values()):
        part = sublayer.placement
        alpha, beta = part.static.alpha, part.static.beta
        heard = sum(alpha[i, 0] * streams[i] for i in range(4))
        told = sublayer.branch(part.before(heard, ctx), ctx)
        streams = [
            sum(alpha[i, 1 + j] * streams[i] for i in range(4)) + beta[j] * told for j in range(4)
        ]
    expected = built.final(sum(streams), ctx)
    torch.testing.assert_close(built(x, lengths=[5]), expected, rtol=0, atol=1e-11)
