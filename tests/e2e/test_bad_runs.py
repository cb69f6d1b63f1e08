"""What goes wrong in a run: one line and exit 1, or a counted status; what was done stays.

Most runs are in this process, after one good run of three steps that they copy. Those
that fill a disk or never end are processes of their own. Mistakes in a config are in tests/cli.
"""

import json
import resource
import shutil
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ajet.core.record.run_folder import RunFolder
from tests.e2e.toy_run import ToyRun, ended, environment
from tests.warm_start import warm_start

THREE = "ajet.trainer_common.total_training_steps=3"
FOUR = "ajet.trainer_common.total_training_steps=4"
ONE = "ajet.trainer_common.total_training_steps=1"


def workflow(name: str) -> str:
    return f"ajet.rollout.user_workflow=workflow.py->{name}"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Three steps, all well; not to be changed."""
    run = ToyRun(tmp_path_factory.mktemp("good"))
    result = run.call(*run.arguments, THREE)
    assert result.exit_code == 0, result.output
    return run


@pytest.fixture
def begun(good, tmp_path):
    """A copy of the good run, to go on with."""
    return copy_of(good, tmp_path / "begun")


@pytest.fixture
def run(tmp_path):
    """`run(*overrides)`: the command in this process, in a fresh project; also `run.toy`."""

    class InProcess:
        toy = ToyRun(tmp_path / "toy")

        def __call__(self, *overrides):
            return self.toy.call(*self.toy.arguments, *overrides)

    return InProcess()


LOST = """

class Lost(Plain):
    async def execute(self, workflow_task, model_tuner):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            return await super().execute(workflow_task, model_tuner)
