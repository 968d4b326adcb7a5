"""`encoderkit sweep --dry-run`: the whole plan in words or JSON, and no file anywhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from encoderkit.cli import main
from encoderkit.sweep.forecast import KEPT, STATES, amount

SMALL = ["train.steps=4", "train.warmup=1", "model.n_layers=1", "model.d_model=16"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def dry(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["sweep", "--dry-run", *words]) == code
    captured = capsys.readouterr()
    assert os.listdir() == []
    return captured.out if code == 0 else captured.err


def test_a_plan_is_a_table_and_how_each_variant_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = dry(capsys, *SMALL, "ffn=gelu,swiglu,glu", "seeds=2", "sweep.name=s")
    lines = out.splitlines()
    headers = ["id", "variant", "seed", "parameters", "FLOPs a token", "seconds"]
    headers += ["memory (at least)", "disk"]
    assert re.split(r" {2,}", lines[0]) == headers
    ids = [re.match(r"([0-9a-f]{12})  (\S+) +(\d) +([\d,]+)", line) for line in lines[1:5]]
    sizes = [re.split(r" {2,}", line)[-2:] for line in lines[1:5]]
    counts = [int(found[4].replace(",", "")) for found in ids if found]
    assert sizes == [[amount(STATES * n), amount(KEPT * n)] for n in counts]
    assert [found and found[2] for found in ids] == ["ffn=gelu", "ffn=swiglu"] * 2
    assert [found and found[3] for found in ids] == ["0", "0", "1", "1"]
    assert lines[6] == (
        "4 runs of 2 variants in runs/s, baseline ffn=gelu: "
        "time unknown (--trial runs a few steps of each variant); "
        f"{amount(KEPT * sum(counts))} of checkpoints"
    )
    assert re.match(
        r"ffn=swiglu: differs in ffn; -\d\.\d% parameters, -\d\.\d% FLOPs of the stack", lines[7]
    )
    assert lines[8].startswith("  comes with it: ffn.act: gelu -> silu; ")
    assert lines[9] == "  confounded by: ffn.bias: true -> false"
    assert lines[10:] == ["note: ffn=glu is ffn=swiglu; it runs once"]


def test_what_comes_with_a_variant_is_four_things_and_how_many_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*SMALL, "ffn=gelu,moe"]
    (line,) = [x for x in dry(capsys, *words).splitlines() if x.startswith("  comes with it: ")]
    (_, other) = json.loads(dry(capsys, *words, "--json"))["variants"]
    brought = other["against"]["comes_with"]
    assert len(brought) > 4
    assert line == f"  comes with it: {'; '.join(brought[:4])}; and {len(brought) - 4} more"


def test_one_run_of_one_variant(capsys: pytest.CaptureFixture[str]) -> None:
    out = dry(capsys, "train=smoke", "sweep.name=s")
    assert (
        "1 run of 1 variant in runs/s, baseline default: 3 s of computing, by the budget's" in out
    )
    assert "differs" not in out


def test_what_is_unknown_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    out = dry(
        capsys,
        *SMALL,
        "position=none,learned",
        "position.max_len=64",
        "sweep.optional=[position.max_len]",
    )
    (row,) = [
        line for line in out.splitlines() if re.match(r"[0-9a-f]{12}  position=learned", line)
    ]
    assert row.split()[4:6] == ["unknown", "unknown"]
    (line,) = [line for line in out.splitlines() if line.startswith("position=learned: ")]
    assert "parameters of the stack" in line and "FLOPs" not in line


def test_json_is_strict_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    out = dry(
        capsys,
        *SMALL,
        "position=none,learned",
        "position.max_len=64",
        "seeds=2",
        "sweep.optional=[position.max_len]",
        "sweep.name=s",
        "--json",
    )
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["directory"] == "runs/s" and found["baseline"] == "position=none"
    assert found["axes"] == ["position"] and found["command"].startswith("encoderkit sweep ")
    assert [cell["flops"] is None for cell in found["cells"]] == [False, True] * 2
    parameters = [cell["parameters"] for cell in found["cells"]]
    assert list(found["forecast"]) == ["position=none", "position=learned"]
    assert found["forecast"]["position=learned"] == {
        "seconds": None,
        "memory_bytes": STATES * parameters[1],
        "disk_bytes": KEPT * parameters[1],
        "source": "unknown",
    }
    assert found["total"] == {
        "runs": 4,
        "parameters": sum(parameters),
        "disk_bytes": 12 * sum(parameters),
        "seconds": None,
        "source": "unknown",
    }
    assert set(found["variants"][1]["against"]) == {
        "factors",
        "comes_with",
        "confounded",
        "parameters",
        "flops",
    }


def test_a_trial_times_a_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(dry(capsys, *SMALL, "norm=rmsnorm,none", "seeds=3", "--trial", "--json"))
    assert found["total"]["source"] == "trial steps"
    times = [each["seconds"] for each in found["forecast"].values()]
    assert found["total"]["seconds"] == pytest.approx(3 * sum(times)) and min(times) > 0


def test_faults_are_all_named_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "model.n_heads=2,3,5", "norm=rmsnorm"]
    err = dry(capsys, *words, code=2)
    assert err.startswith("ConfigError: 2 faults in this request:\n  model.n_heads=3: ")
    out = dry(capsys, *words, "--skip-illegal")
    assert out.endswith(
        "note: left out: model.n_heads=3: model.n_heads=3: must divide model.d_model=16. "
        "Try model.n_heads=2.\n"
        "note: left out: model.n_heads=5: model.n_heads=5: must divide model.d_model=16. "
        "Try model.n_heads=4.\n"
    )


@pytest.mark.parametrize("option", ["--json", "--trial"])
def test_options_of_a_dry_run_belong_to_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "norm=rmsnorm", option]) == 2
    err = capsys.readouterr().err
    assert err == f"ConfigError: {option}: belongs to --dry-run. Type --dry-run {option}.\n"


def test_the_same_sweep_leaves_out_what_is_illegal(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train=smoke", *SMALL, "model.n_heads=2,3", "sweep.name=s"]
    assert main(["sweep", *words]) == 2
    assert os.listdir() == []
    capsys.readouterr()
    assert main(["sweep", *words, "--skip-illegal"]) == 0
    out = capsys.readouterr().out
    assert "note: left out: model.n_heads=3: model.n_heads=3: must divide" in out
    planned = json.loads(Path("runs/s/sweep.json").read_text())
    assert list(planned["illegal"]) == ["model.n_heads=3"]
    assert planned["command"].endswith(" --skip-illegal")
    (name,) = Path("runs/s").glob("*/record.json")
    kept = json.loads(name.read_text())
    assert kept["flops_per_token"] == planned["cells"][0]["flops"]
    assert kept["against"]["baseline"] == "model.n_heads=2"


@pytest.mark.parametrize(
    "shape",
    [
        "sweep.zip=[norm+placement]",
        "sweep.one_at_a_time=true",
        "sweep.also=['norm=scalenorm']",
        "sweep.optional=[norm.eps]",
        "sweep.exclude=['norm=rmsnorm']",
        "match=params",
        "budget=tokens",
    ],
)
def test_a_multirun_takes_plain_grids_alone(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ["norm=layernorm,rmsnorm", "placement=pre,post", "norm.eps=1e-5"]
    assert main(["train", "-m", *SMALL, *axes, shape]) == 2
    name = shape.partition("=")[0]
    name = name if "." in name else f"sweep.{name}"
    assert capsys.readouterr().err == (
        f"ConfigError: {name}: is beyond Hydra's multirun, which spans a plain grid. "
        "Type `encoderkit sweep`.\n"
    )
    assert os.listdir() == []
