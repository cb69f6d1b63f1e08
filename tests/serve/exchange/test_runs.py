"""The runs of a server that its clients configure: one at a time, stopped, failed, and again."""

import os
import signal
import threading
import time

import pytest

from ajet import Task
from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict, RunFailed
from ajet.core.user_code.importing import load_attribute
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.exchange.exchange import BeginRequest
from ajet.serve.exchange.routes import yaml_of
from ajet.serve.exchange.runs import ServedRuns

WITHIN_S = 30.0


def load(text):
    if text == "bad":
        raise KeysConflict("ajet.serve.shares: no")
    return AjetConfig(), ["a notice"]


def in_thread(act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_run_is_started_once_and_its_clients_are_told_how_it_ended():
    runs = ServedRuns(load)
    with pytest.raises(RequestError, match="no run is in progress") as refused:
        runs.exchange.begin(BeginRequest())
    assert refused.value.status == 410
    assert runs.start("a") == ["a notice"]
    assert runs.status()["state"] == "starting"
    with pytest.raises(RequestError, match="a run is in progress") as busy:
        runs.start("b")
    assert busy.value.status == 409
    waiting = runs.exchange.begin(BeginRequest())
    seen = []
    assert runs.planned(0) is not None
    assert runs.run(lambda config, interrupt: seen.append(interrupt.requested)) is None
    assert seen == [False] and runs.planned(0) is None
    status = runs.status()
    assert (status["state"], status["error"], status["run_folder"]) == ("offline", None, None)
    with pytest.raises(RequestError, match="the run has ended"):
        waiting.result(0)
    runs.start("b")  # and so is the next one


def test_a_config_that_cannot_run_is_refused_and_leaves_the_server_free():
    runs = ServedRuns(load)
    with pytest.raises(RequestError, match=r"ajet\.serve\.shares: no") as refused:
        runs.start("bad")
    assert (refused.value.status, refused.value.code) == (400, str(KeysConflict("x").code))
    assert runs.status()["state"] == "offline" and runs.planned(0) is None
    runs.start("good")


@pytest.mark.parametrize(
    ("error", "told"),
    [(RunFailed("the disk is full"), "the disk is full"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_run_that_fails_does_not_end_the_server(error, told):
    runs = ServedRuns(load)
    runs.start("a")

    def fail(config, interrupt):
        raise error

    assert runs.run(fail) is None
    assert runs.status()["state"] == "offline" and runs.status()["error"].startswith(told)
    with pytest.raises(RequestError, match=told):
        runs.exchange.begin(BeginRequest())
    runs.start("b")
    assert runs.status()["error"] is None


def test_a_stop_waits_for_the_step_unless_it_is_now():
    runs = ServedRuns(load)
    for now in (False, True):
        runs.start("a")
        stopping = in_thread(lambda now=now: (time.sleep(0.2), runs.stop(now=now)))
        finished = []

        def fit(config, interrupt, now=now, finished=finished):
            until = time.monotonic() + WITHIN_S
            while (now or not interrupt.requested) and time.monotonic() < until:
                time.sleep(WITHIN_S if now else 0.01)  # only a signal wakes it
            finished.append(interrupt.requested)

        started_s = time.monotonic()
        assert runs.run(fit) is None
        stopping.join()
        assert finished == ([] if now else [True])
        assert time.monotonic() - started_s < WITHIN_S
        assert runs.status()["state"] == "offline"
    runs.stop(now=True)  # nothing to stop


def test_a_stop_before_the_first_step_starts_nothing():
    runs = ServedRuns(load)
    runs.start("a")
    runs.stop(now=True)
    assert runs.run(lambda *arguments: pytest.fail("it ran")) is None
    assert runs.status()["state"] == "offline"


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("stopped", ["before", "after", "never"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_its_run_whatever_clients_ask(number, stopped, signals):
    runs = ServedRuns(load)
    runs.start("a")
    reached = []

    def fit(config, interrupt):
        if stopped == "before":
            runs.stop(now=False)
        os.kill(os.getpid(), number)
        assert interrupt.requested
        reached.append("after its step")
        if signals == 2:
            os.kill(os.getpid(), number)
            pytest.fail("it goes on after the second signal")
        if stopped == "after":
            runs.stop(now=True)
            pytest.fail("it goes on after a stop")

    assert runs.run(fit) == 128 + number
    assert reached == ["after its step"] and runs.status()["state"] == "offline"


def test_a_run_reads_the_files_of_users_as_they_are_when_it_is_started(tmp_path):
    judge, helper = tmp_path / "judge.py", tmp_path / "helper_of_judge.py"

    def load_judge(text):
        function = load_attribute(f"{judge}->reward", base_dirs=[tmp_path], location="judge")
        return AjetConfig(), [function()]

    runs = ServedRuns(load_judge)
    judge.write_text("from helper_of_judge import value\n\ndef reward():\n    return value")
    for value in ("first", "second, which is longer"):
        helper.write_text(f"value = {value!r}")
        assert runs.start("x") == [value]
        runs.stop(now=False)
        runs.run(lambda *arguments: None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no more files")])
def test_a_start_that_fails_in_any_way_leaves_the_server_free(error, monkeypatch):
    runs = ServedRuns(load)

    def fail(config):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("ajet.serve.exchange.runs.make_exchange", fail)
        with pytest.raises((RequestError, OSError)):
            runs.start("a")
    assert runs.status()["state"] == "offline"
    runs.start("a")


def test_a_client_that_brings_a_task_is_told_that_there_is_no_run():
    with pytest.raises(RequestError, match="no run is in progress") as refused:
        ServedRuns(load).exchange.begin(BeginRequest(task=Task("t", "q")))
    assert refused.value.code == "run_over"


@pytest.mark.parametrize("value", ["ajet: \ud800", "deep"])
def test_a_config_that_is_no_text_is_refused(value):
    if value == "deep":
        value = {}
        for _ in range(2000):
            value = {"a": value}
    with pytest.raises(RequestError, match="config: "):
        yaml_of(value)
