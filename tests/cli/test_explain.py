"""`encoderkit explain`."""

from __future__ import annotations

import json

import pytest

from encoderkit.cli import main


def test_the_ffn_holds_two_thirds(capsys):
    assert main(["explain", "model=base", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    share = {row["part"]: row["share"] for row in found["rows"]}
    assert abs(share["mlp"] - 2 / 3) < 1e-3
    assert sum(row["parameters"] for row in found["rows"]) == found["parameters"]


def test_shapes_fold_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert max(map(len, lines)) <= 80
    assert any("down.bias" in line for line in lines) and "…" not in "".join(lines)
    assert all(line == line.rstrip() for line in lines)


def test_many_tensors_of_one_shape_are_named_by_the_first_and_the_last(capsys):
    assert main(["explain", "ffn=moe"]) == 0
    out = capsys.readouterr().out
    assert "; experts.0.up to experts.7.up (256, 64); experts.0.down to " in out
    assert "experts.1.up" not in out and "q, k, v, out (64, 64)" in out
    assert main(["explain", "ffn=moe", "--json"]) == 0
    assert "experts.1.up" in capsys.readouterr().out


def test_table_and_equation(capsys):
    assert main(["explain", "placement=post"]) == 0
    out = capsys.readouterr().out
    assert "x = N(x + ffn(x))" in out
    assert "100.00%" in out
    assert out.splitlines()[-1].split() == ["all", "149,184", "100.00%", "393,216", "100.00%"]
    assert "FLOPs a token at T=128" in out


def test_the_length_is_asked_for_and_said(capsys):
    assert main(["explain", "--length", "512"]) == 0
    out = capsys.readouterr().out
    assert "FLOPs a token at T=512" in out and out.split()[-2] == "688,128"
    assert main(["explain", "--length", "512", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["flops"], found["length"]) == (688_128, 512)
    assert sum(row["flops"] for row in found["rows"]) == found["flops"]


@pytest.mark.parametrize("length", ["0", "-3", "1.5", "many"])
def test_a_length_is_a_number_of_tokens(length, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explain", f"--length={length}"])
    assert caught.value.code == 2
    assert f"{length} must be a number of tokens, at least 1" in capsys.readouterr().err


def test_what_is_unknown_says_so(capsys, monkeypatch):
    def unknown(stack, length):
        return {"layers.0.ffn.branch": float("nan"), "layers.0.attention.branch": 5.0}

    monkeypatch.setattr("encoderkit.nn.explain.flops", unknown)
    assert main(["explain"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (mlp,), (sdpa,) = ([x for x in lines if x[1:2] == [part]] for part in ("mlp", "sdpa"))
    assert mlp[-1] == lines[-1][-1] == "unknown"
    assert sdpa[-1] == "5"  # and no share of a sum that is unknown
    assert main(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"] is None


def test_a_difference_reads_side_by_side(capsys):
    assert main(["explain", "norm=layernorm", "--diff", "norm=rmsnorm"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "a: norm=layernorm",
        "b: norm=rmsnorm",
        "",
        "value a b",
        "norm.part layernorm rmsnorm",
        "norm.bias true",
        "norm.offset 0.0",
        "",
        "- N is layernorm (eps=1e-6, bias=true): gain * (x - mean) / sqrt(var + eps) + bias "
        "over the channels of a token",
        "+ N is rmsnorm (eps=1e-6, offset=0.0): (offset + gain) * x / sqrt(mean(x^2) + eps) "
        "over the channels of a token",
        "",
        "slot part, a part, b parameters, a parameters, b "
        "FLOPs a token at T=128, a FLOPs a token at T=128, b",
        "attention pre with layernorm pre with rmsnorm 384 192 0 0",
        "ffn pre with layernorm pre with rmsnorm 384 192 0 0",
        "final layernorm rmsnorm 128 64 0 0",
        "all 149,312 148,864 393,216 393,216",
    ]


def test_a_slot_of_one_side_only(capsys):
    assert main(["explain", "--diff", "ffn=none"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a: the defaults\nb: ffn=none\n")
    assert ["ffn", "mlp", "99,264", "196,608"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("words", ["--diff", "norm=layernorm --diff", "--diff ffn.act=gelu"])
def test_equal_configurations_are_said_to_be_the_same(words, capsys):
    assert main(["explain", *words.split()]) == 0
    assert capsys.readouterr().out == "The two configurations are the same.\n"


def test_all_that_follows_is_the_second_configuration(capsys, tmp_path):
    words = f"norm=rmsnorm --diff norm=none --config-dir {tmp_path} ffn=relu --length 32 --json"
    assert main(["explain", *words.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["values"]["norm.part"] == {"a": "rmsnorm", "b": "none"}
    assert found["values"]["norm.eps"] == {"a": 1e-6}
    assert found["values"]["ffn.act"] == {"a": "gelu", "b": "relu"}
    assert (found["a"]["length"], found["b"]["parameters"]) == (32, 148_416)


def test_a_fault_of_the_second_configuration_is_one_of_the_request(capsys):
    assert main(["explain", "--diff", "norm=rmsnrm"]) == 2
    assert "norm=rmsnrm: must be one of" in capsys.readouterr().err


def test_there_are_two_configurations_at_most(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explain", "--diff", "norm=rmsnorm", "--diff", "norm=none"])
    assert caught.value.code == 2
    assert "--diff: there are two configurations" in capsys.readouterr().err
