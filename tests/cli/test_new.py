"""`encoderkit parts new` writes a package that is good as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from encoderkit import plugins
from encoderkit.api import KINDS
from encoderkit.cli import main, new
from encoderkit.testing import check

ROOT = Path(__file__).resolve().parents[2]


def written(kind, name, place):
    assert main(["parts", "new", kind, name, "--to", str(place)]) == 0
    return place / f"encoderkit-{name}"


@pytest.fixture
def fresh(monkeypatch):
    """Forget the registry and the modules of a package when a test is over."""
    yield
    monkeypatch.undo()
    plugins.registry.cache_clear()
    for name in [name for name in sys.modules if name.startswith("encoderkit_my")]:
        del sys.modules[name]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("kind", KINDS)
def test_the_part_has_every_property_and_passes_its_own_test(kind, tmp_path, monkeypatch):
    name = f"my{kind}"
    place = written(kind, name, tmp_path)
    about = place / f"encoderkit_{name}-0.1.0.dist-info"  # what an installer leaves behind
    about.mkdir()
    (about / "METADATA").write_text(f"Name: encoderkit-{name}\nVersion: 0.1.0\n")
    project = (place / "pyproject.toml").read_text()
    (point,) = [line for line in project.splitlines() if line.startswith(f"{name} = ")]
    (about / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{point}\n".replace('"', ""))
    monkeypatch.syspath_prepend(place)
    plugins.registry.cache_clear()
    assert not plugins.registry().problems
    results = list(check(f"{kind}={name}"))
    assert len(results) > 3
    assert [str(result) for result in results if not result.good] == []
    own = {}
    exec((place / "tests" / f"test_{name}.py").read_text(), own)
    (test,) = [item for key, item in own.items() if key.startswith("test_")]
    test()


def test_the_code_is_clean(tmp_path):
    for kind in KINDS:
        written(kind, f"my{kind}", tmp_path)
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    for command in (["check", "--ignore=I,D100,D103"], ["format", "--check"]):
        words = [sys.executable, "-m", "ruff", *command, *settings, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_writes_and_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["parts", "new", "norm", "my_norm"]) == 0
    assert capsys.readouterr().out == (
        "wrote encoderkit-my_norm\nNext:\n  pip install -e encoderkit-my_norm\n"
        "  encoderkit parts check norm=my_norm\n  pytest encoderkit-my_norm\n"
    )
    place = tmp_path / "encoderkit-my_norm"
    assert sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()) == [
        "README.md",
        "encoderkit_my_norm/__init__.py",
        "encoderkit_my_norm/norm.py",
        "pyproject.toml",
        "tests/test_conformance.py",
        "tests/test_my_norm.py",
    ]
    assert "class MyNorm(Norm):" in (place / "encoderkit_my_norm" / "norm.py").read_text()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "parts new: takes a kind and a name. Try encoderkit parts new norm mynorm."),
        (["norm"], "parts new: takes a kind and a name."),
        (["norms", "a"], "kind=norms: must be one of norm, placement, ffn, attention, position"),
        (["norm", "My-Norm"], "name=My-Norm: a name is lower-case letters, digits and underscores"),
        (["norm", "null"], "name=null: a name is lower-case"),
        (["norm", "../up"], "name=../up: a name is lower-case"),
        (["norm", "a" * 41], "40 characters at most. Try mynorm."),
        (["norm", "rmsnorm"], "name=rmsnorm: norm=rmsnorm is there already (encoderkit "),
        (["ffn", "swiglu"], "name=swiglu: ffn=swiglu is there already (encoderkit conf/)."),
        (["norm", "builtin"], "name=builtin: a package encoderkit_builtin is there already."),
        (["norm", "here"], "encoderkit-here: is there already. Choose another name, or another"),
    ],
)
def test_what_is_refused(words, fault, tmp_path, capsys):
    (tmp_path / "encoderkit-here").mkdir()
    assert main(["parts", "new", *words, "--to", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert fault in err and len(err.splitlines()) == 1
    assert [p.name for p in tmp_path.rglob("*")] == ["encoderkit-here"]


def test_a_place_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["parts", "new", "norm", "mine", "--to", str(tmp_path / "file")]) == 2
    assert "encoderkit-mine: cannot be written: Not a directory." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("norm", "NormNorm"),
        ("my_norm", "MyNorm"),
        ("a__1", "A1Norm"),
        ("mean_norm_", "MeanNormNorm"),
    ],
)
def test_a_class_is_named_after_its_part_and_its_kind(name, cls):
    assert f"class {cls}(Norm):" in new._texts("norm", name)[f"encoderkit_{name}/norm.py"]


def test_to_goes_with_new_alone(capsys):
    assert main(["parts", "norm", "--to", "somewhere"]) == 2
    assert "--to somewhere: belongs to `parts new`." in capsys.readouterr().err
