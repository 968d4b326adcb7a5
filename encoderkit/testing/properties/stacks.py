"""A stack with the part in it: what neither the part nor the stack shows alone."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from encoderkit.config.check import plain
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen
from encoderkit.nn.stack import Sublayer
from encoderkit.testing.case import Broken, Case, backward, finite, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.properties.dense import grid
from encoderkit.testing.properties.draws import generators, stir
from encoderkit.testing.subject import STREAM, Subject

BUILT = (*STREAM, "init")
ONE = (Case(width=8, d_ff=16),)
OWN = {
    "norm": (".placement.", "final."),
    "placement": (".placement.", "final."),
    "ffn": (".ffn.branch.",),
    "attention": (".attention.branch.",),
    "position": ("position.",),
    "init": ("",),
}


def _state(stack: nn.Module) -> dict[str, Tensor]:
    return dict(stack.state_dict())


@proves("building repeats bit for bit, and changes no option", BUILT, ONE, whole=True)
def rebuild(subject: Subject, case: Case) -> float:
    """Build twice under different global generators."""
    asked = plain(subject.config)
    stir(1)
    before = generators()
    first = _state(subject.stack())
    require(generators() == before, "building draws from a global generator")
    stir(2)
    second = _state(subject.stack())
    require(plain(subject.config) == asked, "building changed the configuration")
    require(first.keys() == second.keys(), "building twice gives other parameter paths")
    return max([0.0, *(near(second[n], t, 0, f"{n}, built twice") for n, t in first.items())])


@proves(
    "every other part of a stack starts with the weights it has elsewhere", BUILT, ONE, whole=True
)
def neighbours(subject: Subject, case: Case) -> float:
    """Compare with the stack of the usual parts."""
    usual: Chosen = getattr(configure({}), subject.kind)
    theirs = _state(subject.with_chosen(usual).stack())
    stack = subject.stack()
    own, gains, off = OWN[subject.kind], _gains(stack), 0.0
    for name, t in _state(stack).items():
        if name in theirs and not any(words in name for words in own):
            wanted = theirs[name] * gains.get(name, 1.0)
            off = max(off, near(t.float(), wanted.float(), 0, f"{name} with the part and without"))
    return off


def _gains(stack: nn.Module) -> dict[str, float]:
    """Return what placements bring for the weights of their branches, by name."""
    found: dict[str, float] = {}
    for path, sublayer in stack.named_modules():
        if isinstance(sublayer, Sublayer):
            for inner, module in sublayer.branch.named_modules():
                spared = getattr(module, "selects", ())
                for name, child in module.named_children():
                    if isinstance(child, nn.Linear) and name not in spared:
                        whole = ".".join(word for word in (path, "branch", inner, name) if word)
                        found[f"{whole}.weight"] = sublayer.placement.branch_gain
    return found


@proves("no two layers start alike", ("ffn", "attention", "init"), ONE)
def layers_differ(subject: Subject, case: Case) -> float:
    """Compare the matrices of two layers; one number all over, such as zeros, is no draw."""
    state = _state(subject.stack())
    for name, t in state.items():
        if name.startswith("layers.0.") and t.dim() > 1 and t.min() < t.max():
            other = state[name.replace("layers.0.", "layers.1.", 1)]
            require(not torch.equal(t, other), f"{name} is that of layer 1")
    return 0.0


@proves(
    "NaN and infinity in padded slots reach nothing; padded outputs are 0",
    STREAM,
    (Case(lengths=(2, 1), width=8), Case(lengths=(3, 0, 2), width=8)),
    whole=True,
)
def padding_nan(subject: Subject, case: Case) -> float:
    """Compare zeros with NaN and infinity, in every layout."""
    stack = subject.without_positions().stack().eval()
    padded, valid = grid(case, subject.tokens(case), more=1)
    for layout in sorted(subject.traits.layouts):
        stack.use_layout(layout)
        y = stack(padded, valid)
        finite(y, f"{layout}: the result")
        require(not y[~valid].any(), f"{layout}: a padded output is not 0")
        for bad in (float("nan"), float("inf"), -1e30):
            other = padded.clone()
            other[~valid] = bad
            near(stack(other, valid), y, 0, f"{layout}: zeros and {bad:g} in padded slots")
    return 0.0


def _undense(subject: Subject) -> str:
    return "" if "dense" in subject.traits.layouts else "it declares the packed layout only"


def _rows(b: int, s: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(b * 100 + s)
    valid = torch.rand(b, s, generator=draws) < 0.7
    valid[0] = False
    return torch.randn(b, s, 8, generator=draws, dtype=torch.float64), valid


@proves(
    "compiles as one graph in the dense layout, and two at most for all lengths",
    STREAM,
    ONE,
    unless="compiles",
    given=_undense,
)
def compiles(subject: Subject, case: Case) -> float:
    """Compare a compiled stack with the plain one at four lengths."""
    from torch._dynamo.testing import CompileCounter

    stack = subject.stack(layers=1).eval().use_layout("dense")
    torch._dynamo.reset()
    counter, off = CompileCounter(), 0.0
    try:
        compiled = torch.compile(
            copy.deepcopy(stack), fullgraph=True, backend=counter, dynamic=True
        )
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own, as it traces
            for s in (4, 5, 7, 9):
                off = max(off, near(compiled(*_rows(3, s)), stack(*_rows(3, s)), 1e-6, "compiled"))
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {_first(error)}") from error
    finally:
        torch._dynamo.reset()
    require(counter.frame_count <= 2, f"{counter.frame_count} graphs for four lengths")
    return off


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@proves(
    "exports with any batch size and length, in the dense layout",
    STREAM,
    ONE,
    unless="exports",
    given=_undense,
)
def exports(subject: Subject, case: Case) -> float:
    """Export at one shape, and compare at another."""
    stack = subject.stack(layers=1).eval().use_layout("dense")
    b, s = torch.export.Dim("b"), torch.export.Dim("s", max=subject.max_positions(4096))
    shapes = {"x": {0: b, 1: s}, "valid": {0: b, 1: s}}
    x, valid = _rows(3, 7)
    try:
        program = torch.export.export(
            stack, (x,), {"valid": valid}, dynamic_shapes=shapes, strict=False
        ).module()
        y = program(_rows(5, 11)[0], valid=_rows(5, 11)[1])
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {_first(error)}") from error
    return near(y, stack(*_rows(5, 11)), 1e-12, "exported")


@proves("learns: 40 steps lower the loss of a toy task by half", BUILT, ONE, whole=True)
def learns(subject: Subject, case: Case) -> float:
    """Train a stack of one layer to map eight symbols and their sequence's mean."""
    stack = subject.stack(layers=1).train()
    draws = torch.Generator().manual_seed(0)
    lengths = (6, 3, 5, 2)
    symbols = torch.randint(8, (sum(lengths),), generator=draws)
    table, wanted = torch.randn(2, 8, 8, generator=draws, dtype=torch.float64)
    target = wanted[symbols]  # (N, D)
    head = nn.Linear(8, 8, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.eye(8))
        head.bias.zero_()
    optimizer = torch.optim.Adam([*stack.parameters(), *head.parameters()], lr=0.02)
    losses = []
    for step in range(40):
        loss = (head(stack(table[symbols], lengths=lengths, step=step)) - target).square().mean()
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    finite(torch.tensor(losses), "the loss")
    words = f"from {losses[0]:.3g} to {losses[-1]:.3g} in 40 steps"
    require(losses[-1] < 0.5 * losses[0], words)
    return 0.0
