"""How faults and errors read."""

from __future__ import annotations

import pickle

from encoderkit.errors import ConfigError, Fault, nearest


def test_one_fault_is_one_line():
    error = ConfigError([Fault("norm.eps=-1", "must be above 0.", "Try norm.eps=1e-6.")])
    assert str(error) == "norm.eps=-1: must be above 0. Try norm.eps=1e-6."


def test_many_faults_are_counted_and_listed():
    error = ConfigError([Fault("a=1", "bad."), Fault("b=2", "worse.")])
    assert str(error) == "2 faults in this request:\n  a=1: bad.\n  b=2: worse."


def test_advice_on_the_whole_request_is_the_last_line():
    error = ConfigError([Fault("a=1", "bad."), Fault("b=2", "worse.")], "Leave out\x1b both.")
    assert str(error).endswith("\n  b=2: worse.\nLeave out\\x1b both.")


def test_config_error_crosses_processes():
    error = pickle.loads(pickle.dumps(ConfigError([Fault("a", "bad.")], "Go.")))
    assert error.faults == (Fault("a", "bad."),)
    assert str(error) == "a: bad.\nGo."


def test_group_of_a_fault():
    assert Fault("norm.eps=-1", "").group == Fault("norm=x", "").group == "norm"


def test_nearest():
    assert nearest("rmsnrm", ["layernorm", "rmsnorm"]) == "Did you mean rmsnorm?"
    assert nearest("zzz", ["layernorm"]) == ""


def test_faults_are_printed_safely_and_short():
    assert str(Fault("norm=\x1b[31m\n\u202e\x00", "bad.")) == (r"norm=\x1b[31m\n\u202e\x00: bad.")
    assert len(str(Fault("x" * 10**6, "bad."))) < 210
    assert str(Fault("norm", "two\nlines.")) == "norm: two\nlines."


def test_nearest_ignores_case_and_takes_long_words():
    assert nearest("RMSNorm", ["rmsnorm"]) == "Did you mean rmsnorm?"
    assert nearest("x" * 10**6, ["rmsnorm"]) == ""
