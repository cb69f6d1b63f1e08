"""benchmarks/async_rollout.py in short: the real explorer and trainer on its simulated clock."""

from benchmarks import async_rollout


def test_explorer_and_trainer_at_once_are_as_fast_as_the_bound_allows(monkeypatch):
    monkeypatch.setattr(async_rollout, "STEPS", 8)
    found = async_rollout.measure(bound=2, draw=0)
    assert found["samples"] == 8 * async_rollout.GROUPS * async_rollout.MEMBERS
    assert (found["oldest"], found["expired"]) == (2, 0)
    assert found["ratio"] > 1.5 and found["of_limit"] >= async_rollout.GOAL
