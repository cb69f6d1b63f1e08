"""`ajet inspect stop`: what it answers when the run takes the request, and when there is none."""

import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.stops import BY_A_PERSON, Stop, StopRequests, ask_to_stop
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.core.record.record_fixtures import episode

NAME = "000001-train-0000-00"


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


def test_a_run_that_stops_the_episode_answers(folder):
    requests = StopRequests(folder.stops, folder.stopped_jsonl)
    is_over = threading.Event()

    def run():
        while not is_over.wait(0.01):
            for name in requests.pending():
                requests.take(name)
                ended = episode(reward=None, status=EpisodeStatus.STOPPED, error=BY_A_PERSON)
                requests.ended(ended, Stop(EpisodeStatus.STOPPED, BY_A_PERSON))

    thread = threading.Thread(target=run)
    thread.start()
    result = CliRunner().invoke(app, ["stop", str(folder.path), NAME])
    is_over.set()
    thread.join()
    assert (result.exit_code, result.output) == (0, f"{NAME} is stopped\n")
    assert NAME in folder.stopped_jsonl.read_text()


def test_an_episode_that_does_not_run_is_said_and_its_request_taken_back(folder):
    with pytest.raises(CheckpointError, match="does not run now"):
        ask_to_stop(folder.stops, folder.locks(), NAME, wait_s=0.05)
    assert list(folder.stops.iterdir()) == []


def test_an_episode_in_a_call_of_the_model_is_said_to_end_after_it(folder):
    requests = StopRequests(folder.stops, folder.stopped_jsonl)

    def sleep(_):
        requests.take(NAME)

    assert "it ends after that" in ask_to_stop(
        folder.stops, folder.locks(), NAME, wait_s=0.05, sleep=sleep
    )


def test_a_request_of_a_command_that_was_killed_stops_nothing(folder):
    requests = StopRequests(folder.stops, folder.stopped_jsonl)
    command = [sys.executable, "-m", "ajet.cli.launcher", "stop", str(folder.path), NAME]
    with subprocess.Popen(command) as process:
        while requests.pending() != [NAME] and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -9
    assert requests.pending() == []
    assert (folder.stops / NAME).exists()


def test_without_a_process_there_is_nothing_to_stop(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        pass
    result = CliRunner().invoke(app, ["stop", str(folder.path), NAME])
    assert result.exit_code == 1 and result.output.startswith("error: no process on this machine")
    assert not folder.stops.exists()


@pytest.mark.parametrize("name", ["../../etc", "nonsense", f"{NAME}/../x", "", f"{NAME}.taken"])
def test_only_an_id_of_an_episode_becomes_a_file(folder, name):
    with pytest.raises(CheckpointError, match="not an episode's id"):
        ask_to_stop(folder.stops, folder.locks(), name)
    assert not folder.stops.exists()
