"""The arithmetic of a run that begins more episodes than it trains, by hand."""

import pytest

from ajet.core.config import load_config
from ajet.core.run.batch_plan import BatchPlan

ALGORITHM = "ajet.trainer_common.algorithm"


@pytest.mark.parametrize(
    ("overrides", "begun", "named"),
    [
        ([], 4 * 2, None),
        (["ajet.rollout.group_size_redundancy=1"], 4 * 3, "rollout.group_size_redundancy"),
        (["ajet.rollout.enable_oversample=true"], 6 * 2, "rollout.enable_oversample"),
        ([f"{ALGORITHM}.dynamic_sampling.enable=true"], 4 * (4 * 2), "algorithm.dynamic_sampling"),
        ([f"{ALGORITHM}.adv_estimator=remax"], 4 * 2 + 4, "remax"),
    ],
)
def test_the_plan_says_how_many_episodes_begin_at_most(tmp_path, overrides, begun, named):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    sizes = ["ajet.data.train_batch_size=4", "ajet.rollout.num_repeat=2"]
    plan = BatchPlan(load_config(path, [*sizes, *overrides]), 100, 0)
    assert (plan.episodes_per_step, plan.max_episodes_per_step) == (8, begun)
    rows = [row for row in plan.rows() if row[0] == "episodes that begin"]
    assert rows == ([("episodes that begin", f"<= {begun}", f"a step: {named}")] if named else [])