"""


def test_an_agent_that_stays_in_a_folder_that_is_gone_ends_no_run(run):
    file = run.toy.folder / "workflow.py"
    file.write_text(file.read_text() + LOST)
    result = run(workflow("Lost"), ONE)
    assert result.exit_code == 0, result.output
    assert "ajet view launcher_record/toy\n" in result.stdout
    assert "tensorboard --logdir launcher_record/toy/tensorboard" in result.stdout


def copy_of(run: ToyRun, folder: Path) -> ToyRun:
    shutil.copytree(run.folder, folder)
    return ToyRun(folder)


def error_line(result) -> str:
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    lines = [
        line
        for line in result.stderr.splitlines()
        if not line.startswith(("notice: ", "warning: "))
    ]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0]


def statuses(run: ToyRun) -> dict[str, int]:
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        rows = connection.execute("SELECT status, count(*) FROM episodes GROUP BY status")
        return dict(rows.fetchall())


def counted(run: ToyRun, name: str) -> list[float]:
    lines = (run.path / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


# --- prompts -------------------------------------------------------------------------------------


def test_a_prompt_over_the_limit_is_truncated_and_counted_and_the_run_goes_on(run):
    tasks = run.toy.folder / "tasks.jsonl"
    row = {"query": "What is " + "1 + " * 300 + "1?", "answer": "-"}
    rest = tasks.read_text().splitlines(keepends=True)[1:]
    tasks.write_text(json.dumps(row) + "\n" + "".join(rest[:3]))
    result = run(ONE)
    assert result.exit_code == 0, result.output
    assert statuses(run.toy) == {"ok": 12, "truncated": 4}
    assert counted(run.toy, "episodes/truncated") == [4.0]
    with sqlite3.connect(run.toy.path / "episodes.sqlite") as connection:
        (error,) = connection.execute("SELECT error FROM episodes WHERE error != ''").fetchone()
    assert "max_prompt_length is 256" in error


def test_a_run_whose_every_prompt_is_too_long_ends_without_an_update(run, good):
    result = run(ONE, "ajet.data.max_prompt_length=8")
    assert result.exit_code == 0, result.output
    assert counted(run.toy, "episodes/truncated") == [16.0]
    assert counted(run.toy, "update/optimizer_steps") == [0.0]


# --- the run folder ------------------------------------------------------------------------------


def test_a_run_folder_in_use_is_one_line_and_stays_as_it_is(begun):
    before = begun.final_tensors(3)
    with RunFolder.open(begun.path):
        line = error_line(begun.call(*begun.arguments, FOUR))
    assert "in use by process" in line and "--exp-dir" in line
    assert begun.final_tensors(3) == before


# --- checkpoints ---------------------------------------------------------------------------------


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(begun, good):
    flip_a_bit(begun.path / "checkpoints" / "step_000003" / "model.safetensors")
    result = begun.call(*begun.arguments, THREE)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "step_000003 is damaged (model.safetensors does not match its checksum)" in said
    assert "step 3/3" in result.output and "step 2/3" not in result.output
    assert begun.final_tensors(3) == good.final_tensors(3)


def test_when_every_checkpoint_is_damaged_nothing_is_thrown_away(begun):
    for step in (2, 3):
        flip_a_bit(begun.path / "checkpoints" / f"step_{step:06d}" / "tensors.safetensors")
    line = error_line(begun.call(*begun.arguments, FOUR))
    assert "no usable checkpoint in" in line and "remove the folder to start from scratch" in line
    assert begun.steps_saved() == [2, 3]
    assert statuses(begun) == {"ok": 48}


# --- workflows -----------------------------------------------------------------------------------


def test_a_run_that_fails_loses_no_step_and_goes_on_when_mended(run, good, monkeypatch):
    rare = "ajet.trainer_common.save_freq=0"
    flow = workflow("RaisesFromStepTwo")
    error_line(run(THREE, rare, flow))
    assert run.toy.steps_saved() == [1]
    monkeypatch.setenv("mended", "yes")
    result = run(THREE, rare, flow)
    assert result.exit_code == 0, result.output
    assert "step 1/3" not in result.output
    assert run.toy.final_tensors(3) == good.final_tensors(3)


# --- processes that must be ended ----------------------------------------------------------------


@pytest.fixture(scope="module")
def processes(good, tmp_path_factory):
    """(full disk by a limit of file size, by a full file system, a workflow that never leaves)."""
    folder = tmp_path_factory.mktemp("processes")
    limited = copy_of(good, folder / "limited")
    stuck = ToyRun(folder / "stuck")
    with ThreadPoolExecutor(2) as pool:
        timed = pool.submit(timed_finish, stuck)
        limit = pool.submit(finish_without_big_files, limited)
        return {"limited": (limited, limit.result()), "stuck": (stuck, *timed.result())}


def finish_without_big_files(run: ToyRun) -> int:
    """Limited from outside: code between fork and exec, in a process with threads, may crash."""
    with ended(run.start(FOUR)) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        return process.wait(120)


def timed_finish(run: ToyRun) -> tuple[int, float]:
    started_s = time.monotonic()
    code = run.finish(ONE, workflow("NeverLeaves"), "ajet.rollout.episode_timeout_s=1")
    return code, time.monotonic() - started_s


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(processes, good):
    run, code = processes["limited"]
    assert code == 1
    assert len(run.errors()) == 1, run.stderr()
    assert "step_000004 was not saved" in run.errors()[0]
    assert "earlier checkpoints are intact" in run.errors()[0]
    assert run.steps_saved() == [2, 3]
    assert run.final_tensors(3) == good.final_tensors(3)


@pytest.mark.parametrize("room", [2_000_000, 0])
def test_a_full_disk_is_one_line_and_nothing_is_lost(good, tmp_path, room):
    disk = tmp_path / "disk"
    disk.mkdir()
    used = sum(file.stat().st_size + 4096 for file in good.folder.rglob("*"))
    size = f"size={used + room + 100_000}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        run = copy_of(good, disk / "run")
        if not room:
            fill(disk / "filler")
        code = run.finish(FOUR) if room else finish_elsewhere(run, tmp_path)
        assert code == 1
        errors = [line for line in run.errors() if line] if room else elsewhere(tmp_path)
        assert len(errors) == 1 and errors[0].startswith("error: "), errors
        assert run.steps_saved() == [2, 3]
        assert run.final_tensors(3) == good.final_tensors(3)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(file: Path) -> None:
    try:
        with file.open("wb") as out:
            while out.write(b"0" * 4096):
                out.flush()
    except OSError:
        return


def finish_elsewhere(run: ToyRun, folder: Path) -> int:
    """Its words go where there is room."""
    with (folder / "stderr").open("w") as stderr, (folder / "stdout").open("w") as stdout:
        line = ["-m", "ajet.cli.launcher", *run.arguments, FOUR]
        files = {"stdout": stdout.fileno(), "stderr": stderr.fileno()}
        return warm_start(line, cwd=run.folder, env=environment(), **files).wait(120)


def elsewhere(folder: Path) -> list[str]:
    lines = (folder / "stderr").read_text().splitlines()
    return [line for line in lines if not line.startswith(("notice: ", "warning: "))]


def test_a_workflow_that_never_leaves_does_not_hold_up_the_end(processes):
    run, code, took_s = processes["stuck"]
    assert code == 0, run.stderr()
    assert took_s < 300  # of a call of 3,600: deadline 1, grace 5 in the rollout, 2 + 3 at the end
    assert "never ended" in run.stderr()
    assert run.errors() == []
    assert statuses(run) == {"ok": 8, "timeout": 8}
    assert run.steps_saved() == [1]
