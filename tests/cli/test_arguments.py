"""What the commands' parsers share: words that are no option, answered with what to type."""

from __future__ import annotations

import pytest

from encoderkit.cli import main


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("sweep --seeds 3", "An override has no dashes: write seeds=3."),
        ("sweep --seeds", "An override has no dashes: write seeds=VALUE."),
        ("sweep --seeds norm=rmsnorm", "An override has no dashes: write seeds=VALUE."),
        ("train --norm=rmsnorm", "An override has no dashes: write norm=rmsnorm."),
        ("show -train.lr=1e-3", "An override has no dashes: write train.lr=1e-3."),
        ("explain --diff --seed=3", "An override has no dashes: write seed=3."),
        ("train --dry-run", "--dry-run belongs to encoderkit sweep."),
        ("sweep norm=rmsnorm --watch 3", "--watch belongs to encoderkit status."),
        ("show -m", "-m belongs to encoderkit train."),
        ("train --fail-fast --trial", "sweep. --trial belongs to encoderkit sweep."),
        ("train --quite", "Did you mean --quiet?"),
        ("train --zzz 3", "Overrides are KEY=VALUE, without dashes."),
    ],
)
def test_what_is_no_option_is_answered_with_what_to_type(words, advice, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "error: unrecognized arguments: -" in err
    assert err.endswith(f"{advice}\n")
