"""`ajet inspect score`: an episode's tokens under the first model and each checkpoint."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.scores import EpisodeScores, add_scores, read_scores
from ajet.read.episode_reader import EpisodeReader

FIRST = "000001-train-0000-00"


@pytest.fixture
def scored(folder, tmp_path, monkeypatch):
    """A copy of the run's folder, since the command writes into it."""
    monkeypatch.chdir(folder)
    copy = tmp_path / "toy"
    shutil.copytree(folder / "toy/launcher_record/toy", copy)
    return RunFolder(copy)


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


def test_the_first_steps_tokens_have_the_probability_that_the_sampler_recorded(scored):
    result = run("score", str(scored.path), FIRST)
    assert result.exit_code == 0, result.output
    before, after = read_scores(scored, FIRST)
    assert (before.step, after.step) == (0, 1)
    with EpisodeReader(scored.episodes_db) as reader:
        turns = reader.episode(FIRST).turns
    for turn, at_first, at_last in zip(turns, before.turns, after.turns, strict=True):
        # torch's own float32 is up to 1.1e-4 from its float64 on this model.
        np.testing.assert_allclose(at_first, turn.logprobs, atol=5e-4)
        assert np.abs(np.array(at_last) - turn.logprobs).max() > 1e-3  # a step was learnt
    assert "step 0: mean log-probability" in result.stdout and "written: " in result.stdout


def test_a_checkpoint_that_is_not_kept_is_one_line(scored):
    result = run("score", str(scored.path), FIRST, "--checkpoints", "1,7")
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert "no checkpoint of step 7" in line and "those of steps 1" in line
    assert read_scores(scored, FIRST) == []


def test_scores_of_other_steps_stay_and_those_of_a_step_are_replaced(tmp_path):
    folder = RunFolder(tmp_path)
    add_scores(folder, "a/../b", [EpisodeScores(5, [[-1.0]]), EpisodeScores(0, [[-2.0]])])
    add_scores(folder, "a/../b", [EpisodeScores(5, [[-0.5]])])
    kept = read_scores(folder, "a/../b")
    assert [(each.step, each.turns) for each in kept] == [(0, [[-2.0]]), (5, [[-0.5]])]
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["scores"]
