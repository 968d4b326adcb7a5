"""What a sequence may know of its batch: nothing; and of the order of its own tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from encoderkit.testing.case import Case, backward, finite, in_both_modes, ladder, near, pieces
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

TOGETHER = ladder(((1, 1), (2, 1), (3, 0, 2), (4, 4), (7, 1, 0, 5), (1, 2, 3, 4, 5, 1, 2, 3, 4)))
TIGHT = 1e-12


def _alone(subject: Subject, case: Case) -> float:
    """Compare every sequence in its batch with itself alone."""
    x = subject.tokens(case)
    together = subject.run(subject.bench(case), x, case.lengths)
    ends = list(accumulate(case.lengths))
    off = 0.0
    for end, length in zip(ends, case.lengths, strict=True):
        if case.train and 0 < length < subject.traits.min_tokens_in_train:
            continue
        own = slice(end - length, end)
        alone = subject.run(subject.bench(case), x[own], [length])
        what = f"the sequence of {length} alone and with its batch-mates"
        off = max(off, near(together[own], alone, TIGHT, what))
    return off


@proves("in eval a sequence alone is the same as in its batch", STREAM, TOGETHER)
def batch_mates_eval(subject: Subject, case: Case) -> float:
    """Compare in eval."""
    return _alone(subject, case)


@proves(
    "in training a sequence alone is the same as in its batch",
    STREAM,
    ladder([case.lengths for case in TOGETHER], Case(train=True)),
    unless="batch_coupled",
)
def batch_mates_train(subject: Subject, case: Case) -> float:
    """Compare in training."""
    return _alone(subject, case)


@proves("the order of the sequences in a batch is irrelevant", STREAM, in_both_modes(TOGETHER))
def order_of_sequences(subject: Subject, case: Case) -> float:
    """Compare with the batch turned round."""
    x = subject.tokens(case)
    y = subject.run(subject.bench(case), x, case.lengths)
    turned = torch.cat(pieces(x, case.lengths)[::-1])
    z = subject.run(subject.bench(case), turned, case.lengths[::-1])
    back = torch.cat(pieces(z, case.lengths[::-1])[::-1])
    return near(back, y, TIGHT, "the batch turned round")


@proves(
    "without positions the order of the tokens in a sequence is irrelevant",
    STREAM,
    in_both_modes(ladder(((2,), (3,), (3, 0, 2), (5, 5)))),
    unless="order_aware",
)
def order_of_tokens(subject: Subject, case: Case) -> float:
    """Compare f(x[shuffled]) with f(x)[shuffled]."""
    x, starts = subject.tokens(case), [0, *accumulate(case.lengths)]
    pairs = zip(starts, case.lengths, strict=False)
    shuffled = torch.cat([torch.arange(length).roll(1) + start for start, length in pairs])
    y = subject.run(subject.bench(case), x, case.lengths)
    z = subject.run(subject.bench(case), x[shuffled], case.lengths)
    return near(z, y[shuffled], TIGHT, "the tokens in another order")


@proves(
    "an empty sequence changes neither the others nor any gradient",
    STREAM,
    in_both_modes(ladder(((2, 0), (0, 2), (3, 0, 2), (0, 4, 0, 0, 4)))),
)
def empty_sequence(subject: Subject, case: Case) -> float:
    """Compare with the batch that lacks it."""
    with_it = _gradients(subject, case)
    without = _gradients(subject, replace(case, lengths=tuple(n for n in case.lengths if n)))
    off = 0.0
    for name, t in with_it.items():
        finite(t, name)
        off = max(off, near(t, without[name], TIGHT, f"{name} with and without"))
    return off


def _gradients(subject: Subject, case: Case) -> dict[str, Tensor]:
    """Return the result and its gradients by name."""
    bench, x = subject.bench(case), subject.tokens(case).requires_grad_()
    y = subject.run(bench, x, case.lengths)
    found = {"the result": y}
    backward((y * y.detach().cos()).sum())
    leaves = [("x", x), *bench.named_parameters()]
    return found | {f"the gradient of {n}": p.grad for n, p in leaves if p.grad is not None}


@proves(
    "the padded length S at the door is irrelevant: inside there is no padding",
    STREAM,
    in_both_modes(ladder(((1,), (3, 0, 2)))),
)
def length_at_the_door(subject: Subject, case: Case) -> float:
    """Compare S with S + 1 and S + 33."""
    x, off = subject.tokens(case), 0.0
    y = subject.run(subject.bench(case), x, case.lengths)
    for extra in (1, 33):
        z = subject.run(subject.bench(case), x, case.lengths, extra=extra)
        off = max(off, near(z, y, 0, f"S and S + {extra}"))
    return off
