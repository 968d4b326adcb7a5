from __future__ import annotations

import pytest
import torch

import encoderkit
from encoderkit.errors import ConfigError
from encoderkit.nn import Init
from encoderkit_builtin.catalogue import BertOptions
from encoderkit_builtin.inits import Bert, DeepNorm, Small, Torch, Xavier


def draws(init: Init, shape: tuple[int, int] = (300, 100)) -> list[torch.Tensor]:
    """Return a weight, its bias and an embedding."""
    tensors = [torch.full(shape, 9.0), torch.full(shape[:1], 9.0), torch.full(shape, 9.0)]
    init.weight(tensors[0], torch.Generator().manual_seed(0))
    init.bias(tensors[1], shape[1], torch.Generator().manual_seed(1))
    init.embedding(tensors[2], torch.Generator().manual_seed(2))
    return tensors


def test_xavier() -> None:
    weight, bias, embedding = draws(Xavier(None))
    assert abs(float(weight.std()) / (2 / 400) ** 0.5 - 1) < 0.02
    assert float(weight.abs().max()) > 3.5 * (2 / 400) ** 0.5  # normal, not uniform
    assert bool((bias == 0).all())
    assert abs(float(embedding.std()) - 1) < 0.02 and abs(float(embedding.mean())) < 0.02


def test_small() -> None:
    weight, bias, embedding = draws(Small(None))
    assert abs(float(weight.std()) / (2 / 500) ** 0.5 - 1) < 0.02
    assert float(weight.abs().max()) > 3.5 * (2 / 500) ** 0.5  # normal, not uniform
    assert bool((bias == 0).all())
    assert abs(float(embedding.std()) - 1) < 0.02 and abs(float(embedding.mean())) < 0.02


def test_small_is_xavier_where_the_ffn_widens_four_times() -> None:
    shape = (400, 100)
    assert torch.equal(draws(Small(None), shape)[0], draws(Xavier(None), shape)[0])


def test_torch_is_what_torch_draws() -> None:
    weight, bias, embedding = draws(Torch(None))
    torch.manual_seed(0)
    theirs = torch.nn.Linear(100, 300)
    for ours, other in ((weight, theirs.weight), (bias, theirs.bias)):
        assert 0.98 < float(ours.abs().max()) / 0.1 <= 1
        assert abs(float(ours.std()) / float(other.detach().std()) - 1) < 0.15
        assert 0.98 < float(other.detach().abs().max()) / 0.1 <= 1
    assert abs(float(embedding.std()) - 1) < 0.02


@pytest.mark.parametrize("std", [0.02, 0.3])
@pytest.mark.parametrize("shape", [(300, 100), (3000, 10)])
def test_bert(std: float, shape: tuple[int, int]) -> None:
    weight, bias, embedding = draws(Bert(BertOptions(std=std)), shape)
    for t in (weight, embedding):
        assert abs(float(t.std()) / std - 1) < 0.02 and abs(float(t.mean()) / std) < 0.02
        assert float(t.abs().max()) > 3.5 * std  # not cut off
    assert bool((bias == 0).all())


STREAM = ["model.d_model=16", "model.n_heads=2", "attention.bias=true", "position=learned"]


@pytest.mark.parametrize("layers", [2, 5])
@pytest.mark.parametrize("ffn", ["gelu", "swiglu", "moe"])
def test_deepnorm_scales_the_weights_of_branches_and_no_other_tensor(layers: int, ffn: str) -> None:
    words = [*STREAM, f"ffn={ffn}", "ffn.bias=true", f"model.n_layers={layers}"]
    ours, theirs = (
        encoderkit.build(*words, f"init={name}").state_dict() for name in ("deepnorm", "xavier")
    )
    scaled = set()
    for name, t in theirs.items():
        if not torch.equal(ours[name], t):
            scaled.add(name)
            assert torch.equal(ours[name], t * (8 * layers) ** -0.25)
    maps = [f"ffn.branch.{m}" for m in {"gelu": ["up", "down"]}.get(ffn, ["up", "gate", "down"])]
    if ffn == "moe":
        maps = [f"ffn.branch.experts.{n}.{m}" for n in range(8) for m in ("up", "down")]
    maps += ["attention.branch.v", "attention.branch.out"]
    assert scaled == {f"layers.{n}.{m}.weight" for n in range(layers) for m in maps}


def test_one_gain_is_enough() -> None:
    with pytest.raises(ConfigError) as error:
        encoderkit.build("placement=deepnorm", "init=deepnorm")
    (fault,) = error.value.faults
    assert fault.where == "init=deepnorm" and fault.hint == "Try init=xavier."
    assert fault.problem == "placement=deepnorm brings a gain for its branches already, 0.452."
    ours, theirs = (
        encoderkit.build(*words).state_dict()
        for words in (["placement=deepnorm"], ["placement=post", "init=deepnorm"])
    )
    assert all(torch.equal(ours[name], t) for name, t in theirs.items())


INITS = [Xavier(None), Torch(None), Small(None), Bert(BertOptions()), DeepNorm(None)]


@pytest.mark.parametrize("init", INITS)
def test_a_draw_comes_from_its_generator_alone(init: Init) -> None:
    before = torch.get_rng_state()
    pairs = zip(draws(init), draws(init), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(torch.get_rng_state(), before)
