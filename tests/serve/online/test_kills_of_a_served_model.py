"""A served model is killed at any moment: what was acknowledged is there, and is trained once."""

import json
import os
import re
import signal
import time

import httpx

from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.log import SessionLog
from ajet.serve.online.round import rebuild
from tests.serve.online.online_server import YAML, LearnerAtOnce, learn_at_once, served
from tests.warm_start import warm_start

KEY = "sk-test"
LIMIT_S = 250.0
"""The longest wait for anything on a busy machine. Three of them fit into the limit of a test."""
GIVEN_UP = "is not started again"
"""The words of a server whose learner could not be started three times."""


def wait_until(is_so, what, folder, process):
    """Waits until `is_so` returns something true, and returns that. Fails, with what server and
    learner have written, where the server has ended, its learner is given up, or it takes long."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := is_so()):
        logs = [folder / "serve.log", *folder.glob("launcher_record/served/logs/learner.log")]
        said = "\n".join(file.read_text()[-4000:] for file in logs)
        assert process.poll() is None, f"{what}: the server has ended\n{said}"
        assert GIVEN_UP not in said, f"{what}: the learner cannot be started\n{said}"
        assert time.monotonic() < deadline_s, f"{what}: not within {LIMIT_S} s\n{said}"
        time.sleep(0.02)
    return found


def start(folder):
    """Starts the server; returns its process, its version and its address."""
    with (folder / "serve.log").open("w") as log:
        process = warm_start(
            ["-m", "ajet.cli.launcher", "serve", "--learn", "--conf", "served.yaml"],
            cwd=folder,
            env={"AJET_SERVE_API_KEY": KEY, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
            stdout=log.fileno(),
            stderr=log.fileno(),
        )

    def address():
        said = (folder / "serve.log").read_text()
        return re.search(r"version (\d+).* at (http://\S+)/v1, the key", said)

    found = wait_until(address, "the server's address", folder, process)
    return process, int(found[1]), found[2]


def client_of(url):
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)


def test_a_server_that_is_killed_while_it_learns_goes_on_and_trains_nothing_twice(
    tmp_path, monkeypatch
):
    (tmp_path / "served.yaml").write_text(YAML)
    process, version, url = start(tmp_path)
    assert version == 0
    given = []
    with client_of(url) as http:
        for number in range(4):
            body = {"messages": [{"role": "user", "content": f"What is {number}+1?"}]}
            reply = http.post("/v1/chat/completions", json={"model": "m"} | body)
            given.append(
                {"response": reply.json()["id"], "reward": number % 2, "feedback_id": f"f{number}"}
            )
            assert http.post("/ajet/v1/feedback", json=given[-1]).json()["status"] == "recorded"
    run = tmp_path / "launcher_record/served"
    log = SessionLog(run)
    wait_until(log.open_round, "the learner begins", tmp_path, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)

    process, _, url = start(tmp_path)
    with client_of(url) as http:
        again = [http.post("/ajet/v1/feedback", json=each).json()["status"] for each in given]

        def version():
            return http.get("/ajet/v1/status").json()["version"]

        wait_until(version, "a promoted version", tmp_path, process)
        body = {"model": "m", "messages": [{"role": "user", "content": "What is 5+1?"}]}
        reply = http.post("/v1/chat/completions", json=body)
    process.terminate()
    assert process.wait(60) == 0
    assert again == ["repeated"] * 4
    assert reply.json()["system_fingerprint"] == "version-1"
    assert [each.number for each in log.rounds()] == [1]
    assert (log.counts()["num_feedback"], log.counts()["num_in_rounds"]) == (4, 4)
    ends = [json.loads(file.read_text())["end"] for file in sorted(run.glob("attempts/*/*.json"))]
    assert ends == [None, "stopped"]
    log.close()
    monkeypatch.chdir(tmp_path)
    assert [each.is_same for each in rebuild(RecordedRun(run))] == [True]


class ForgetsItsDecision(SessionLog):
    """Loses its process at the decision, when the checkpoint has been written."""

    def end_round(self, *arguments):
        raise KeyboardInterrupt


def test_a_learner_that_is_killed_before_its_decision_makes_the_same_version_again(
    tmp_path, monkeypatch
):
    checkpoints = []

    def start(folder, due):
        if not checkpoints:
            monkeypatch.setattr("tests.serve.online.online_server.SessionLog", ForgetsItsDecision)
        try:
            return learn(folder, due)
        except KeyboardInterrupt:
            return LearnerAtOnce(137)
        finally:
            monkeypatch.setattr("tests.serve.online.online_server.SessionLog", SessionLog)
            weights = folder.checkpoints / "step_000001/model.safetensors"
            checkpoints.append(weights.read_bytes())

    learn = None
    with served(tmp_path, start=start) as here:
        learn = learn_at_once(here.server.config)
        here.rated([1.0, 0.0, 0.0, 1.0])
        assert here.round().state == "open"
        assert here.chat("What is 1+1?").headers["x-ajet-version"] == "0"
        assert here.round().state == "promoted"
        assert here.chat("What is 2+1?").headers["x-ajet-version"] == "1"
        assert here.said[-1].startswith("round 1: version 1 is promoted")
    assert len(checkpoints) == 2
    assert checkpoints[0] == checkpoints[1]
