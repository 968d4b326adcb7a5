"""Training and evaluation, and what one call leaves behind for the next."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from encoderkit.nn import Ctx
from encoderkit.testing.bench import Bench
from encoderkit.testing.case import Case, backward, in_both_modes, ladder, near
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

SMALL = ladder(((2,), (3, 0, 2)))


@proves(
    "without dropout, training and evaluation compute the same",
    STREAM,
    SMALL,
    unless="train_and_eval_differ",
)
def train_is_eval(subject: Subject, case: Case) -> float:
    """Compare the modes."""
    x = subject.tokens(case)
    y, z = (
        subject.run(subject.bench(replace(case, train=mode)), x, case.lengths)
        for mode in (False, True)
    )
    return near(z, y, 1e-12, "training and eval")


@proves(
    "a call does not depend on the calls before it in the same mode", STREAM, in_both_modes(SMALL)
)
def no_history(subject: Subject, case: Case) -> float:
    """Compare a used part with a fresh one."""
    used, x = subject.bench(case), subject.tokens(case)
    subject.run(used, subject.tokens(replace(case, lengths=(4, 1)), seed=9) * 5, (4, 1))
    fresh = subject.run(subject.bench(case), x, case.lengths)
    return near(subject.run(used, x, case.lengths), fresh, 0, "after another batch and alone")


@proves(
    "a training forward leaves nothing that evaluation reads",
    STREAM,
    ladder(((1,), (2,), (3, 0, 2))),
    unless="has_buffers",
)
def no_buffers(subject: Subject, case: Case) -> float:
    """Compare evaluation before and after a training forward."""
    bench, x = subject.bench(case), subject.tokens(case)
    before = subject.run(bench.eval(), x, case.lengths)
    subject.run(bench.train(), subject.tokens(replace(case, lengths=(4, 1)), seed=9) * 5, (4, 1))
    after = subject.run(bench.eval(), x, case.lengths)
    return near(after, before, 0, "evaluation before and after a training forward")


@proves(
    "gradient checkpointing changes no gradient and no state",
    STREAM,
    ladder(((2,), (3, 0, 2)), Case(train=True)),
    unless="checkpoint_safe",
)
def checkpointing(subject: Subject, case: Case) -> float:
    """Compare with and without."""
    plain, again = subject.bench(case), subject.bench(case)
    ours, theirs = (_after(subject, bench, case, bench is again) for bench in (plain, again))
    return max(near(theirs[n], t, 1e-12, f"{n} with checkpointing") for n, t in ours.items())


def _after(subject: Subject, bench: Bench, case: Case, twice: bool) -> dict[str, Tensor]:
    """Return the state and the gradients after one step."""
    x, ctx = subject.tokens(case).requires_grad_(), subject.context(case.lengths)

    def beyond(x: Tensor, ctx: Ctx) -> Tensor:
        # The second forward stops behind the last operation that the gradient needs: this one.
        y: Tensor = bench(x, ctx)
        return y.square()

    y: Tensor = checkpoint(beyond, x, ctx, use_reentrant=False) if twice else beyond(x, ctx)
    backward(y.sum())
    leaves = [("x", x), *bench.named_parameters()]
    found = {f"the gradient of {n}": p.grad for n, p in leaves if p.grad is not None}
    return found | dict(bench.state_dict())
