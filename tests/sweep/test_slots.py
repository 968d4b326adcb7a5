"""The slot ledger of a record: what filled each place, and that it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderkit.api import Part
from encoderkit.plugins import registry
from encoderkit.registry import Entry, Owner
from encoderkit.report.table import compare
from encoderkit.sweep import record, slots
from encoderkit.sweep.plan import single
from encoderkit.sweep.run import run_cell
from encoderkit.train.loop import Watch

SMALL = ["train.steps=2", "train.warmup=1", "train.batch=2", "train.judge_stall=false"]
SMALL += ["model.d_model=8", "model.n_layers=2", "task.length=4", "task.eval_sequences=4"]

STRANGE = '''
from encoderkit.nn import FFN, Placement


class Skips(Placement):
    """Never calls its branch."""

    def __init__(self, opts, site):
        super().__init__()

    def forward(self, x, f, ctx):
        return x


class Rests(FFN):
    """Has a norm for training alone."""

    def __init__(self, opts, site):
        super().__init__()
        self.norm = site.norm()

    def forward(self, x, ctx):
        return self.norm(x, ctx) if self.training else x
'''


@pytest.fixture(autouse=True)
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be the parts of somebody else."""
    (tmp_path / "strange_slots.py").write_text(STRANGE)
    monkeypatch.syspath_prepend(tmp_path)
    for kind, name in (("placement", "skips"), ("ffn", "rests")):
        part = Part(kind, name, f"strange_slots:{name.title()}", "")  # type: ignore[arg-type]
        entry = Entry(part, Owner("strange-parts", "1.2"))
        monkeypatch.setitem(registry().entries, (kind, name), entry)


def test_a_record_says_what_filled_each_place_and_that_it_ran(tmp_path: Path) -> None:
    _, cell = single([*SMALL, "norm=rmsnorm", "model.layers=[{at: 1, ffn: swiglu}]"])
    assert run_cell(cell, tmp_path / "runs") == "ok"
    found = record.load(tmp_path / "runs" / cell.name)
    by_path = {line["path"]: line for line in found.slots}
    norm = registry().entries["norm", "rmsnorm"]
    assert by_path["layers.0.attention.placement.before"] == {
        "path": "layers.0.attention.placement.before",
        "kind": "norm",
        "part": "rmsnorm",
        "distribution": "encoderkit",
        "version": norm.owner.version,
        "source": norm.source_hash(),
        "ran_train": True,
        "ran_eval": True,
    }
    parts = {path: f"{line['kind']}={line['part']}" for path, line in by_path.items()}
    assert parts["layers.0.ffn.branch"] == "ffn=mlp" and parts["final"] == "norm=rmsnorm"
    assert parts["layers.1.ffn.branch"] == "ffn=glu" and len(parts) == 14
    assert found.coverage == {"train": [14, 14], "eval": [14, 14]} and found.notes == []
    assert compare(tmp_path / "runs").notes == []


def test_a_part_that_never_ran_is_named_in_record_and_comparison(tmp_path: Path) -> None:
    _, cell = single([*SMALL, "norm=none", "placement=skips"])
    assert run_cell(cell, tmp_path / "runs") == "ok"
    found = record.load(tmp_path / "runs" / cell.name)
    assert found.coverage == {"train": [5, 9], "eval": [5, 9]}
    notes = [
        f"{part} never ran in {mode}: layers.0.{slot}.branch and 1 more"
        for mode in ("training", "evaluation")
        for part, slot in (("attention=sdpa", "attention"), ("ffn=mlp", "ffn"))
    ]
    assert found.notes == notes
    assert [n for n in compare(tmp_path / "runs").notes if "never" in n] == [
        f"{cell.label}: {note}" for note in notes
    ]
    (strange,) = {(e["distribution"], e["version"]) for e in found.slots if e["part"] == "skips"}
    assert strange == ("strange-parts", "1.2")


def test_a_part_that_ran_in_training_alone_is_named(tmp_path: Path) -> None:
    small = [*SMALL[:5], "task.length=4", "model.n_layers=1"]
    _, cell = single([*small, "ffn=rests", "attention=none"])
    run_cell(cell, tmp_path / "runs")
    found = record.load(tmp_path / "runs" / cell.name)
    assert found.notes == ["norm=layernorm never ran in evaluation: layers.0.ffn.branch.norm"]


class Stop(Watch):
    """Stops after the first step."""

    steps = 0

    def stop(self) -> str:
        return "enough" * (self.steps > 0)

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.steps = step


def test_what_a_run_did_not_come_to_is_unknown(tmp_path: Path) -> None:
    _, cell = single(SMALL)
    assert run_cell(cell, tmp_path, watch=Stop()) == "interrupted"
    found = record.load(tmp_path / cell.name)
    assert found.coverage == {"train": [14, 14], "eval": [0, 14]} and found.notes == []
    assert {(line["ran_train"], line["ran_eval"]) for line in found.slots} == {(True, None)}
    assert run_cell(cell, tmp_path) == "ok"
    assert record.load(tmp_path / cell.name).coverage == {"train": [14, 14], "eval": [14, 14]}


def test_a_run_that_fails_has_its_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from encoderkit.train import loop

    monkeypatch.setattr(loop, "fit", lambda *arguments, **names: 1 / 0)
    _, cell = single(SMALL)
    assert run_cell(cell, tmp_path) == "error"
    found = record.load(tmp_path / cell.name)
    assert len(found.slots) == 14 and found.coverage == {}


def test_old_records_have_no_ledger() -> None:
    assert slots.idle([]) == [] and slots.idle([{"path": "x"}]) == []
    assert slots.counted([], {}) == ({"train": [0, 0], "eval": [0, 0]}, [])
