"""The bar, and the lines where there is no terminal."""

from __future__ import annotations

from encoderkit.cli.progress import Bar, Lines


def field(bar, name):
    return bar._progress.tasks[0].fields[name]


def test_the_bar_shows_no_number_before_there_is_one():
    bar = Bar(400)
    assert (field(bar, "loss"), field(bar, "speed")) == ("-", "-")
    bar.progress(1, 1.23456, 12345.6)
    assert (field(bar, "loss"), field(bar, "speed")) == ("1.2346", "12,346")


def test_the_bar_of_a_resumed_run_starts_where_the_run_starts(capsys):
    with Bar(400) as bar:
        bar.progress(201, 1.0, 10.0)
        (task,) = bar._progress.tasks
        assert task.completed == 201
        assert sum(sample.completed for sample in task._progress) <= 1  # of this sitting alone
        bar.progress(202, 1.0, 10.0)
        assert task.completed == 202
    capsys.readouterr()


def test_lines_come_at_every_tenth(capsys):
    lines = Lines(400)
    for step in range(1, 401):
        lines.progress(step, 1.23456, 12345.0)
    printed = capsys.readouterr()
    assert printed.out == ""
    found = printed.err.splitlines()
    assert found[0] == "step 40/400 loss 1.2346 12,345 tokens/s"
    assert [int(line.split()[1].split("/")[0]) for line in found] == list(range(40, 401, 40))


def test_a_short_run_has_at_most_ten_lines(capsys):
    for steps in (1, 4, 19):
        lines = Lines(steps)
        for step in range(1, steps + 1):
            lines.progress(step, 1.0, 1.0)
        assert 1 <= len(capsys.readouterr().err.splitlines()) <= 10
