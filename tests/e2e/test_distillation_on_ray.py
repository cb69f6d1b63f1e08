"""Stages on backbones debug, verl and trinity: given replies, good and bad ones, then a teacher
without any reward.

One YAML and one seed in float64, as in test_backbones_agree.py.
"""

import json

import numpy as np
import pytest

from tests.e2e.three_backbones import SETTINGS, episodes, numbers, run_on_each, weights

pytestmark = pytest.mark.ray
ON_RAY = pytest.mark.parametrize("backbone", ["verl", "trinity"])
STEPS = 3
STAGES = """
  stages:
    imitate:
      kind: supervised
      task_reader: {jsonl_dataset_file: {training: {file_path: rows.jsonl}}}
    prefer:
      kind: preference
      preference: {loss: kto}
      task_reader: {jsonl_dataset_file: {training: {file_path: pairs.jsonl}}}
    teach:
      kind: distillation
      distillation: {path: "embedded:math"}
      rollout: {user_workflow: workflow.py->Unrewarded}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The three run folders."""
    folder = tmp_path_factory.mktemp("taught")
    rows = [{"prompt": f"What is {n}?", "completion": str(n * n)} for n in range(9)]
    for backbone in ("debug", "verl", "trinity"):
        (folder / backbone).mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / backbone / "rows.jsonl").write_text(lines)
        labelled = [row | {"label": n % 2 == 0} for n, row in enumerate(rows)]
        lines = "".join(json.dumps(row) + "\n" for row in labelled)
        (folder / backbone / "pairs.jsonl").write_text(lines)
    settings = [f"ajet.trainer_common.total_training_steps={STEPS}", "ajet.rollout.num_repeat=2"]
    return run_on_each(folder, [*SETTINGS, *settings, "ajet.trainer_common.optim.lr=1e-5"], STAGES)


@ON_RAY
def test_all_stages_have_the_weights_of_backbone_debug_within_a_millionth(runs, backbone):
    for stage in ("imitate", "prefer", "teach"):
        debug, other = (weights(runs[name], STEPS, stage) for name in ("debug", backbone))
        assert debug.keys() == other.keys()
        assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6
        moved = numbers(runs[backbone], "update/grad_norm", stage=stage)
        assert moved.shape == (STEPS, 1) and (moved > 1e-3).all()


@ON_RAY
def test_good_and_bad_replies_are_told_apart_by_every_trainer(runs, backbone):
    names = ("preference/good_reward", "preference/bad_reward", "preference/loss")
    debug, other = (numbers(runs[name], *names, stage="prefer") for name in ("debug", backbone))
    assert other.shape == (STEPS, 3) and np.abs(other - debug).max() < 1e-9
    assert (debug[1:] != 0).all()


@ON_RAY
def test_a_stage_of_given_replies_has_no_engines_and_the_next_one_has(runs, backbone):
    given, sampled = (
        numbers(runs[backbone], "sync/bytes", stage=stage) for stage in ("imitate", "teach")
    )
    assert (given == 0).all() and (sampled > 1e5).all()


@ON_RAY
def test_what_was_sampled_and_its_distance_from_the_teacher_are_the_same(runs, backbone):
    assert len(episodes(runs["debug"], "teach")) == STEPS * 3 * 2 * 2
    assert episodes(runs[backbone], "teach") == episodes(runs["debug"], "teach")
    names = ("update/loss", "update/kl_teacher")
    debug, other = (numbers(runs[name], *names, stage="teach") for name in ("debug", backbone))
    assert np.abs(other - debug).max() < 1e-6
    assert (np.abs(debug) > 1e-6).all()


@ON_RAY
def test_episodes_without_a_judge_have_no_reward_and_none_failed(runs, backbone):
    text = (runs[backbone].path / "teach/logs/metrics.jsonl").read_text()
    for line in map(json.loads, text.splitlines()):
        assert not [name for name in line if name.startswith("reward/")]
        assert line["episodes/ok"] == line["episodes/total"] == 6
    assert {(row[1], row[3]) for row in episodes(runs[backbone], "teach")} == {("ok", None)}
