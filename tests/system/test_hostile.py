"""Hostile configurations: refused in under a second of work, and nothing in them is executed."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from encoderkit.cli import main
from encoderkit.config.check import check, plain
from encoderkit.config.request import configure
from encoderkit.config.text import read_yaml
from encoderkit.errors import ConfigError, EncoderkitError, StoreError
from encoderkit.plugins import registry
from encoderkit.sweep.load import configuration
from encoderkit.sweep.plan import plan

MOST = 1.0  # seconds of work: of this process, so that a busy neighbour does not count
BASE = "defaults: [layernorm, _self_]\n"


@pytest.fixture(autouse=True)
def warmed() -> None:
    configure("norm=rmsnorm")


def refused(call: Callable[[], Any], kind: type[EncoderkitError] = ConfigError) -> str:
    spent = []
    while not spent or (spent[-1] >= MOST and len(spent) < 3):  # other tests' garbage takes time
        began = time.process_time()
        with pytest.raises(kind) as caught:
            call()
        spent.append(time.process_time() - began)
    assert min(spent) < MOST
    assert len(str(caught.value)) < 10_000
    return str(caught.value)


def nested(value: Any, depth: int, wide: int = 1) -> Any:
    """Return a mapping `depth` levels deep, all of whose keys on a level hold the same object."""
    for _ in range(depth):
        value = {f"k{n}": value for n in range(wide)}
    return value


def endless() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found |= {"a": found, "b": [found, found]}
    return found


@pytest.mark.hazard("own: configuration bombs")
@pytest.mark.parametrize("group", ["norm", "model", "task", "sweep", "seed", "bogus", "schema"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested("x", 15, 10), "holds more than 10000 values"),
        (nested("x", 1000), "is nested more than 20 levels deep"),
        (endless(), "is nested more than 20 levels deep"),
        (["x"] * 20_000, "holds more than 10000 values"),
    ],
    ids=["bomb", "deep", "endless", "long"],
)
def test_a_mapping_that_explodes(group: str, value: Any, words: str) -> None:
    assert words in refused(lambda: configure({group: value}))
    assert words in refused(lambda: check({group: value}, registry()))
    assert words in refused(lambda: configure({"model": {"layers": [{"at": 0, "norm": value}]}}))


BIG = "x" * 10**6


@pytest.mark.hazard("own: configuration bombs")
@pytest.mark.parametrize(
    "request_",
    [
        {BIG: 1},
        {"norm": BIG},
        {f"norm.{BIG}": 1},
        {"norm": {BIG: 1}},
        {"model": {"layers": [{"at": 0, BIG: 1}]}},
        f"{BIG}=1",
        f"norm={BIG}",
        f"norm.eps={BIG}",
        f"norm.{BIG}=1",
        f"sweep.name={BIG}",
        "norm.eps=" + "[" * 1000 + "]" * 1000,
        "norm.eps=" + "{a:" * 1000 + "1" + "}" * 1000,
        "a." * 1000 + "b=1",
        "norm=a\0b",
        "norm\0=a",
        "sweep.dir=a\0b",
        "sweep.name=a\0b",
        {"norm": "rms\0norm"},
        {"nor\0m": "rmsnorm"},
    ],
    ids=range(19),
)
def test_a_large_or_strange_word(request_: Any) -> None:
    said = refused(lambda: configure(request_))
    assert "\0" not in said


@pytest.mark.parametrize("group", ["norm", "model", "experiment", "task", "train"])
@pytest.mark.parametrize(
    "name", ["../x", "../../etc/passwd", "/etc/passwd", "..", "norm/../x", "."]
)
def test_a_name_that_leads_elsewhere(group: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("eps: 1\n")
    (tmp_path / "conf" / "norm").mkdir(parents=True)
    dirs = [tmp_path / "conf"]
    refused(lambda: configure(f"{group}={name}", config_dirs=dirs))
    refused(lambda: configure(f"{group}='{name}'", config_dirs=dirs))
    refused(lambda: configure({group: name}, config_dirs=dirs))


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", ""])
def test_a_sweep_has_a_name_and_no_path(name: str) -> None:
    assert "one directory below runs" in refused(lambda: configure(f"sweep.name='{name}'"))


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)
FILES = {
    "bomb": (BOMB, "holds more than 10000 values"),
    "merges": (MERGES, "holds more than 10000 values"),
    "endless": ("eps: &e [*e]\n", "holds more than 10000 values"),
    "deep": ("eps: " + "[" * 1000 + "]" * 1000, "nested more than 20 levels deep"),
    "mappings": ("eps: " + "{a: " * 1000 + "1" + "}" * 1000, "nested more than 20 levels deep"),
    "key": (f"? {BIG}\n: 1\n", "has more than 50000 characters"),
    "nul": ('eps: "\0"\n', "special characters are not allowed"),
    "name": ("eps: !!python/name:os.system\n", "could not determine a constructor"),
    "apply": (
        'eps: !!python/object/apply:os.mkdir ["no"]\n',
        "could not determine a constructor",
    ),
    "module": ("eps: !!python/module:os\n", "could not determine a constructor"),
    "up": ("defaults: [../../x, _self_]\n", "../../x"),
    "target": ("_target_: os.system\n", "a configuration names parts, never code"),
    "inside": ("eps: {a: [{_target_: os.system}]}\n", "a configuration names parts, never code"),
}


@pytest.mark.hazard("own: configuration bombs", "hydra-ecosystem/hydra#3259")
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a preset, as an experiment, and as a preset that an experiment names."""
    monkeypatch.chdir(tmp_path)
    text, words = FILES[name]
    for group in ("norm", "experiment"):
        (tmp_path / "one" / group).mkdir(parents=True)
    (tmp_path / "two" / "experiment").mkdir(parents=True)
    own = text if name == "up" else BASE + text
    (tmp_path / "one" / "norm" / f"{name}.yaml").write_text(own)
    head = "# @package _global_\n"
    (tmp_path / "one" / "experiment" / "e.yaml").write_text(
        f"{head}defaults: [override /norm: {name}]\n"
    )
    (tmp_path / "two" / "experiment" / "e.yaml").write_text(head + text)
    one, two = [tmp_path / "one"], [tmp_path / "two"]
    assert words in refused(lambda: configure(f"norm={name}", config_dirs=one))
    assert words in refused(lambda: configure({"norm": name}, config_dirs=one))
    assert words in refused(lambda: configure("experiment=e", config_dirs=one))
    assert words in refused(lambda: configure("experiment=e", config_dirs=two))
    assert words in refused(lambda: plan(["experiment=e"], config_dirs=two))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.hazard("own: configuration bombs", "hydra-ecosystem/hydra#3259")
