"""Explorer and trainer as two processes on one run folder."""

import io
import json
import signal
import sqlite3

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM

from ajet.backbones.debug.training import fit_debug
from ajet.backbones.disaggregated.backbone import fit_disaggregated
from ajet.cluster.connection import SessionSettings
from ajet.core.config import load_config
from tests.e2e.toy_run import TWO_SIDES, ended, environment, wait_until
from tests.warm_start import ROOT, warm_start

SMALL = (
    "ajet.data.train_batch_size=2",
    "ajet.rollout.num_repeat=2",
    "ajet.rollout.max_response_length_in_one_turn=8",
)
EPISODES = 4  # of a step
HALF = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.backbones.disaggregated.one_process import fit_in_one_process
from ajet.core.config import load_config
from ajet.core.process.interrupt import Interrupt

interrupt = Interrupt()
config = load_config("toy.yaml", sys.argv[1:], backbone="trinity")
fit_in_one_process(config, interrupt=interrupt)
sys.exit(interrupt.exit_code if interrupt.stopped_early else 0)
"""
WAITS = "waiting for a trainer"
LOST_UPDATES = (
    "updates that sampled it are lost with an earlier attempt: it counts as more than 1 updates "
    "old (trinity.max_staleness)"
)


def overrides(mode, *more, steps=3):
    asked = f"ajet.trainer_common.total_training_steps={steps}"
    return [*SMALL, asked, f"trinity.mode={mode}", *more]


def start(run, mode, *more, steps=3):
    """One half as a process of its own."""
    with (run.folder / f"{mode}.out").open("a") as out:
        return warm_start(
            ["-c", HALF, *overrides(mode, *more, steps=steps)],
            cwd=run.folder,
            stdout=out.fileno(),
            stderr=out.fileno(),
            env=environment(),
        )


def both(run, *more, steps=3):
    with (
        ended(start(run, "train", *more, steps=steps)) as train,
        ended(start(run, "explore", *more, steps=steps)) as explore,
    ):
        codes = train.wait(240), explore.wait(60)
    assert codes == (0, 0), [(run.folder / f"{m}.out").read_text() for m in ("train", "explore")]


def played(run):
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(
            "SELECT episode_id, step, turn_index, token_ids, policy_version FROM episodes JOIN "
            "turns USING (episode_id) ORDER BY episode_id, turn_index"
        ).fetchall()


def endings(run):
    """Each recorded episode with its status and the reason for it."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        rows = connection.execute("SELECT episode_id, status, error FROM episodes").fetchall()
    return {episode: (status, error) for episode, status, error in rows}


def stored(run, step):
    """How many episodes of the step the explorer's journal has."""
    with sqlite3.connect(run.path / "finished.sqlite") as connection:
        of_step = "SELECT COUNT(*) FROM finished WHERE group_id LIKE ?"
        return connection.execute(of_step, [f"{step:06d}-%"]).fetchone()[0]


@pytest.mark.parametrize("more", [(), TWO_SIDES], ids=["", "two adapters"])
def test_in_turns_two_processes_make_the_run_of_one(project, more):
    one = project("one")
    settings = [*SMALL, *more, "ajet.trainer_common.total_training_steps=3"]
    config = load_config("toy.yaml", settings, backbone="debug")
    fit_debug(config, Console(file=io.StringIO()))
    two = project("two")
    both(two, *more, "trinity.max_staleness=0")
    assert len(played(two)) == 3 * EPISODES * 2 and played(two) == played(one)
    last = two.path / "weights" / "v00000003"
    assert AutoModelForCausalLM.from_pretrained(last)  # a server may begin with them


