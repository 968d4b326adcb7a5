"""One name in several packages: no order decides whose it is."""

from __future__ import annotations

import json

import pytest
import torch

import encoderkit
from encoderkit import plugins
from encoderkit.cli import main
from encoderkit.config.check import check, plain
from encoderkit.config.compose import Composer
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError

BOTH = "norm=foo: is a name of pkg-a 1.0 and Pkg.B 1.0. Type norm=pkg-a/foo or norm=pkg-b/foo."


@pytest.fixture
def two(install):
    """Install two packages that share the part foo, and each have one of their own."""
    install("pkg-a", ("norm", "foo"), ("norm", "only_a"), gain=2)
    install("Pkg.B", ("norm", "foo"), ("norm", "only_b"), gain=3)


@pytest.mark.hazard("PyCQA/flake8#1090")
@pytest.mark.usefixtures("two")
def test_each_of_two_is_chosen_by_its_package():
    for choice, gain in [("pkg-a/foo", 2), ("pkg-b/foo", 3), ("only_a", 2), ("only_b", 3)]:
        for request in ([f"norm={choice}"], [{"norm": choice}], [{"norm": {"part": choice}}]):
            config = configure(*request)
            assert config.norm.entry.part.name == choice
            assert check(plain(config), plugins.registry()) == config
        stack = encoderkit.build(f"norm={choice}", "model.n_layers=1")
        assert torch.equal(stack.final(torch.ones(1, 64), None), torch.full((1, 64), float(gain)))


@pytest.mark.usefixtures("two")
def test_the_plain_name_is_refused_and_both_are_named():
    for request in (["norm=foo"], [{"norm": "foo"}], [{"norm": {"part": "foo"}}]):
        with pytest.raises(ConfigError) as caught:
            configure(*request)
        assert str(caught.value) == BOTH
    tree = plain(configure("norm=only_a")) | {"norm": {"part": "foo"}}
    with pytest.raises(ConfigError) as caught:  # a run from before the second package came
        check(tree, plugins.registry())
    assert str(caught.value) == BOTH
    with Composer(plugins.registry()) as composer, pytest.raises(ConfigError) as caught:
        composer.columns(["norm=layernorm,foo"])
    assert BOTH in str(caught.value)


@pytest.mark.usefixtures("two")
def test_record_and_identity_say_which():
    a, b = configure("norm=pkg-a/foo"), configure("norm=pkg-b/foo")
    assert plain(a)["norm"] == {"part": "pkg-a/foo"}
    assert part_versions(a)["norm"]["part"] == "pkg-a/foo"
    assert part_versions(b)["norm"]["distribution"] == "Pkg.B"
    assert identity(a, "") != identity(b, "")


