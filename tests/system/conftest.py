"""One tiny sweep that nothing disturbed, which every drill is held against."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the cells' processes import `drill` too

import drill
from drill import Found, Make

from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.runner import run_sweep


@pytest.fixture(scope="session", autouse=True)
def nothing_of_pytest_in_the_cells() -> Iterator[None]:
    """Keep each cell's process from importing pytest's own main module first."""
    main = sys.modules["__main__"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "__spec__", None, raising=False)
        patch.delattr(main, "__file__", raising=False)
        yield


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    place = tmp_path_factory.mktemp("undisturbed") / "s"
    return plan([*drill.SMALL, "seeds=20", "jobs=2", f"sweep.dir={place}"])


@pytest.fixture(scope="session")
def undisturbed(planned: Plan) -> dict[str, Found]:
    assert run_sweep(planned) == 0
    return drill.found(planned.directory)


@pytest.fixture
def make(planned: Plan, tmp_path: Path) -> Make:
    """Return a function that gives the plan's first cells a new directory of their own."""

    def made(cells: int, name: str = "s") -> Plan:
        return replace(planned, cells=planned.cells[:cells], directory=tmp_path / name)

    return made