def test_ahead_each_may_be_killed_and_the_run_ends_within_its_bound(project):
    run = project("killed")
    ahead = "trinity.max_staleness=1"
    with (
        ended(start(run, "train", ahead, steps=5)) as train,
        ended(start(run, "explore", ahead, steps=5)) as explore,
    ):
        assert wait_until(lambda: run.steps_saved(), train, timeout=240)
        for each in (explore, train):
            each.send_signal(signal.SIGKILL)
            each.wait(10)
    both(run, ahead, steps=5)
    # Updates that were lost with the kill may make a group too old to be trained: another is.
    trained = {e for e, (status, _) in endings(run).items() if status == "ok"}
    assert len(trained) == 5 * EPISODES, endings(run)  # none is lost, none is there twice
    left_out = {error for _, error in endings(run).values() if error is not None}
    assert left_out <= {LOST_UPDATES}
    ages = {step - 1 - version for e, step, _, _, version in played(run) if e in trained}
    assert ages <= {0, 1}
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["steps"] == 5 and set(summary["staleness"]) <= {"0", "1"}


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_explorer_that_is_killed_plays_no_finished_episode_again(project, staleness):
    run = project("resumed")
    asked = (
        f"trinity.max_staleness={staleness}",
        "ajet.rollout.num_repeat=4",
        "ajet.rollout.user_workflow=workflow.py->HalfAwaits",
    )
    (run.folder / "awaited").write_text("released")
    with ended(start(run, "train", *asked)) as train:
        with ended(start(run, "explore", *asked)) as explore:
            assert wait_until(lambda: run.episodes("end", 3) == 4, explore, timeout=240)
            assert wait_until(lambda: stored(run, 3) == 4, explore, timeout=60)  # judged too
        run.forget_told()
        (run.folder / "released").touch()
        with ended(start(run, "explore", *asked)) as explore:
            codes = train.wait(240), explore.wait(60)
    assert codes == (0, 0), [(run.folder / f"{m}.out").read_text() for m in ("train", "explore")]
    assert run.episodes("begin", 3) == 4
    assert len({row[0] for row in played(run)}) == 3 * 8


def test_an_explorer_stays_until_the_checkpoint_of_the_last_step_is_written(project):
    """A run that goes on from an earlier one needs groups again."""
    run = project("unsaved")
    asked = ("trinity.max_staleness=1", "ajet.trainer_common.save_freq=0")
    checkpoints, out = run.path / "checkpoints", run.folder / "explore.out"
    run.hold(3)
    with ended(start(run, "explore", *asked)) as explore:
        with ended(start(run, "train", *asked)) as train:
            assert wait_until((run.path / "weights" / "v00000002").exists, train)
            checkpoints.rmdir()
            checkpoints.touch()  # none can be written
            num_waits = out.read_text().count(WAITS)
            run.hold(None)
            assert train.wait(240) == 1
        assert "step_000003 was not saved" in (run.folder / "train.out").read_text()
        assert wait_until(lambda: out.read_text().count(WAITS) > num_waits, explore, 60)
        checkpoints.unlink()
        with ended(start(run, "train", *asked)) as train:
            assert (train.wait(240), explore.wait(60)) == (0, 0)
    trained = [episode for episode, (status, _) in endings(run).items() if status == "ok"]
    assert len(trained) == 3 * EPISODES


def test_an_explorer_that_gives_up_ends_the_trainer_with_its_reason(project):
    run = project("failing")
    bad = ("trinity.max_staleness=1", "ajet.rollout.user_workflow=workflow.py->Raises")
    with (
        ended(start(run, "train", *bad)) as train,
        ended(start(run, "explore", *bad)) as explore,
    ):
        assert explore.wait(240) == 1 and train.wait(60) == 1
    assert "the explorer gave up: " in (run.folder / "train.out").read_text()
    assert "ValueError: no such move" in (run.folder / "train.out").read_text()


def test_a_second_explorer_of_one_run_is_refused(project):
    from ajet.core.errors import CheckpointError
    from ajet.core.record.run_folder import RunFolder

    run = project("two explorers")
    config = load_config("toy.yaml", overrides("explore"), backbone="trinity")
    with (
        RunFolder.open(run.path),  # the trainer's lock is another
        RunFolder.open(run.path, ".lock-explore"),
        pytest.raises(CheckpointError, match="is in use by process"),
    ):
        fit_disaggregated(config, Console(file=io.StringIO()), session=SessionSettings())


def test_an_explorer_that_a_signal_ends_before_the_run_is_over_says_so(project):
    run = project("alone")
    with ended(start(run, "explore")) as explore:
        out = run.folder / "explore.out"
        assert wait_until(lambda: WAITS in out.read_text(), explore, timeout=240)
        explore.send_signal(signal.SIGTERM)
        assert explore.wait(60) == 143, out.read_text()