@pytest.mark.parametrize("name", [name for name in FILES if name != "up"])
def test_a_hostile_configuration_of_a_run(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    (tmp_path / "config.yaml").write_text(text)
    kind = ConfigError if name in ("target", "inside") else StoreError
    assert words in refused(lambda: configuration(tmp_path), kind)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value where a mapping stands, or may be written."""
    yield path
    items = tree.items() if isinstance(tree, Mapping) else ()
    items = enumerate(tree) if isinstance(tree, list) else items
    for key, value in items:
        yield from places(value, (*path, key))


def placed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a tree with `value` at a path, merged where a mapping stands there."""
    tree = copy.deepcopy(tree)
    if not path:
        return {**tree, **value}
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    inner[path[-1]] = {**old, **value} if isinstance(old, dict) else value
    return tree


CALL = {
    "_target_": "pathlib.Path.touch",
    "_args_": [{"_target_": "pathlib.Path", "_args_": ["no"]}],
}


@pytest.mark.hazard("hydra-ecosystem/hydra#3259", "hydra-ecosystem/hydra#3413")
def test_a_target_in_every_place_where_a_mapping_may_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rule = {"at": 0, "norm": {"part": "rmsnorm", "eps": 1e-5}}
    whole = plain(configure({"model": {"layers": [rule], "embed_norm": {"part": "layernorm"}}}))
    found = list(places(whole))
    assert ("model", "layers", 0, "norm", "eps") in found and ("model", "embed_norm") in found
    for path in found:
        tree = placed(whole, path, CALL)
        assert "never code" in refused(lambda tree=tree: check(tree, registry())), path
        for each in (tree, OmegaConf.create(tree)):
            said = refused(lambda each=each: configure(each))
            assert "never code" in said or path[-1:] == ("part",), path  # there it is no choice
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
        assert "never code" in refused(lambda: configuration(tmp_path)), path
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


WORD = "{_target_: pathlib.Path.touch, _args_: [{_target_: pathlib.Path, _args_: [no]}]}"


@pytest.mark.hazard("hydra-ecosystem/hydra#3413")
@pytest.mark.parametrize(
    "key",
    ["norm", "norm.eps", "model", "model.embed_norm", "model.layers.0", "task", "train.lr"]
    + ["train.expected_seconds", "sweep", "sweep.seeds", "seed", "run.device", "bogus", "schema"],
)
def test_a_target_in_a_word(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "never code" in refused(lambda: configure(f"{key}={WORD}"))
    said = refused(lambda: configure(f"{key}._target_=pathlib.Path.touch"))
    assert "never code" in said or key == "model.layers.0"  # there is no such rule
    refused(lambda: configure(f"+{key}={WORD}"))
    refused(lambda: plan([f"{key}={WORD},{WORD.replace('no', 'on')}"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.hazard("hydra-ecosystem/hydra#3413")
@pytest.mark.parametrize("words", [["model.layers=[{at:0,norm:%s}]"], ["model.layers=[%s]"]])
def test_a_target_in_a_rule(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "never code" in refused(lambda: configure(*[word % WORD for word in words]))
    assert main(["train", *[word % WORD for word in words]]) == 2
    assert list(tmp_path.iterdir()) == []


def test_what_a_preset_may_say_is_small_and_may_repeat_itself() -> None:
    assert read_yaml(b"a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")["c"] == {"x": 1, "y": 2}
