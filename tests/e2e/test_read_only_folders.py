"""A run folder that may only be read, or of which a file may not even be read: who looks at it can,
or gets one line."""

import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ajet.read.episode_reader import EpisodeReader
from tests.e2e.toy_run import EPISODES, ToyRun, ended, environment
from tests.warm_start import warm_start

ROOT = str(Path(__file__).parents[2])
DROP = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
AS_A_USER = DROP if os.geteuid() == 0 else ()
"""Permissions bind root too, without these capabilities."""
LOOK = """
import json, sys
from pathlib import Path
from typer.testing import CliRunner
from ajet.cli.launcher import app
from ajet.core.errors import AjetError
from ajet.core.record.run_folder import RunFolder
from ajet.read.logview.run_page import RunPage, to_json

found = {}
for name, arguments in json.loads(sys.argv[2]).items():
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found[name] = [result.exit_code, result.stderr]
page = RunPage(RunFolder(sys.argv[1]))
try:
    to_json(page.run())
    to_json(page.changes())
    row = page.episodes({})["episodes"][0]
    to_json(page.episode(row["episode_id"]))
    found["page"] = [0, ""]
except AjetError as error:
    found["page"] = [1, f"error: {error}"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One step; not to be changed."""
    run = ToyRun(tmp_path_factory.mktemp("run"), "ajet.trainer_common.total_training_steps=1")
    assert run.finish() == 0, run.stderr()
    return run


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the run, which may be written again after the test."""
    run = ToyRun(tmp_path / "copy")
    shutil.rmtree(run.folder)
    shutil.copytree(finished.folder, run.folder)
    yield run
    for path in [run.path, *run.path.rglob("*")]:
        path.chmod(path.stat().st_mode | stat.S_IRWXU)


def make_read_only(run):
    for path in [*run.path.rglob("*"), run.path]:
        path.chmod(path.stat().st_mode & ~0o222)


def newest_episode(run):
    with EpisodeReader(run.path / "episodes.sqlite") as reader:
        return reader.list(limit=1)[0].episode_id


def looked_at(run, *, episode=None, **more):
    """By command: its exit code and its errors, for a user who has no more rights than others."""
    commands = {
        "audit": ["audit", str(run.path)],
        "replay": ["replay", str(run.path), episode or newest_episode(run)],
        "check": ["check", "--conf", str(run.folder / "toy.yaml")],
    } | more
    look = ["-c", LOOK, str(run.path), json.dumps(commands)]
    stdout, stderr = run.folder / "looked", run.folder / "looked.errors"
    with stdout.open("w") as out, stderr.open("w") as err:
        files = {"stdout": out.fileno(), "stderr": err.fileno(), "under": AS_A_USER}
        with ended(warm_start(look, cwd=run.folder, env=environment(), **files)) as process:
            assert process.wait(timeout=300) == 0, stderr.read_text()
    found = json.loads(stdout.read_text().splitlines()[-1])
    for code, said in found.values():
        errors = [line for line in said.splitlines() if line.lower().startswith("error: ")]
        assert len(errors) == (code > 0), said
    return found


def test_all_of_it_works_on_a_folder_that_may_only_be_read(copy):
    make_read_only(copy)
    found = looked_at(copy)
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(found, 0)


def test_a_start_in_a_folder_that_may_only_be_read_is_one_line(copy):
    make_read_only(copy)
    said = looked_at(copy, start=["--conf", str(copy.folder / "toy.yaml"), "--backbone", "debug"])
    assert said["start"][1] == (
        f"error: run folder {copy.path} cannot be made: Permission denied; "
        "choose another place with --exp-dir [AJ-RUN-002]\n"
    )


@pytest.mark.parametrize("has_shared_memory", [True, False])
def test_the_write_ahead_log_of_a_killed_run_is_read_or_named(copy, has_shared_memory):
    database = copy.path / "episodes.sqlite"
    with sqlite3.connect(database) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE later (x)")
        writer.commit()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{database}{suffix}", copy.folder / f"killed{suffix}")
    writer.close()
    for suffix in ("", "-wal", "-shm")[: 2 + has_shared_memory]:
        shutil.copy(copy.folder / f"killed{suffix}", f"{database}{suffix}")
    episode = newest_episode(copy)
    if not has_shared_memory:
        Path(f"{database}-shm").unlink(missing_ok=True)
    make_read_only(copy)
    found = looked_at(copy, episode=episode)
    assert found.pop("check") == [0, ""]
    for code, said in found.values():
        assert has_shared_memory or "it has a write-ahead log, so copy the run folder" in said
        assert code == (0 if has_shared_memory else 1)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        (".", {"audit", "replay", "page"}),
        ("episodes.sqlite", {"audit", "replay", "page"}),
        ("config.yaml", {"audit", "replay"}),
        ("origin.json", {"audit", "replay"}),
        ("summary.json", {"page"}),
        ("tokenizer", {"audit", "replay", "page"}),
        ("logs", {"page"}),
        ("checkpoints", set()),
        ("attempts", set()),
    ],
)
def test_what_may_not_be_read_is_one_line_of_those_who_need_it(copy, name, without):
    episode = newest_episode(copy)
    (copy.path / name).chmod(0)
    found = looked_at(copy, episode=episode)
    assert {what for what, (code, _) in found.items() if code} - {"check"} == without
    for what in without:
        assert str(copy.path) in found[what][1]
        assert re.search("Permission denied|not readable|permissions", found[what][1])


def test_the_page_is_served_of_a_folder_that_may_only_be_read(copy):
    make_read_only(copy)
    command = [*AS_A_USER, sys.executable, "-m", "ajet.cli.launcher", "view", str(copy.path)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(PYTHONPATH=ROOT),
    )
    with process, ended(process):
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}/api/run", timeout=60) as answer:
            assert json.load(answer)["count"] == EPISODES
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_a_folder_in_which_no_run_can_begin_is_said_before_it_begins(tmp_path):
    tmp_path.chmod(0o555)
    place = (
        "import sys; from pathlib import Path; from ajet.core.record.run_folder import "
        "require_place; require_place(Path(sys.argv[1]))"
    )
    command = [*AS_A_USER, sys.executable, "-c", place, tmp_path / "runs" / "solver"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"cannot be made: {tmp_path} may not be written to; choose another" in done.stderr
