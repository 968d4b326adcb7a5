"""What inits must do: fill every number, from the generator that they are given."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.testing.case import Case, finite, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.properties.draws import stir, undisturbed
from encoderkit.testing.subject import Subject

SIZES = tuple(Case(width=w, d_ff=f) for w, f in ((1, 1), (4, 8), (8, 32)))


def drawn(subject: Subject, seed: int, case: Case | None = None) -> dict[str, Tensor]:
    """Return a weight, a bias and an embedding, NaN wherever nothing was filled in."""
    case = case or SIZES[-1]
    init = subject.chosen.entry.load()(subject.options)
    shapes = {"weight": (case.d_ff, case.width), "bias": (case.d_ff,)}
    found = {}
    for n, (name, shape) in enumerate({**shapes, "embedding": (7, case.width)}.items()):
        t, generator = torch.full(shape, torch.nan), torch.Generator().manual_seed(10 * seed + n)
        more = (case.width, generator) if name == "bias" else (generator,)
        with torch.no_grad():
            getattr(init, name)(t, *more)
        found[name] = t
    return found


@proves("an init fills every number, in place", ("init",), SIZES)
def fills(subject: Subject, case: Case) -> float:
    """Look for what was left."""
    for name, t in drawn(subject, 0, case).items():
        finite(t, f"the {name}")
    return 0.0


@proves("an init draws from its generator and from nothing else", ("init",), SIZES)
def draws_from_its_generator(subject: Subject, case: Case) -> float:
    """Draw twice under different global generators."""
    stir(1)
    first = undisturbed(lambda: _flat(subject, 0, case), "the init")
    stir(2)
    return near(_flat(subject, 0, case), first, 0, "one generator, twice")


def _flat(subject: Subject, seed: int, case: Case) -> Tensor:
    return torch.cat([t.flatten() for t in drawn(subject, seed, case).values()])


@proves("an init's weights differ from one generator to the next", ("init",), SIZES[1:])
def differs(subject: Subject, case: Case) -> float:
    """Compare two seeds, and the numbers of one weight."""
    one, two = (drawn(subject, seed, case) for seed in (0, 1))
    for name in ("weight", "embedding"):
        require(not torch.equal(one[name], two[name]), f"two generators, one {name}")
        require(float(one[name].std()) > 0, f"all numbers of the {name} are equal")
    return 0.0


@proves(
    "an init's weights keep signals within a factor of 10 a layer, and alike at 16 times the width",
    ("init",),
    tuple(Case(width=n, d_ff=n) for n in (16, 64)),
    unless="fixed_scale",
)
def scale(subject: Subject, case: Case) -> float:
    """Multiply random tokens with a square weight, and with a wider one."""
    gain, wide = (_gain(subject, by * case.width) for by in (1, 16))
    require(0.1 < gain < 10, f"a layer multiplies the standard deviation by {gain:.2g}")
    require(0.5 < wide / gain < 2, f"... by {gain:.2g}, and by {wide:.2g} at 16 times the width")
    return 0.0


def _gain(subject: Subject, width: int) -> float:
    """Return by how much a square weight multiplies the standard deviation."""
    weight = drawn(subject, 0, Case(width=width, d_ff=width))["weight"]
    x = torch.randn(200, width, generator=torch.Generator().manual_seed(0))
    return float((x @ weight.T).std() / x.std())
