"""benchmarks/soak.py in short: 80 steps with faults end with each episode in the record, and
descriptors, threads and processes do not grow; a run that leaks is found out.

Not covered: what grows too slowly for 80 steps, memory above all; the benchmark's 10,000 have it.
"""

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
