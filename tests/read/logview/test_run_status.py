"""A run's state, duration, steps and time left, from what its folder holds."""

import json
from dataclasses import asdict
from datetime import datetime

import pytest
from logview_fixtures import Client, write_run

from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import AttemptRecord
from ajet.core.run.identity import RunIdentity
from ajet.read.logview.run_difference import keys_of, starts_of
from ajet.read.logview.run_status import MetricSeries, RunStatus
from ajet.read.logview.server import LogviewServer

BEGUN = datetime(2026, 3, 1, 9, 30).timestamp()
CONFIG = {"ajet.model.path": "embedded:math", "ajet.trainer_common.total_training_steps": "None"}


def at(seconds: float) -> str:
    return datetime.fromtimestamp(BEGUN + seconds).isoformat(timespec="seconds")


def write_attempts(folder: RunFolder, *attempts: AttemptRecord) -> None:
    for attempt in attempts:
        path = folder.attempt(attempt.number)
        path.mkdir(parents=True)
        (path / "attempt.json").write_text(json.dumps(asdict(attempt)))


def write_steps(folder: RunFolder, *ends_s: float) -> None:
    folder.logs.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "time": BEGUN + end} for step, end in enumerate(ends_s)]
    folder.metrics_jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))


def attempt(number, begun_s, **more):
    return AttemptRecord(number, at(begun_s), more.pop("first_step", 0), RunIdentity({}), **more)


def status_of(folder: RunFolder, now_s: float, config=CONFIG) -> RunStatus:
    return RunStatus.of(folder, MetricSeries(folder.metrics_jsonl), config, BEGUN + now_s)


@pytest.mark.parametrize(
    ("end", "state"), [("complete", "finished"), ("stopped", "stopped"), ("failed", "failed")]
)
def test_a_run_that_ended_has_the_state_and_the_time_of_its_record(tmp_path, end, state):
    folder = RunFolder(tmp_path)
    write_attempts(folder, attempt(1, 0, ended=at(100), end=end, last_step=2, total_steps=60))
    write_steps(folder, 10, 40, 90)
    assert status_of(folder, 5000) == RunStatus(state, at(0), 100.0, 2, 60, None, "embedded:math")


def test_a_run_without_an_end_runs_while_its_folder_is_locked_and_was_killed_if_it_is_not(tmp_path):
    folder = RunFolder(tmp_path)
    write_attempts(folder, attempt(1, 0, total_steps=12))
    write_steps(folder, 10, 30, 50)  # the steps 1 and 2 took 20 s each
    with RunFolder.open(tmp_path):
        running = status_of(folder, 55)
        assert starts_of(folder) == {"1": "attempt 1: steps 1 to …, running"}
    # 10 steps are left, and 5 s of the next have passed.
    assert (running.state, running.seconds, running.seconds_left) == ("running", 55.0, 195.0)
    killed = status_of(folder, 55)
    assert (killed.state, killed.seconds, killed.seconds_left) == ("killed", 50.0, None)
    assert starts_of(folder) == {"1": "attempt 1: steps 1 to …, no end recorded"}


def test_the_time_is_that_of_all_starts_without_the_pauses_between_them(tmp_path):
    folder = RunFolder(tmp_path)
    killed = attempt(1, 0, total_steps=3)
    finished = attempt(2, 1000, first_step=1, ended=at(1040), end="complete", total_steps=4)
    write_attempts(folder, killed, finished)
    write_steps(folder, 10, 30, 1020, 1040)
    status = status_of(folder, 9000)
    assert (status.begun, status.seconds, status.total_steps) == (at(0), 30.0 + 40.0, 4)


def test_the_pace_is_that_of_the_newest_start(tmp_path):
    folder = RunFolder(tmp_path)
    write_attempts(folder, attempt(1, 0), attempt(2, 1000, first_step=2, total_steps=5))
    write_steps(folder, 10, 20, 30, 1040, 1060)
    with RunFolder.open(tmp_path):  # its two steps took 40 s and 20 s, and one is left
        assert status_of(folder, 1060).seconds_left == pytest.approx(30.0)


def test_a_folder_without_attempts_is_finished_if_it_has_a_summary(tmp_path):
    folder = RunFolder(tmp_path)
    config = {"ajet.trainer_common.total_training_steps": "60"}
    assert status_of(folder, 0, config) == RunStatus("unknown", None, None, 0, 60, None, None)
    folder.summary_json.write_text("{}")
    assert status_of(folder, 0, config).state == "finished"


def test_the_server_answers_with_the_status_of_a_run_and_of_all(tmp_path):
    folder = write_run(tmp_path / "math")
    write_attempts(folder, attempt(1, 0, total_steps=7, ended=at(1), end="complete"))
    with LogviewServer([folder.path], port=0) as server:
        client = Client(server)
        assert client.json("/api/status?run=math")["total_steps"] == 7
        [run] = client.json("/api/runs")["runs"]
        assert (run["state"], run["begun"], run["seconds"]) == ("finished", at(0), 1.0)


def test_the_keys_that_are_not_the_defaults_are_told_from_the_others():
    config = {"ajet.seed": "0", "ajet.model.path": "m", "mine.x": "1", "ajet.backbone": "verl"}
    chosen = [each["key"] for each in keys_of(config) if not each["is_default"]]
    assert chosen == ["ajet.backbone", "ajet.model.path", "mine.x"]


def test_a_run_is_compared_with_the_one_that_began_before_it(tmp_path):
    paths = []
    for name, begun_s in {"a": 0, "b": 300, "c": 200}.items():
        folder = write_run(tmp_path / name)
        write_attempts(folder, attempt(1, begun_s, ended=at(begun_s + 1), end="complete"))
        paths.append(folder.path)
    with LogviewServer(paths, port=0) as server:
        client = Client(server)
        chosen = {name: client.json(f"/api/difference?run={name}")["left"] for name in "abc"}
    assert chosen == {"a": "b:1", "b": "c:1", "c": "a:1"}
