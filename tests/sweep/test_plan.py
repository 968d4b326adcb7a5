from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import encoderkit
from encoderkit.config.check import check, plain
from encoderkit.errors import ConfigError, StoreError
from encoderkit.plugins import registry
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.plan import notes, plan, single
from encoderkit.sweep.run import opening

SMALL = ["train.steps=4", "train.warmup=1", "model.d_model=16"]


def test_a_grid_is_planned_seed_by_seed() -> None:
    found = plan([*SMALL, "norm=rmsnorm,none", "ffn=relu,gelu", "seeds=2"])
    assert found.labels == [
        "norm=rmsnorm ffn=relu",
        "norm=rmsnorm ffn=gelu",
        "norm=none ffn=relu",
        "norm=none ffn=gelu",
    ]
    assert [cell.seed for cell in found.cells] == [0] * 4 + [1] * 4
    assert found.axes == ("norm", "ffn")
    assert found.baseline == "norm=rmsnorm ffn=relu"
    assert len({cell.id for cell in found.cells}) == 8
    assert all(cell.name == f"{cell.slug}-{cell.id}" for cell in found.cells)
    assert found.cells[0].slug == "norm-rmsnorm-ffn-relu-seed0"


def test_a_cell_says_how_to_run_it_alone() -> None:
    found = plan([*SMALL, "norm=rmsnorm,none", "seeds=[7]", "jobs=1", "sweep.name=x"])
    cell = found.cells[1]
    assert cell.overrides == (*SMALL, "norm=none", "seed=7")
    assert cell.reproduce == f"encoderkit train {' '.join(SMALL)} norm=none seed=7"
    _, again = single(shlex.split(cell.reproduce)[2:])
    assert again.id == cell.id


@pytest.mark.hazard("hydra-ecosystem/hydra#126")
def test_the_command_is_quoted_for_a_shell(tmp_path: Path) -> None:
    spaced = tmp_path / "my conf"
    spaced.mkdir()
    _, cell = single([*SMALL, "model.sublayers=[ffn, attention]"], config_dirs=[spaced])
    words = shlex.split(cell.reproduce)
    assert words[2:4] == [f"--config-dir={spaced}", SMALL[0]]
    assert "model.sublayers=[ffn, attention]" in words


def test_a_seed_beside_a_list_of_seeds_would_have_no_effect() -> None:
    with pytest.raises(ConfigError, match="seed=5: has no effect beside a list of seeds."):
        plan([*SMALL, "seeds=[0,1]", "seed=5"])
    assert {cell.seed for cell in plan([*SMALL, "seeds=[4,5]", "seed=5"]).cells} == {4, 5}


def test_a_tree_is_the_whole_resolved_configuration() -> None:
    found = plan([*SMALL, "norm=rmsnorm", "seeds=[3]"])
    tree = found.cells[0].tree
    assert (tree["seed"], tree["seed_init"], tree["seed_data"]) == (3, 3, 3)
    assert tree["model"]["d_model"] == 16
    assert plain(check(tree, registry())) == tree
    json.dumps(tree, allow_nan=False)


def test_one_variant_is_called_default() -> None:
    found = plan([*SMALL])
    assert [(c.label, c.seed) for c in found.cells] == [("default", 0)]


def test_seeds_are_counted_from_the_seed_that_was_given() -> None:
    assert [c.seed for c in plan([*SMALL, "seed=5", "seeds=2"]).cells] == [5, 6]
    assert [c.seed for c in plan([*SMALL, "seed=1,2", "seeds=2"]).cells] == [1, 2, 3]


def test_the_same_cell_by_two_names_is_one_and_is_named() -> None:
    found = plan([*SMALL, "ffn=geglu,glu,swiglu", "ffn.act=gelu,silu", "seeds=2"])
    assert found.labels == ["ffn=geglu ffn.act=gelu", "ffn=geglu ffn.act=silu"]
    assert found.merged == {
        "ffn=glu ffn.act=gelu": "ffn=geglu ffn.act=gelu",
        "ffn=glu ffn.act=silu": "ffn=geglu ffn.act=silu",
        "ffn=swiglu ffn.act=gelu": "ffn=geglu ffn.act=gelu",
        "ffn=swiglu ffn.act=silu": "ffn=geglu ffn.act=silu",
    }
    assert len(found.cells) == 4


