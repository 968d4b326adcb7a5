"""Every choice there is, trained for 60 steps on sort: the loss must come down."""

from __future__ import annotations

import statistics

import pytest
import torch

from encoderkit.config.presets import Presets
from encoderkit.config.request import configure
from encoderkit.data.build import build_task
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.train.loop import Watch, fit

KINDS = ("norm", "placement", "ffn", "attention", "position", "init", "model")
BUILT_IN = [
    (kind, name)
    for kind in KINDS
    for name, source in Presets(registry()).groups[kind].items()
    if source.owner.startswith("encoderkit ") and name not in ("small", "base")  # tiny, larger
]
SMALL = ["model.d_model=32", "model.n_heads=2", "model.n_layers=2", "train.batch=8"]
BUDGET = ["train=short", "train.steps=60", "train.warmup=6", "train.eval_every=0", "task.length=12"]
COMPANY = {
    "placement=rezero": ["norm=none"],  # it holds no norm
    "attention=none": ["position=none"],  # nobody would read it
    "attention=fnet": ["position=none"],
    "model=ffn_only": ["position=none"],
}


class Curve(Watch):
    """Keeps every loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.losses.append(loss)


@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=lambda text: text)
def test_sixty_steps_lower_the_loss(kind: str, name: str) -> None:
    choice = f"{kind}={name}"
    entry = registry().entries.get((kind, name))
    if entry is not None and "cpu" not in entry.part.traits.devices and not has_cuda():
        pytest.skip("its trait says that it runs on CUDA only")
    sizes = [] if kind == "model" else SMALL
    if choice in ("attention=none", "attention=fnet"):  # no heads, so none may be asked for
        sizes = [word for word in SMALL if not word.startswith("model.n_heads")]
    config = configure(choice, *COMPANY.get(choice, []), *sizes, *BUDGET)
    task, curve = build_task(config), Curve()
    model = build_model(config, task.vocab, task.outputs)
    outcome = fit(model, task, config.train, config.run, None, watch=curve)
    assert outcome.state in ("ok", "stalled"), outcome.reason
    assert len(curve.losses) == 60
    first, last = statistics.mean(curve.losses[:5]), statistics.mean(curve.losses[-5:])
    assert last < first - 0.05, f"{choice}: {first:.3f} at first, {last:.3f} at last"


def has_cuda() -> bool:
    return torch.cuda.is_available()
