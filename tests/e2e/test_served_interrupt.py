"""Ctrl-C on `ajet serve`: once ends it in order and says what that waits for, twice ends it now."""

import os
import signal
import sqlite3
import threading
import time

import httpx
import pytest

from ajet.client import EpisodeClient, EpisodeOver, RunOver, ServerUnreachable
from ajet.serve.online.log import SessionLog
from tests.e2e.test_client_episodes import CONFIG, KEY, solve, starting
from tests.e2e.toy_run import ended
from tests.serve.online.online_server import YAML
from tests.serve.online.test_kills_of_a_served_model import client_of
from tests.serve.online.test_kills_of_a_served_model import start as start_learning

SOON_S = 30
"""With room for a busy machine: what is not ended at once here would take longer or for ever."""
JUDGE = """
import asyncio
from pathlib import Path
from ajet import BaseJudge

class Waits(BaseJudge):
    async def compute_reward(self, workflow_task, workflow_output):
        Path("judging").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        return 1.0
"""


def said_by(folder, text):
    """Waits for a text in the server's log."""
    while text not in (said := (folder / "serve.log").read_text()):
        time.sleep(0.05)
    return said


def test_ctrl_c_says_which_episodes_the_step_waits_for_and_a_second_one_ends_it_at_once(tmp_path):
    (tmp_path / "serve.yaml").write_text(CONFIG.replace("steps: 2", "steps: 1"))
    rows = [f'{{"question": "What is {n} plus 2?", "answer": "{n + 2}"}}\n' for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(rows))
    acknowledged = {}

    def play(client, number):
        for _ in range(number):
            with client.begin() as episode:
                outcome = episode.end(solve(episode))
            acknowledged[outcome.episode_id] = outcome.reward

    with starting(tmp_path) as start:
        process, url = start("debug")
        with EpisodeClient(url, KEY, patience_s=2) as client:
            play(client, 3)
            held = client.begin()
            os.kill(process.pid, signal.SIGINT)
            said_by(
                tmp_path, "(episodes they are running: 1, offered: 4); Ctrl-C again stops at once"
            )
            play(client, 1)  # the step goes on
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(SOON_S) == 130
            with pytest.raises((EpisodeOver, RunOver, ServerUnreachable)):
                held.end(1.0)
        assert "Traceback" not in (tmp_path / "serve.log").read_text()
        assert len(acknowledged) == 4

        process, url = start("debug")
        with EpisodeClient(url, KEY) as client:
            play(client, 4)
        assert process.wait(300) == 0
    with sqlite3.connect(tmp_path / "launcher_record/served/episodes.sqlite") as record:
        found = dict(record.execute("SELECT episode_id, reward FROM episodes"))
    assert found == acknowledged and len(found) == 8


@pytest.fixture
def asking(tmp_path):
    """A served model with a request under way: its process, and the thread that waits for it."""
    judge = "judge_protocol: judge.py->Waits"
    (tmp_path / "served.yaml").write_text(YAML.replace("judge_protocol: math", judge))
    (tmp_path / "judge.py").write_text(JUDGE)
    process, _, url = start_learning(tmp_path)
    answers = []
    with ended(process), client_of(url) as http:
        asked = {"model": "m", "messages": [{"role": "user", "content": "What is 1+1?"}]}
        reply = http.post("/v1/chat/completions", json=asked).json()

        def ask():
            try:
                body = {"response": reply["id"], "reward": None}
                answers.append(http.post("/ajet/v1/feedback", json=body).json()["status"])
            except httpx.TransportError:
                answers.append("lost")

        thread = threading.Thread(target=ask)
        thread.start()
        while not (tmp_path / "judging").exists():
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        said_by(tmp_path, "stopping after the replies under way; Ctrl-C again stops at once")
        yield process, thread, answers
        thread.join(SOON_S)
        assert "Traceback" not in (tmp_path / "serve.log").read_text()


def test_a_served_model_finishes_the_requests_under_way_and_takes_no_more(asking, tmp_path):
    process, thread, answers = asking
    time.sleep(2.0)  # longer than requests had before
    (tmp_path / "go").touch()
    assert process.wait(SOON_S) == 0
    thread.join(SOON_S)
    assert answers == ["recorded"]
    log = SessionLog(tmp_path / "launcher_record/served")
    assert log.counts()["num_feedback"] == 1
    log.close()


def test_a_second_ctrl_c_ends_a_served_model_at_once(asking):
    process, thread, answers = asking
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(SOON_S) == 130
    thread.join(SOON_S)
    assert answers == ["lost"]