def test_a_baseline_may_be_called_by_either_name() -> None:
    found = plan([*SMALL, "ffn=glu,swiglu,geglu", "sweep.baseline=ffn=swiglu"])
    assert found.baseline == "ffn=glu"


def test_the_directory_is_named_asked_for_or_made_of_the_axes() -> None:
    request = [*SMALL, "norm=rmsnorm,none"]
    assert plan([*request, "sweep.dir=/tmp/x"]).directory == Path("/tmp/x")
    assert plan([*request, "sweep.name=mine"]).directory == Path("runs/mine")
    found = plan(request).directory
    assert found.parent == Path("runs") and len(found.name) == 12
    assert plan([*reversed(request), "seeds=2", "jobs=1"]).directory == found
    assert single(SMALL)[0] == Path("runs/train")
    assert single([*SMALL, "sweep.dir=/tmp/x"])[0] == Path("/tmp/x")


def test_a_baseline_is_one_of_the_variants() -> None:
    request = [*SMALL, "norm=rmsnorm,none"]
    assert plan([*request, "sweep.baseline='norm=none'"]).baseline == "norm=none"
    with pytest.raises(ConfigError, match=r"sweep.baseline=norm=nine: must be one of"):
        plan([*request, "sweep.baseline='norm=nine'"])


@pytest.mark.parametrize("axis", ["run.threads=1,2", "sweep.jobs=1,2", "seeds=1,2"])
def test_how_a_sweep_runs_cannot_vary_within_it(axis: str) -> None:
    with pytest.raises(ConfigError, match="says how a sweep runs, and cannot vary within one"):
        plan([*SMALL, axis])


def test_a_single_run_has_one_seed_and_its_overrides_for_a_label() -> None:
    _, cell = single([*SMALL, "norm=rmsnorm", "seed=4"])
    assert (cell.seed, cell.label) == (4, " ".join([*SMALL, "norm=rmsnorm"]))
    assert single([])[1].label == "default"
    with pytest.raises(ConfigError, match="seeds=3: one run has one seed. Use seed=0."):
        single([*SMALL, "seeds=3"])


@pytest.mark.parametrize(
    "word", ["match=params", "budget=flops", "sweep.zip=[norm+ffn]", "sweep.one_at_a_time=true"]
)
def test_a_single_run_refuses_what_only_a_sweep_heeds(word: str) -> None:
    with pytest.raises(ConfigError, match=r"^sweep\.\w+: has no effect on one run. Leave it out"):
        single([*SMALL, word])


def test_a_multiple_of_no_match_is_refused() -> None:
    with pytest.raises(ConfigError, match="match_multiple=4: has no effect with sweep.match=none"):
        plan([*SMALL, "ffn=gelu,relu", "sweep.match_multiple=4"])


def test_a_plan_is_written(tmp_path: Path) -> None:
    found = plan([*SMALL, "norm=rmsnorm,none", f"sweep.dir={tmp_path}/new"], command="the command")
    found.save()
    content = store.sweep(tmp_path / "new")
    assert content is not None
    assert content["command"] == "the command" and content["baseline"] == "norm=rmsnorm"
    assert [cell["id"] for cell in content["cells"]] == [cell.id for cell in found.cells]


@pytest.mark.hazard("own: a directory that cannot be written")
def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = plan([*SMALL, f"sweep.dir={tmp_path}/file/x"])
    with pytest.raises(StoreError, match="no results can be written there: Not a directory"):
        found.save()


def test_a_run_is_found_under_whatever_name_it_has(tmp_path: Path) -> None:
    where = f"sweep.dir={tmp_path}"
    (cell,) = plan([*SMALL, where]).cells
    (tmp_path / f"another-name-{cell.id}").mkdir()
    assert plan([*SMALL, where]).cells[0].name == f"another-name-{cell.id}"
    assert single([*SMALL, where, "norm=layernorm"])[1].name == f"another-name-{cell.id}"
    (tmp_path / cell.name).mkdir()
    assert plan([*SMALL, where]).cells[0].name == cell.name


def test_a_plan_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = encoderkit.plan([*SMALL, "norm=rmsnorm,none", "ffn=relu"], seeds=2)
    assert len(found) == 4
    assert list(found) == list(found.cells)
    assert str(found).splitlines() == [
        f"{cell.id}  {cell.label}  seed={cell.seed}" for cell in found
    ]
    assert json.loads(found.to_json()) == json.loads(record.dump(found.content()))
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_a_number_or_a_list() -> None:
    request = [*SMALL, "norm=rmsnorm"]
    assert [cell.seed for cell in plan(request, seeds=3)] == [0, 1, 2]
    assert [cell.seed for cell in plan(request, seeds=(4, 2))] == [4, 2]
    with pytest.raises(ConfigError, match="was given before, as seeds=2"):
        plan([*request, "seeds=2"], seeds=3)
    with pytest.raises(ConfigError, match="names no seed"):
        plan(request, seeds=[])