@pytest.mark.usefixtures("two")
def test_every_command_knows_the_qualified_name(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["parts", "norm", "--json"]) == 0
    captured = capsys.readouterr()
    names = {row["choice"] for row in json.loads(captured.out)}
    assert {"pkg-a/foo", "pkg-b/foo", "only_a"} <= names and "foo" not in names
    warned = "warning: norm=foo is a name of pkg-a 1.0 and Pkg.B 1.0. Type norm=pkg-a/foo or "
    assert captured.err == f"{warned}norm=pkg-b/foo.\n"
    for words in (["show", "norm=pkg-a/foo"], ["explain", "norm=pkg-b/foo"]):
        assert main(words) == 0
        assert words[1].removeprefix("norm=") in capsys.readouterr().out
    tiny = ["train=smoke", "train.steps=2", "model.n_layers=1"]
    assert main(["train", "norm=pkg-a/foo", *tiny, "--quiet"]) == 0
    (tree,) = tmp_path.glob("runs/train/*/config.yaml")
    assert "part: pkg-a/foo" in tree.read_text()
    record = json.loads((tree.parent / "record.json").read_text())
    assert record["parts"]["norm"]["part"] == "pkg-a/foo"
    assert main(["train", f"resume={tree.parent}"]) == 0
    axis = "norm=pkg-a/foo,pkg-b/foo"
    assert main(["sweep", axis, *tiny, "sweep.dir=s", "jobs=1"]) == 0
    out = capsys.readouterr().out
    assert "norm=pkg-a/foo" in out and "norm=pkg-b/foo" in out and "2 runs" in out
    assert main(["train", "-m", axis, *tiny, "sweep.dir=m", "--quiet"]) == 0


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("norm=pk", {"norm=pkg-a/foo", "norm=pkg-b/foo"}),
        ("norm=pkg-b/", {"norm=pkg-b/foo"}),
        ("norm=foo", set()),
        ("nor", {"norm=", "norm."}),
    ],
)
def test_completion(line, wanted, capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", f"encoderkit train {line}")
    monkeypatch.setenv("COMP_POINT", "99")
    assert main(["-sc", "query=bash"]) == 0
    assert set(capsys.readouterr().out.split()) == wanted


def test_a_built_in_keeps_its_name(install):
    install("pkg-a", ("norm", "layernorm"), ("ffn", "swiglu"))
    found = plugins.registry()
    assert not found.problems
    assert configure("norm=layernorm").norm.entry.owner.distribution == "encoderkit"
    assert configure("norm=pkg-a/layernorm").norm.entry.owner.distribution == "pkg-a"
    assert configure("ffn=swiglu").ffn.entry.part.name == "glu"
    assert configure("ffn=pkg-a/swiglu").ffn.entry.part.name == "pkg-a/swiglu"
    assert str(found.clashes["norm", "layernorm"]) == (
        "norm=layernorm is a name of pkg-a 1.0, and stays the name of the built-in. "
        "Type norm=pkg-a/layernorm."
    )


def test_the_order_of_packages_decides_nothing(install):
    install("pkg-a", ("norm", "foo"))
    install("pkg-b", ("norm", "foo"))
    points = list(plugins.entry_points(group=plugins.GROUP))
    one, other = plugins.load(points), plugins.load(points[::-1])
    assert one.entries == other.entries
    assert one.clashes == other.clashes


EXPERIMENT = "# @package _global_\ndefaults:\n  - override /norm: foo\n  - _self_\n"


def test_presets_clash_like_parts_and_mean_the_parts_of_their_own_package(install, tmp_path):
    a = {
        "ffn/wide.yaml": "defaults: [mlp, _self_]\nwidth: 300\n",
        "norm/nice.yaml": "defaults: [foo, _self_]\n",
        "norm/foo_too.yaml": "defaults: [nice, _self_]\n",
        "experiment/try.yaml": EXPERIMENT,
        "model/tiny.yaml": "d_model: 32\nn_layers: 1\nn_heads: 1\n",
    }
    install("pkg-a", ("norm", "foo"), presets=a)
    install("pkg-b", ("norm", "foo"), presets={"ffn/wide.yaml": a["ffn/wide.yaml"]})
    assert not plugins.registry().problems
    for request in (["ffn=pkg-b/wide", "norm=foo_too"], [{"ffn": "pkg-b/wide", "norm": "nice"}]):
        config = configure(*request)
        assert config.ffn.options.width == 300
        assert config.norm.entry.part.name == "pkg-a/foo"
    assert configure("experiment=try").norm.entry.part.name == "pkg-a/foo"
    assert configure("model=pkg-a/tiny").model.d_model == 32
    assert configure("model=tiny").model.d_model == 64
    with pytest.raises(ConfigError, match=r"ffn=wide: is a name of pkg-a 1.0 and pkg-b 1.0\. Type"):
        configure("ffn=wide")
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "e.yaml").write_text(EXPERIMENT)
    mine = [tmp_path / "mine"]
    with pytest.raises(ConfigError, match="norm=foo is a name of pkg-a 1.0 and pkg-b 1.0. Type"):
        configure("experiment=e", config_dirs=mine)
    (mine[0] / "experiment" / "e.yaml").write_text(EXPERIMENT.replace("foo", "pkg-b/foo"))
    (mine[0] / "ffn").mkdir()
    (mine[0] / "ffn" / "wide.yaml").write_text("defaults: [pkg-b/wide, _self_]\nwidth: 301\n")
    config = configure("experiment=e", "ffn=wide", config_dirs=mine)
    assert config.norm.entry.part.name == "pkg-b/foo" and config.ffn.options.width == 301
    assert configure({"ffn": "wide"}, config_dirs=mine).ffn.options.width == 301
    with Composer(plugins.registry()) as composer:
        origins = {o.path: o.source for o in composer.origins(["ffn=pkg-b/wide"])}
    assert origins["ffn.width"] == "ffn/pkg-b/wide.yaml (pkg-b 1.0)"
    assert origins["ffn.act"].startswith("ffn/mlp (encoderkit ")


def test_two_plugins_of_one_package_that_share_a_name_are_both_left_out(install):
    module = install("pkg-a", ("norm", "foo"), ("norm", "bar"))
    (module.parent / "pkg_a_too.py").write_text((module / "__init__.py").read_text())
    points = module.parent / "pkg_a-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}too = pkg_a_too\n")
    (module.parent / "conf").mkdir()
    first, second = plugins.registry().problems
    assert str(first) == (
        "plugin pkg-a (pkg-a 1.0) failed at names: norm=bar is also in plugin too of the same "
        "package"
    )
    assert "plugin too (pkg-a 1.0) failed at names" in str(second)
    with pytest.raises(ConfigError, match="norm=foo: cannot be chosen: plugin pkg-a .pkg-a 1.0."):
        configure("norm=foo")


def test_a_qualified_name_that_is_not_needed_leads_to_the_plain_one(install):
    install("pkg-a", ("norm", "foo"))
    with pytest.raises(ConfigError, match=r"norm=pkg-a/foo: must be .* Did you mean foo\?"):
        configure("norm=pkg-a/foo")


@pytest.mark.hazard("PyCQA/flake8#1090")
def test_one_entry_point_name_in_two_packages(install):
    install("pkg-a", ("norm", "of_a"), point="same")
    install("pkg-b", ("norm", "of_b"), point="same", __init__="API_VERSION = 0\n")
    install("pkg-c", ("norm", "of_c"), point="same")
    assert {"of_a", "of_c"} <= set(plugins.registry().names("norm"))
    (problem,) = plugins.registry().problems
    assert str(problem).startswith("plugin same (pkg-b 1.0) failed at API version: ")
