from __future__ import annotations

import pickle

from encoderkit.sweep.plan import single


def test_a_cell_travels_as_plain_data() -> None:
    _, cell = single(["norm=rmsnorm"])
    assert cell.name == f"norm-rmsnorm-seed0-{cell.id}"
    assert pickle.loads(pickle.dumps(cell)) == cell
    assert b"torch" not in pickle.dumps(cell)
