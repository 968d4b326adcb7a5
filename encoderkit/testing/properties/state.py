"""What a part holds: all in its state_dict, moved with it, and its own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from encoderkit.testing.bench import AttentionBench, Bench, Turning
from encoderkit.testing.case import Broken, Case, backward, in_both_modes, ladder, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

BOTH = in_both_modes(ladder(((2,), (3, 0, 2))))
META = torch.device("meta")


@proves("state_dict holds all that a part needs to compute the same", STREAM, BOTH)
def state_dict(subject: Subject, case: Case) -> float:
    """Load one part's state into another that was drawn otherwise."""
    one, other = subject.bench(case), subject.bench(case, seed=5)
    held = io.BytesIO()
    torch.save(one.state_dict(), held)
    held.seek(0)
    other.load_state_dict(torch.load(held, weights_only=True), strict=True)
    x = subject.tokens(case)
    y, z = (subject.run(bench, x, case.lengths) for bench in (one, other))
    return near(z, y, 0, "the part and one that loaded its state")


@proves("a part survives pickle and deepcopy", STREAM, BOTH)
def copies(subject: Subject, case: Case) -> float:
    """Compare copies with the part."""
    bench, x, off = subject.bench(case), subject.tokens(case), 0.0
    twins = {"deepcopy": copy.deepcopy(bench)}
    try:
        twins["pickle"] = pickle.loads(pickle.dumps(bench))
    except Exception as error:
        raise Broken(f"pickle: {type(error).__name__}: {error}") from error
    y = subject.run(bench, x, case.lengths)
    for how, twin in twins.items():
        off = max(off, near(subject.run(twin, x, case.lengths), y, 0, f"the part and its {how}"))
    return off


@proves("everything moves with the part to another device", STREAM, BOTH)
def other_device(subject: Subject, case: Case) -> float:
    """Run on the meta device, where a tensor left behind on the CPU shows."""
    bench = subject.bench(case).to(META)
    x = subject.tokens(case).to(META)
    left = [name for name, t in tensors(bench) if t.device != META]
    require(not left, f"{', '.join(left)} stays on the CPU")
    try:
        y = subject.run(bench, x, case.lengths)
    except Exception as error:
        if subject.traits.sparse:
            return 0.0  # which parameters a token meets is a number, and here there are none
        raise Broken(f"on the meta device: {type(error).__name__}: {error}") from error
    require(y.device == META, f"the result is on {y.device}")
    return 0.0


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor that a module holds by name, in plain attributes and lists too."""
    for path, inner in module.named_modules():
        held = {**vars(inner), **inner._parameters, **inner._buffers}
        for name, value in held.items():
            items = value if isinstance(value, list | tuple) else [value]
            for item in items:
                if isinstance(item, Tensor):
                    yield f"{path}.{name}".removeprefix("part.").strip("."), item


def _storages(bench: Bench) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, t in tensors(bench.part):
        if t.numel():
            found[t.untyped_storage().data_ptr()] = name
    return found


@proves("two layers share no tensor, and no tensor has two names", STREAM, ladder(((2,),)))
def own_tensors(subject: Subject, case: Case) -> float:
    """Compare the storages of two layers."""
    # The first stays referenced until the second is there, or its memory would be used again.
    one = subject.seat(subject.raw(case, layer=0), case)
    two = subject.seat(subject.raw(case, layer=1), case)
    first, second = _storages(one), _storages(two)
    shared = [first[at] for at in first.keys() & second.keys()]
    require(not shared, f"layers 0 and 1 share {', '.join(sorted(shared))}")
    total = sum(1 for _, t in tensors(one.part) if t.numel())
    require(total == len(first), f"{total} names for {len(first)} tensors in one part")
    return 0.0


@proves(
    "every parameter gets a gradient, but for those declared frozen", STREAM, BOTH, unless="sparse"
)
def parameters(subject: Subject, case: Case) -> float:
    """Look at every parameter after a few tokens."""
    without, frozen = _without_gradient(subject, case), set(subject.traits.frozen)
    extra = sorted(without - frozen)
    require(not extra, f"no gradient reaches {', '.join(extra)}")
    stale = sorted(frozen - without)
    require(not stale, f"frozen={tuple(stale)} is declared and not true")
    return 0.0


@proves(
    "of 200 tokens some reach every parameter that is not declared frozen",
    STREAM,
    in_both_modes(ladder(((120, 80),), Case(width=16, d_ff=8))),
)
def parameters_of_many(subject: Subject, case: Case) -> float:
    """Look at every parameter after many tokens."""
    extra = sorted(_without_gradient(subject, case) - set(subject.traits.frozen))
    require(not extra, f"no gradient reaches {', '.join(extra)}")
    return 0.0


def _without_gradient(subject: Subject, case: Case) -> set[str]:
    """Go backward, with positions that turn q and k; return the parameters that it leaves out."""
    bench = subject.bench(case)
    if isinstance(bench, AttentionBench):
        bench.tables = Turning
    x = subject.tokens(case)
    y = subject.run(bench, x, case.lengths)
    backward((y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum())
    return {
        name
        for name, p in bench.part.named_parameters()
        if p.grad is None or not p.grad.abs().max() > 1e-12
    }
