"""What the environment holds is not pulled into a configuration, and so never reaches the disk."""

from __future__ import annotations

from pathlib import Path

import drill
import pytest
from omegaconf import OmegaConf

from encoderkit.cli import main
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.sweep.plan import plan

SECRET = "hush-4711"
READ = "${oc.env:ENCODERKIT_SECRET}"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCODERKIT_SECRET", SECRET)


def written(root: Path) -> bool:
    return any(SECRET in p.read_text(errors="replace") for p in root.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "word",
    [
        f"norm.eps={READ}",
        f"sweep.name={READ}",
        f"sweep.dir={READ}",
        f"sweep.baseline={READ}",
        f"task.data={READ}",
        f"norm={READ}",
        f"seed={READ}",
        f"bogus={READ}",
        "norm.eps=${oc.env:ENCODERKIT_SECRET,1e-6}",
        "norm.eps=${oc.env:NOT_THERE,1e-6}",
        "norm.eps=${oc.decode:${oc.env:ENCODERKIT_SECRET}}",
        "norm.eps=${oc.${sweep.name}:ENCODERKIT_SECRET}",
    ],
)
def test_a_word_cannot_read_it(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word, "sweep.name=env"] if "sweep.name}" in word else [word]
    with pytest.raises(ConfigError) as caught:
        configure(*given)
    assert SECRET not in str(caught.value)
    for command in (["train"], ["sweep"], ["show"], ["check"], ["train", "-m"]):
        assert main([*command, *given]) == 2
    out, err = capsys.readouterr()
    assert SECRET not in out + err and not written(tmp_path)
    assert list(tmp_path.rglob("*.json")) == []


def test_the_message_names_the_variable_and_what_to_do() -> None:
    words = "norm.eps: .*the environment variable ENCODERKIT_SECRET is not read: write the value"
    with pytest.raises(ConfigError, match=words):
        configure(f"norm.eps={READ}")


def test_nor_can_a_file(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text(f"defaults: [layernorm, _self_]\neps: {READ}\n")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "e.yaml").write_text(
        f"# @package _global_\ndefaults: [override /norm: '{READ}']\n"
    )
    (tmp_path / "experiment" / "f.yaml").write_text(
        f"# @package _global_\nhydra: {{sweeper: {{params: {{norm.eps: '{READ}'}}}}}}\n"
    )
    for ask in ("norm=mine", "experiment=e"):
        with pytest.raises(ConfigError) as caught:
            configure(ask, config_dirs=[tmp_path])
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        plan(["experiment=f"], config_dirs=[tmp_path])
    assert SECRET not in str(caught.value)


def test_nor_can_a_tree_of_omegaconf() -> None:
    with pytest.raises(ConfigError, match="ENCODERKIT_SECRET is not read"):
        configure(OmegaConf.create({"norm": {"part": "layernorm", "eps": READ}}))
    taken = configure({"sweep": {"name": READ}})  # a plain mapping is not resolved at all
    assert taken.sweep.name == READ


def test_others_may_read_it_before_and_after() -> None:
    tree = OmegaConf.create({"a": READ})
    assert tree.a == SECRET
    with pytest.raises(ConfigError):
        configure(f"norm.eps={READ}")
    assert tree.a == SECRET


def test_a_run_leaves_nothing_of_the_environment(tmp_path: Path) -> None:
    assert main(["train", *drill.SMALL, f"sweep.dir={tmp_path}", "--quiet"]) == 0
    assert len(list(tmp_path.glob("*/record.json"))) == 1 and not written(tmp_path)
