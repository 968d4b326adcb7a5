from __future__ import annotations

import subprocess
import sys

import pytest

import encoderkit.train


def test_every_public_name_is_there() -> None:
    for name in encoderkit.train.__all__:
        assert callable(getattr(encoderkit.train, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = encoderkit.train.nothing


def test_metrics_are_read_without_torch() -> None:
    code = "import sys, encoderkit.train.metrics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
