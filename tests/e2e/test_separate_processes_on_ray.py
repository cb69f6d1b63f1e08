"""Backbone trinity's explorer and trainer as two commands, each on a Ray of its own."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from ajet.client import EpisodeClient
from ajet.core.buffer.codec import decode_completion
from tests.e2e.test_client_episodes import CONFIG, KEY, solve
from tests.e2e.three_backbones import SETTINGS, episodes, numbers, train_debug, weights
from tests.e2e.toy_run import SEES, ToyRun, ended, environment, wait_until
from tests.processes import below, command

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

STEPS = 4
EPISODES = 12  # of a step
WITHIN_S = 600
LOST_UPDATES = (
    "updates that sampled it are lost with an earlier attempt: it counts as more than 1 updates "
    "old (trinity.max_staleness)"
)


class Half(ToyRun):
    """One of the two commands over one project."""

    def __init__(self, folder, mode, *overrides):
        asked = [f"ajet.trainer_common.total_training_steps={STEPS}", f"trinity.mode={mode}"]
        super().__init__(folder, *SETTINGS, *asked, *overrides)

    @property
    def arguments(self):
        return ["--conf", "toy.yaml", "--backbone", "trinity", "--with-ray", *self.overrides]


def two_commands(folder, *overrides):
    return [Half(folder, mode, *overrides) for mode in ("train", "explore")]


def to_their_ends(running, run):
    assert [each.wait(WITHIN_S) for each in running] == [0, 0], run.stderr()


def kill(driver, title):
    """The first process below the driver that Ray has named so."""
    os.kill(min(pid for pid in below(driver.pid) if title in command(pid)), signal.SIGKILL)


@pytest.mark.parametrize("more", [(), SEES], ids=["", "pictures"])
def test_in_turns_two_commands_on_ray_make_the_run_of_one_process(more, tmp_path, monkeypatch):
    two = two_commands(tmp_path / "two", "trinity.max_staleness=0", *more)
    with ExitStack() as stack:
        to_their_ends([stack.enter_context(ended(each.start())) for each in two], two[0])
    one = ToyRun(tmp_path / "one")
    monkeypatch.chdir(one.folder)
    train_debug([*SETTINGS, *more, f"ajet.trainer_common.total_training_steps={STEPS}"])
    assert len(episodes(one)) == STEPS * EPISODES * 2 and episodes(two[0]) == episodes(one)
    losses = [numbers(run, "update/loss") for run in (two[0], one)]
    assert abs(losses[0] - losses[1]).max() < 1e-6
    mine, theirs = weights(two[0], STEPS), weights(one, STEPS)
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-6


def test_clients_run_the_episodes_of_two_commands_on_ray(tmp_path):
    (tmp_path / "serve.yaml").write_text(CONFIG)
    rows = [f'{{"question": "What is {n} plus 2?", "answer": "{n + 2}"}}\n' for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(rows))
    serve = [sys.executable, "-m", "ajet.cli.launcher", "serve", "--conf", "serve.yaml"]
    serve += ["--backbone", "trinity", "--with-ray", "trinity.max_staleness=1"]

    def start(mode):
        with (tmp_path / f"{mode}.out").open("w") as out:
            return subprocess.Popen(
                [*serve, f"trinity.mode={mode}"],
                cwd=tmp_path,
                env=environment(AJET_SERVE_API_KEY=KEY),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(mode):
        return (tmp_path / f"{mode}.out").read_text()

    with ended(start("train")) as train, ended(start("explore")) as explore:
        while (found := re.search(r"episodes at (http://\S+), the key", said("explore"))) is None:
            assert explore.poll() is None, said("explore")
            time.sleep(0.1)
        with EpisodeClient(found[1], KEY) as client:
            for _ in range(16):
                with client.begin() as episode:
                    assert episode.end(solve(episode)).status == "ok"
        codes = train.wait(WITHIN_S), explore.wait(WITHIN_S)
    assert codes == (0, 0), said("train") + said("explore")
    assert "episodes at" not in said("train")
    with sqlite3.connect(tmp_path / "launcher_record/served/episodes.sqlite") as record:
        steps = record.execute("SELECT step, COUNT(*) FROM episodes WHERE status='ok' GROUP BY 1")
        assert steps.fetchall() == [(1, 8), (2, 8)]


def test_an_explorer_that_is_killed_continues_its_episodes_with_their_tokens(tmp_path):
    train, explore = two_commands(
        tmp_path, "trinity.max_staleness=1", "ajet.trainer_common.save_freq=1"
    )
    train.hold(2)

    def stored():
        """The tokens of the first call of each episode of step 2, which waits in its middle."""
        path = train.path / "finished.sqlite"
        query = "SELECT episode_id, body FROM answered WHERE group_id LIKE '000002-train-%'"
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60) as journal:
                rows = journal.execute(query).fetchall()
        except sqlite3.OperationalError:  # the explorer has not made it yet
            return {}
        return {name: decode_completion(body).token_ids for name, body in rows}

    with ended(train.start()) as trainer:
        with ended(explore.start()) as explorer:
            assert wait_until(lambda: len(stored()) == EPISODES, explorer, WITHIN_S, 0.05)
            assert wait_until(lambda: train.steps_saved(), trainer, WITHIN_S, 0.05)
            before = stored()
            os.kill(explorer.pid, signal.SIGKILL)
            explorer.wait()
        train.hold(None)
        train.forget_told()
        with ended(explore.start()) as explorer:
            to_their_ends([trainer, explorer], train)
    said = (train.path / "logs/explore.log").read_text()
    assert re.search(r"\d+ unfinished episodes continue after \d+ stored calls", said)
    assert train.episodes("begin", 2) == EPISODES  # their agents have begun again
    with sqlite3.connect(train.path / "episodes.sqlite") as record:
        rows = record.execute(
            "SELECT episode_id, step, policy_version, token_ids, status FROM turns "
            "JOIN episodes USING (episode_id) WHERE turn_index = 0"
        ).fetchall()
    tokens = {name: tuple(np.frombuffer(ids, "<i4").tolist()) for name, _, _, ids, _ in rows}
    assert before.items() <= tokens.items() and len(before) == EPISODES
    assert {step - 1 - version for _, step, version, _, status in rows if status == "ok"} <= {0, 1}


def test_a_lost_engine_and_a_lost_trainer_rank_cost_no_episode_and_no_bound(tmp_path):
    train, explore = two_commands(
        tmp_path,
        "trinity.max_staleness=1",
        "ajet.trainer_common.save_freq=1",
        "ajet.trainer_common.save_in_background=true",
        "ajet.rollout.n_vllm_engine=2",
    )
    with ended(train.start()) as trainer, ended(explore.start()) as explorer:
        assert wait_until(lambda: train.steps_saved(), trainer, WITHIN_S, 0.05), train.stderr()
        kill(explorer, "ray::EngineProcess")
        kill(trainer, "ray::TrainerRank")
        to_their_ends([trainer, explorer], train)
    said = (train.path / "logs/run.log").read_text()
    assert "trainer rank 0 is lost: its process ended: the run continues from its last" in said
    said = (train.path / "logs/explore.log").read_text()
    assert "an inference replica gets no more requests: engine " in said
    with sqlite3.connect(train.path / "episodes.sqlite") as record:
        rows = record.execute("SELECT step, group_id, status, error FROM episodes").fetchall()
        sampled = "SELECT step - 1 - policy_version FROM turns JOIN episodes USING (episode_id) "
        ages = {age for (age,) in record.execute(sampled + "WHERE status = 'ok'")}
    trained = Counter(step for step, _, status, _ in rows if status == "ok")
    assert trained == dict.fromkeys(range(1, STEPS + 1), EPISODES) and ages <= {0, 1}
    # Groups of an update that is lost with the rank are too old beside the others of their step:
    # they are recorded, and as many more of the plan are trained. None is missing.
    assert {error for _, _, status, error in rows if status != "ok"} <= {LOST_UPDATES}
    members = Counter(group_id for _, group_id, _, _ in rows)
    plan = [f"{1 + n // 3:06d}-train-{n % 3:04d}" for n in range(len(members))]
    assert members == dict.fromkeys(plan, 4)
    with sqlite3.connect(train.path / "buffer.sqlite") as buffer:
        states = {state for (state,) in buffer.execute("SELECT state FROM ajet_groups")}
    assert states <= {"trained", "expired"}
    # Each token is trained once, at most one update after it was sampled.
    summary = json.loads((train.path / "summary.json").read_text())
    assert summary["steps"] == STEPS and set(summary["staleness"]) <= {"0", "1"}
    num_trained = numbers(train, "tokens/trained").sum()
    assert sum(summary["staleness"].values()) == num_trained > 0