def test_a_plan_in_json_is_strict_and_complete() -> None:
    found = plan([*SMALL, "ffn=gelu,geglu,swiglu,glu", "sweep.exclude=['ffn=geglu']", "seeds=2"])
    content = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert content["axes"] == ["ffn"] and content["excluded"] == 1
    assert content["merged"] == {"ffn=glu": "ffn=swiglu"} and content["illegal"] == {}
    assert [each["label"] for each in content["variants"]] == ["ffn=gelu", "ffn=swiglu"]
    assert content["variants"][1]["against"]["confounded"] == ["ffn.bias: true -> false"]
    for cell, whole in zip(content["cells"], found, strict=True):
        assert (cell["id"], cell["label"], cell["seed"]) == (whole.id, whole.label, whole.seed)
        assert (cell["parameters"], cell["flops"]) == (whole.parameters, whole.flops)
        assert cell["reproduce"] == whole.reproduce
    assert notes(found)[:2] == [
        "ffn=glu is ffn=swiglu; it runs once",
        "1 points left out by sweep.exclude",
    ]


def test_the_baseline_stands_first_among_the_variants() -> None:
    found = plan([*SMALL, "norm=rmsnorm,none,dyt", "sweep.baseline=norm=none"])
    assert [each.label for each in found.variants] == ["norm=none", "norm=rmsnorm", "norm=dyt"]
    assert {cell.against["baseline"] for cell in found} == {"norm=none"}


def test_a_record_begins_with_what_its_plan_knows() -> None:
    cell = plan([*SMALL, "ffn=gelu,swiglu"]).cells[1]
    begun = opening(cell)
    assert begun.flops_per_token == cell.flops and cell.flops is not None
    assert begun.against == cell.against
    assert begun.against["confounded"] == ["ffn.bias: true -> false"]


def test_seeds_as_an_axis_are_runs_of_one_variant() -> None:
    found = plan([*SMALL, "seed=1,2", "norm=rmsnorm,none"])
    assert found.labels == ["norm=rmsnorm", "norm=none"]
    assert found.axes == ("norm",) and len(found.variants) == 2
    assert found.variants[1].against.factors == ("norm",)


def test_numbers_that_are_equal_are_one_variant() -> None:
    found = plan([*SMALL, "norm=scalenorm", "norm.eps=1,1.0,1e0"])
    assert len(found) == 1
    found = plan([*SMALL, "train.clip=1,null,2"])
    assert found.labels == ["train.clip=1", "train.clip=null", "train.clip=2"]


def test_another_sweep_is_not_planned_over_while_it_runs(tmp_path: Path) -> None:
    one, other = (
        plan([*SMALL, f"norm={norms}", f"sweep.dir={tmp_path}"], command=f"sweep {norms}")
        for norms in ("rmsnorm,none", "rmsnorm,layernorm")
    )
    one.save()
    with lock.attend(tmp_path):
        one.save()  # a second start of the same
        with pytest.raises(StoreError) as caught:
            other.save()
    assert str(caught.value) == (
        f"{tmp_path}: another sweep runs there: sweep rmsnorm,none. Wait for its end, or give this "
        "one a place of its own: sweep.name=NAME."
    )
    assert store.sweep(tmp_path)["command"] == "sweep rmsnorm,none"
    other.save()
    assert store.sweep(tmp_path)["command"] == "sweep rmsnorm,layernorm"


@pytest.mark.parametrize("key,value", [("sweep.dir", "a/{}/b"), ("sweep.name", "{}")])
def test_a_name_that_no_file_system_has(key: str, value: str) -> None:
    words = [*SMALL, "norm=rmsnorm,none"]
    with pytest.raises(ConfigError) as caught:
        plan([*words, f"{key}={value.format('x' * 256)}"])
    assert "a name has at most 255 bytes, and this one has 256. Give a shorter one." in str(
        caught.value
    )
    assert len(plan([*words, f"{key}={value.format('x' * 255)}"])) == 2
