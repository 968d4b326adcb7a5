from __future__ import annotations

import torch
from torch import Tensor, nn

from encoderkit.nn.base import Init
from encoderkit.nn.init import generator, redraw


class Counted(Init):
    """Fills with what its generator says first, and notes each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...], int]] = []

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        self.calls.append(("weight", tuple(t.shape), 0))
        t.fill_(float(torch.rand((), generator=generator)))

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        self.calls.append(("bias", tuple(t.shape), fan_in))
        t.fill_(float(torch.rand((), generator=generator)))

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        self.calls.append(("embedding", tuple(t.shape), 0))
        t.fill_(float(torch.rand((), generator=generator)))


class Own(nn.Linear):
    owns_init = True


def test_a_generator_is_a_function_of_its_words() -> None:
    draws = [torch.rand(3, generator=generator(0, "a", n)) for n in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_redraw_goes_by_path_and_leaves_the_rest() -> None:
    module = nn.ModuleDict(
        {
            "a": nn.Linear(3, 2),
            "b": nn.Linear(3, 2, bias=False),
            "c": nn.Embedding(5, 4),
            "own": nn.Sequential(Own(2, 2), nn.LayerNorm(2)),
        }
    )
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    redraw(module, init := Counted(), 7)
    assert init.calls == [
        ("weight", (2, 3), 0),
        ("bias", (2,), 3),
        ("weight", (2, 3), 0),
        ("embedding", (5, 4), 0),
    ]
    for name, tensor in module.state_dict().items():
        wanted = float(torch.rand((), generator=generator(7, name)))
        if name.startswith("own."):
            assert torch.equal(tensor, before[name])
        else:
            assert bool((tensor == wanted).all()), name
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_an_owner_owns_what_is_below_it_and_nothing_beside() -> None:
    class Whole(nn.Sequential):
        owns_init = True

    module = nn.ModuleDict({"a": Whole(nn.Linear(2, 2)), "ab": nn.Linear(2, 2, bias=False)})
    redraw(module, init := Counted(), 0)
    assert len(init.calls) == 1
