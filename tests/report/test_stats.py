from __future__ import annotations

import math

import pytest

from encoderkit.report import stats

# Student's t at 0.975, from printed tables.
TABLE = {
    **{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306},
    **{9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120},
    **{17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 21: 2.080, 22: 2.074, 23: 2.069, 24: 2.064},
    **{25: 2.060, 26: 2.056, 27: 2.052, 28: 2.048, 29: 2.045, 30: 2.042, 60: 2.000, 120: 1.980},
}


@pytest.mark.parametrize("df", TABLE)
def test_t_quantile_is_that_of_the_printed_tables(df: int) -> None:
    assert round(stats.t_quantile(0.975, df), 3) == TABLE[df]


@pytest.mark.parametrize(
    ("p", "df", "exact"),
    [
        (0.75, 1, 1.0),  # tan(pi / 4)
        (0.995, 1, 63.656741162871526),  # tan(.495 pi)
        (0.975, 2, 0.95 * math.sqrt(2 / (1 - 0.95**2))),  # a sqrt(2 / (1 - a^2)), a = 2 p - 1
        (0.5, 7, 0.0),
    ],
)
def test_t_quantile_equals_its_closed_forms(p: float, df: int, exact: float) -> None:
    assert stats.t_quantile(p, df) == pytest.approx(exact, rel=1e-11, abs=1e-12)


def test_quantile_and_probability_are_inverse() -> None:
    for df in (1, 2, 3, 8, 33, 200):
        for p in (0.6, 0.9, 0.999):
            t = stats.t_quantile(p, df)
            assert stats.t_probability(t, df) == pytest.approx(p, abs=1e-12)


def test_mean_and_sd() -> None:
    assert stats.mean([1.0, 2.0, 6.0]) == 3.0
    assert stats.sd([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(7))
    assert stats.mean([]) is None
    assert stats.sd([1.0]) is None


def test_a_large_offset_does_not_eat_the_spread() -> None:
    assert stats.sd([1e9 + 1, 1e9 + 2, 1e9 + 3]) == 1.0


def test_the_largest_floats_have_a_mean_and_a_spread() -> None:
    big = 1.7e308
    assert stats.mean([big, big]) == big
    assert stats.sd([1e300, -1e300]) == pytest.approx(2**0.5 * 1e300)
    assert stats.sd([big, -big]) == float("inf")
    gap = stats.paired({0: big, 1: -big}, {0: -big, 1: big})
    assert gap is not None and math.isnan(gap.mean)


@pytest.mark.hazard("hudson-infinity/nyssa-bench#10")
def test_paired_uses_the_seeds_that_both_have() -> None:
    found = stats.paired({0: 1.0, 1: 2.0, 2: 4.0, 7: 100.0}, {2: 1.0, 1: 1.0, 0: 0.5, 9: 50.0})
    # Differences .5, 1, 3: mean 1.5, sd sqrt(1.75).
    assert found is not None and found.low is not None and found.high is not None
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) * math.sqrt(1.75) / math.sqrt(3)
    assert (found.pairs, found.mean) == (3, 1.5)
    assert [found.low, found.high] == pytest.approx([1.5 - half, 1.5 + half])


def test_one_pair_has_no_interval_and_none_no_difference() -> None:
    assert stats.paired({3: 2.0}, {3: 1.5}) == stats.Difference(1, 0.5, None, None)
    assert stats.paired({3: 2.0}, {4: 1.5}) is None


def test_pairing_cancels_what_the_seeds_share() -> None:
    base = {seed: 10.0 * seed for seed in range(5)}
    found = stats.paired({seed: value + 0.25 for seed, value in base.items()}, base)
    assert found == stats.Difference(5, 0.25, 0.25, 0.25)
