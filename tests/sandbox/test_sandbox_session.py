"""A session keeps one sandbox open for commands that follow one another."""

import asyncio

import pytest

from ajet.core.config.services import HarnessLimits
from ajet.sandbox.command import TIMED_OUT, LimitExceeded, open_session
from ajet.sandbox.runtime import SYSTEM_PATH, Folders, Runtime
from tests.harness.harness_run import process_lines, sandboxed

VARIABLES = {"PATH": SYSTEM_PATH, "HOME": "/root"}


@pytest.fixture
def opened(tmp_path):
    """Opens a session in bubblewrap with a writable /data, /root and /tmp."""

    def open_in(**limits):
        runtime = Runtime("bwrap", limits=HarnessLimits(**limits), owns_root=True)
        sandboxed("bwrap")
        folders = Folders(tmp_path / "session")
        folders.make()
        for name in ("data", "root", "tmp"):
            (folders.root / name).mkdir()
        return open_session(runtime, folders, VARIABLES)

    return open_in


async def test_files_and_background_processes_last_from_command_to_command(opened):
    async with opened() as session:
        await session.run("echo kept > /data/file; sleep 86427 & echo $! > /data/pid", timeout_s=9)
        after = await session.run("cat /data/file; kill -0 $(cat /data/pid) && id -u", timeout_s=9)
        assert (after.exit_code, after.output) == (0, "kept\n0\n")
        assert "86427" in process_lines()
    assert "86427" not in process_lines()


async def test_a_command_has_its_own_exit_code_variables_and_both_streams(opened):
    async with opened() as session:
        first = await session.run(
            "echo $A; echo no >&2; exit 3", timeout_s=9, environment={"A": "'"}
        )
        second = await session.run("echo [$A]", timeout_s=9)
    assert (first.exit_code, first.output) == (3, "'\nno\n")
    assert (second.exit_code, second.output) == (0, "[]\n")


async def test_a_command_past_its_time_is_ended_and_the_next_one_runs(opened):
    async with opened() as session:
        late = await session.run("echo begun; sleep 60; echo over", timeout_s=1)
        after = await session.run("echo next", timeout_s=9)
    assert (late.exit_code, late.output) == (TIMED_OUT, "begun\n")
    assert (after.exit_code, after.output) == (0, "next\n")


async def test_the_answer_to_a_cancelled_command_is_not_taken_for_the_next_ones(opened):
    async with opened() as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await session.run("sleep 2; exit 7", timeout_s=9)
        after = await session.run("echo next", timeout_s=9)
    assert (after.exit_code, after.output) == (0, "next\n")


async def test_commands_at_the_same_time_run_one_after_another(opened):
    async with opened() as session:
        step = "n=$(cat /data/n); sleep 0.2; echo $((n + 1)) > /data/n"
        await session.run("echo 0 > /data/n", timeout_s=9)
        await asyncio.gather(*(session.run(step, timeout_s=9) for _ in range(4)))
        assert (await session.run("cat /data/n", timeout_s=9)).output == "4\n"


async def test_no_command_can_kill_the_sandbox(opened):
    async with opened() as session:
        await session.run("kill -9 1; kill -9 -1", timeout_s=9)
        assert (await session.run("echo alive", timeout_s=9)).output == "alive\n"


async def test_output_is_cut_at_its_beginning_and_may_be_removed_or_replaced(opened):
    async with opened() as session:
        cut = await session.run("seq 1000", timeout_s=9, max_output=9)
        removed = await session.run("rm /workspace/*", timeout_s=9)
        linked = await session.run("ln -sf /etc/passwd /workspace/3.out", timeout_s=9)
    assert (cut.output, removed.output, linked.output) == ("999\n1000\n", "", "")


async def test_a_sandbox_that_uses_too_much_is_ended_and_says_of_what(opened):
    async with opened(num_processes=20) as session:
        with pytest.raises(LimitExceeded, match="more than 20 processes and threads"):
            await session.run("for n in $(seq 60); do sleep 86428 & done; wait", timeout_s=60)
        with pytest.raises(LimitExceeded):
            await session.run("echo", timeout_s=9)
    assert "86428" not in process_lines()
