"""`encoderkit parts`."""

from __future__ import annotations

import json

from encoderkit.cli import main


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


def test_presets_say_what_they_set(capsys):
    found = {row["choice"]: row["summary"] for row in rows(capsys, "ffn")}
    assert found["geglu"] == "preset: glu act=gelu"


def test_all_kinds(capsys):
    kinds = {row["kind"] for row in rows(capsys)}
    assert kinds == {"norm", "placement", "ffn", "attention", "position", "init", "task"}
