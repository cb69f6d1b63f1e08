"""Disks that answer EIO, and network disks: slow, without locks, with a handle that is stale.

Each run continues a copy of one good run of three steps. Not covered: a real network file system.
"""

import errno
import shutil

import pytest

from tests.e2e.toy_run import ToyRun, environment
from tests.faulty_disk import faulty_disk, needs_compiler

pytestmark = needs_compiler
THREE = "ajet.trainer_common.total_training_steps=3"
FOUR = "ajet.trainer_common.total_training_steps=4"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Three steps; not to be changed. Its own process is the disk's too, so that all share one."""
    run = ToyRun(tmp_path_factory.mktemp("good"))
    assert run.finish(THREE, env=environment(**faulty_disk({}))) == 0, run.stderr()
    return run


@pytest.mark.parametrize(
    ("calls", "number", "said"),
    [
        ("write:checkpoints", errno.EIO, "step_000004 was not saved: "),
        ("sync:checkpoints", errno.EIO, "step_000004 was not saved: Input/output error; earlier"),
        ("rename:.writing_", errno.ESTALE, "step_000004 was not saved: Stale file handle; earlier"),
        ("write:episodes.sqlite", errno.EIO, "episodes.sqlite cannot be read or written: disk I/O"),
        ("lock:episodes.sqlite", errno.ENOLCK, "another process has it, or its disk has no locks"),
        ("write:metrics.jsonl", errno.EIO, "metrics.jsonl cannot be written: Input/output error"),
        ("write:tensorboard", errno.EIO, "cannot be written: Input/output error; make room"),
        ("write:toy/tokenizer", errno.EIO, "tokenizer cannot be written: "),
        ("write:.lock", errno.EIO, ".lock cannot be written: Input/output error"),
        ("lock:.lock", errno.ENOLCK, "cannot be locked: No locks available; choose a disk with"),
        ("open:run.log", errno.ESTALE, "run.log cannot be written: Stale file handle"),
        ("sync:attempts remove:attempts", errno.EIO, "config.yaml cannot be written: Input/output"),
    ],
)
def test_a_disk_that_fails_is_one_line_and_loses_no_checkpoint(good, tmp_path, calls, number, said):
    shutil.copytree(good.folder, tmp_path / "run")
    run = ToyRun(tmp_path / "run")
    assert (
        run.finish(FOUR, env=environment(**faulty_disk(dict.fromkeys(calls.split(), number)))) == 1
    )
    (error,) = run.errors()
    assert error.startswith("error: ") and said in error
    assert run.steps_saved() == [2, 3]
    assert run.final_tensors(3) == good.final_tensors(3)


def test_a_slow_disk_that_loses_the_log_slows_the_run_and_changes_nothing(good, tmp_path):
    run = ToyRun(tmp_path / "run")
    slow = {f"{calls}:launcher_record": "50ms" for calls in ("sync", "rename", "lock")}
    disk = faulty_disk(slow | {"write:run.log": errno.EIO})
    assert run.finish(THREE, env=environment(**disk)) == 0, run.stderr()
    assert run.final_tensors(3) == good.final_tensors(3)
    assert run.errors() == []
    assert run.stderr().count("run.log lacks lines of this attempt: Input/output error") == 1
