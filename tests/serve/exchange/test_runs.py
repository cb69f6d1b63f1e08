"""The runs of a server that its clients configure: one at a time, stopped, failed, and again."""

import os
import signal
import threading
import time

import pytest

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict, RunFailed
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.exchange.exchange import BeginRequest
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


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_the_server_with_its_run(times):
    runs = ServedRuns(load)
    runs.start("a")

    def fit(config, interrupt):
        os.kill(os.getpid(), signal.SIGINT)
        if times == 2:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested

    assert runs.run(fit) == 130
    assert runs.status()["state"] == "offline"
