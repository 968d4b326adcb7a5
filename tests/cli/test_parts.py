"""`encoderkit parts`."""

from __future__ import annotations

import dataclasses
import json

import pytest

from encoderkit.cli import main
from encoderkit.config.schema import SETTINGS


def rows(capsys, *words):
    assert main(["parts", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_options_ranges_and_traits(capsys):
    found = {row["choice"]: row for row in rows(capsys, "norm")}
    (eps, *_) = found["layernorm"]["options"]
    assert eps == {
        "name": "eps",
        "type": "float",
        "default": 1e-6,
        "range": {"above": 0},
        "doc": eps["doc"],
    }
    assert found["batchnorm"]["traits"]["batch_coupled"] is True
    assert found["layernorm"]["traits"]["batch_coupled"] is False
    (flash,) = [row["traits"] for row in rows(capsys, "attention") if row["choice"] == "flash"]
    assert flash["serves"] == ["rotation", "window"] and flash["devices"] == ["cuda"]


def test_presets_say_what_they_set(capsys):
    found = {row["choice"]: row["summary"] for row in rows(capsys, "ffn")}
    assert found["geglu"] == "preset: glu act=gelu"


def test_a_kind_ends_with_every_option_in_full(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["parts", "norm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "norm=layernorm: eps=1e-6 (above 0) added to the variance" in lines
    assert any(line.startswith("norm=layernorm: bias=true a ") for line in lines)
    blank = lines.index("")
    assert all(line.startswith("norm=") for line in lines[blank + 1 :])
    options = [f"{r['choice']}: {o['name']}=" for r in rows(capsys, "norm") for o in r["options"]]
    told = [line for line in lines[blank + 1 :] if ": traits " not in line]
    for option, line in zip(options, told, strict=True):
        assert line.startswith(f"norm={option}")
    (traits,) = (line for line in lines if line.startswith("norm=batchnorm: traits "))
    assert "batch_coupled=true" in traits and "min_tokens_in_train=2" in traits


@pytest.mark.parametrize("group", SETTINGS)
def test_settings_are_listed_like_a_kind(group, capsys):
    assert main(["parts", group]) == 0
    out = capsys.readouterr().out
    for spec in dataclasses.fields(SETTINGS[group]):
        assert f"{group}: {spec.name}" in out and f" {spec.metadata['doc']}\n" in out
    (settings,) = [row for row in rows(capsys, group) if not row["choice"]]
    assert [o["name"] for o in settings["options"]] == [
        spec.name for spec in dataclasses.fields(SETTINGS[group])
    ]


def test_ranges_in_words(capsys):
    assert main(["parts", "train"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "train: beta1=0.9 (at least 0, below 1) AdamW's first-moment decay" in lines
    assert "train: steps (at least 1) optimizer steps" in lines
    assert any(line.startswith("train: precision=fp32 (one of fp32, bf16) ") for line in lines)
    assert any("smoke" in line and "preset: steps=" in line for line in lines)


def test_without_a_kind_there_is_the_table_alone(capsys):
    assert main(["parts"]) == 0
    assert "added to the variance" not in capsys.readouterr().out


def test_all_kinds(capsys):
    kinds = {row["kind"] for row in rows(capsys)}
    assert kinds == {"norm", "placement", "ffn", "attention", "position", "init", "task"}


def test_a_kind_that_there_is_not_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["parts", "nrom"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "nrom must be one of norm, placement, " in err
    assert err.endswith("check, new. Did you mean norm?\n")
