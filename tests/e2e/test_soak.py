"""benchmarks/soak.py in short: 80 steps with faults end with each episode in the record, and
descriptors, threads and processes do not grow; a run that leaks is found out.

Not covered: what grows too slowly for 80 steps, memory above all; the benchmark's 10,000 have it.
"""

import math

import pytest

from benchmarks import soak

STEPS = 60


def test_a_short_run_with_faults_loses_no_episode_and_keeps_its_counts(tmp_path):
    # The first fault that needs the gateway, which then stays open, comes in step 31. Of the 40
    # steps from there on each two make a block: the fewer processes of two count.
    result = soak.soak(tmp_path, 2 * soak.NUM_BLOCKS + 40, warm_up=0.5, SOAK_FAULTS="0.03")
    assert result["missing_episodes"] == 0
    assert sum(result["episodes"].values()) > result["episodes"]["ok"]  # some had their fault
    for name in soak.COUNTS:
        assert result["growth"][name]["is_flat"], (name, result["growth"][name])


def test_a_run_that_leaks_is_found_out(tmp_path):
    result = soak.soak(tmp_path, STEPS, SOAK_FAULTS="0", SOAK_LEAKS="descriptor thread memory")
    for name in ("descriptors", "threads", "memory_mb"):
        assert not result["growth"][name]["is_flat"], (name, result["growth"][name])
    assert result["growth"]["descriptors"]["growth"] == pytest.approx(8 * STEPS, rel=0.1)
    assert not result["is_flat"]


def test_the_slope_is_that_of_least_squares_with_students_interval():
    """Of (0, 0), (1, 1), (2, 1): the line 1/6 + x/2, residuals -1/6, 1/3, -1/6, their squares 1/6,
    one degree of freedom, squares of x about their mean 2."""
    slope, half = soak.slope_with_interval([0, 1, 2], [0, 1, 1])
    assert slope == pytest.approx(1 / 2)
    assert half == pytest.approx(soak.STUDENT_95 * math.sqrt(1 / 12))


@pytest.mark.parametrize(
    "is_count, value_at, is_flat",
    [
        (False, lambda step: 100 + step / 1000, False),  # by 10 over the run, 2 % are 2
        (False, lambda step: 100 + step / 10_000, True),
        (False, lambda step: 100 - step / 1000, True),
        (True, lambda step: 20 + step // 2000, False),  # by 4
        (True, lambda step: 20 + 9 * (step % 500 < 100), True),  # a moment's work, again and again
    ],
)
def test_a_series_is_flat_where_it_grows_by_no_more_than_is_allowed(is_count, value_at, is_flat):
    points = [(float(step), float(value_at(step))) for step in range(0, 10_000, 25)]
    assert soak.growth(points, 10_000, is_count)["is_flat"] is is_flat


def test_the_growth_of_a_line_is_its_slope_over_the_whole_run():
    points = [(float(step), 5 + step / 4) for step in range(100)]
    found = soak.growth(points, steps=100, is_count=False)
    assert (found["growth"], found["low"], found["high"]) == pytest.approx((25, 25, 25))
