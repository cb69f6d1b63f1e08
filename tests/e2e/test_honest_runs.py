"""The real command says what a person must know: no signal, a gap, an episode that hangs."""

import json
import os
import signal
import subprocess
import sys

from ajet.core.record.warning_log import read_warnings
from tests.e2e.toy_run import ToyRun, ended, environment, episodes, metrics, wait_until

HUNG = "000002-train-0001-02"


def of(folder, workflow, *overrides):
    return ToyRun(folder, f"ajet.rollout.user_workflow=workflow.py->{workflow}", *overrides)


def summary(toy):
    return json.loads((toy.path / "summary.json").read_text())


def stop(toy, episode):
    """`ajet inspect stop` beside the run."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "stop", str(toy.path), episode]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)


def test_a_run_without_signal_says_why_once_and_at_its_end_over_a_resume_too(tmp_path):
    toy = of(tmp_path, "AllEqual")
    assert toy.finish("ajet.trainer_common.total_training_steps=2") == 0
    assert toy.finish("ajet.trainer_common.total_training_steps=3") == 0
    assert toy.stderr().count("no group of step 1 has signal, so nothing is learnt: all 16") == 1
    [line] = [line for line in toy.stderr().splitlines() if "no group of step 1" in line]
    assert "rewards are 0.5" in line and "`ajet debug --conf toy.yaml" in line
    assert "ajet.trainer_common.total_training_steps=2" in line  # the command shows the same run
    assert toy.stdout().count("signal 0/4 groups") == 3
    found = summary(toy)["signal"]
    assert (found["steps"], found["steps_without"], found["groups_with"]) == (3, 3, 0)
    names = [each["name"] for each in summary(toy)["warnings"]]
    assert names == ["no_signal", "truncation"]  # its replies have 12 tokens at most
    assert "nothing was learnt: none of the 3 steps had a group with signal" in toy.stdout()
    assert [each.name for each in read_warnings(toy.path / "logs/warnings.jsonl")] == names


def test_a_gap_between_sampler_and_trainer_ends_the_run_with_a_checkpoint_and_one_line(tmp_path):
    gate = "ajet.trainer_common.sampler_gap={action: stop, max_kl: 0.01}"
    toy = of(tmp_path, "Plain", gate, "ajet.rollout.top_p=0.5")  # the trainer does not cut
    assert toy.finish() == 1
    (line,) = toy.errors()
    assert line.startswith("error: stopped after step 1 (ajet.trainer_common.sampler_gap.action")
    assert "ajet.trainer_common.sampler_gap.max_kl" in line
    assert toy.steps_saved() == [1]
    assert "warning: sampler and trainer have drifted apart: KL" in toy.stderr()


def test_a_stopped_episode_is_stopped_again_in_a_run_that_resumes_from_before_it(tmp_path):
    runs = [of(tmp_path / name, "ToolHangs", "ajet.trainer_common.save_freq=0") for name in "ab"]
    for toy, is_killed in zip(runs, (False, True), strict=True):
        with ended(toy.start()) as process:
            assert wait_until((toy.folder / "hangs").exists, process)
            answer = stop(toy, HUNG)
            assert (answer.returncode, answer.stdout) == (0, f"{HUNG} is stopped\n"), answer.stderr
            if is_killed:
                assert wait_until(lambda: toy.episodes("begin", 4) > 0, process)  # noqa: B023
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            else:
                assert process.wait(240) == 0, toy.stderr()
    whole, killed = runs
    assert killed.finish(timeout=240) == 0, killed.stderr()
    assert killed.final_tensors() == whole.final_tensors()
    assert episodes(killed) == episodes(whole) and metrics(killed) == metrics(whole)
    assert metrics(whole)[1]["episodes/stopped"] == 1.0
