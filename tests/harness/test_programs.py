"""Programs of others, unchanged: each edits a file by its own tools over the gateway.

A program that is not on PATH is skipped, as is bubblewrap. What is scripted is the model alone.
"""

import re
import shutil
from pathlib import Path

import pytest

from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import registered_workflow
from ajet.harness.workflow import install_folders
from tests.harness.harness_run import (
    RIGHT,
    ROW,
    WRONG,
    audit_of,
    call,
    config_of,
    play_group,
    sandboxed,
)

FILE = "/workspace/calc.py"
EDITS = {
    "harness:codex": [call("exec_command", cmd=f"sed -i 's/{WRONG}/{RIGHT}/' calc.py")],
    "harness:claude-code": [
        call("Read", file_path=FILE),
        call("Edit", replace_all=False, file_path=FILE, old_string=WRONG, new_string=RIGHT),
    ],
    "harness:qwen-code": [
        call("read_file", file_path=FILE),
        call("edit", file_path=FILE, old_string=WRONG, new_string=RIGHT),
    ],
    "harness:opencode": [
        call("read", filePath=FILE),
        call("edit", filePath=FILE, oldString=WRONG, newString=RIGHT),
    ],
    "harness:aider": [f"calc.py\n```\ndef add(a, b):\n    {RIGHT}\n```\n"],
}
ARGUMENTS = {"harness:aider": ["calc.py"]}


def needs_program(name):
    sandboxed("bwrap")
    program = registered_workflow(name).program
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")


def scripted(replies, last="Done."):
    """The replies in their order, then the last one for ever."""
    left = list(replies)
    return lambda *_: left.pop(0) if left else last


@pytest.mark.parametrize("name", EDITS)
async def test_a_program_edits_the_file_and_its_record_is_exact(name, tmp_path):
    needs_program(name)
    config = config_of(sandbox="bwrap", arguments=ARGUMENTS.get(name, []))
    group = await play_group(name, scripted(EDITS[name]), config)
    (episode,) = group.trajectories
    assert (episode.status, episode.error) == (EpisodeStatus.OK, None)
    assert (episode.reward, episode.output.metadata["exit_code"]) == (1.0, 0)
    assert f"-    {WRONG}\n+    {RIGHT}\n" in episode.output.metadata["changes"]
    figures = audit_of(tmp_path / "episodes.sqlite", group)
    num_calls = len(EDITS[name]) + (name != "harness:aider")
    assert (figures.calls, figures.num_faults, figures.faults) == (num_calls, 0, [])
    assert figures.continued == num_calls - 1  # one conversation, by the recorded ids
    assert figures.timelines == 1


@pytest.mark.parametrize("sandbox", ["bwrap", "podman"])
async def test_a_program_goes_on_with_its_conversation_from_the_folders_of_an_episode(
    sandbox, tmp_path
):
    needs_program("harness:opencode")
    program = shutil.which("opencode")
    keys = sandboxed(sandbox) | {
        "program": program,
        "shown_folders": install_folders(Path(program)),
        "episode_folders": str(tmp_path / "kept"),
    }
    read, edit = EDITS["harness:opencode"]
    group = await play_group("harness:opencode", scripted([read]), config_of(**keys))
    left = group.trajectories[0].output.metadata
    row = {name: left[name] for name in ("folder", "home")} | {"hidden_files": ROW["hidden_files"]}
    config = config_of(arguments=["--continue"], **keys)
    group = await play_group("harness:opencode", scripted([edit]), config, row, "Now repair it.")
    (episode,) = group.trajectories
    assert (episode.status, episode.error, episode.reward) == (EpisodeStatus.OK, None, 1.0)
    roles = [message["role"] for message in episode.turns[0].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    figures = audit_of(tmp_path / "episodes.sqlite", group)
    assert (figures.calls, figures.num_faults, figures.timelines) == (2, 0, 1)


async def test_a_sub_agent_is_a_timeline_of_its_own(tmp_path):
    needs_program("harness:claude-code")
    read, edit = EDITS["harness:claude-code"]
    task = {"description": "repair", "prompt": "SUBTASK: repair"}

    def reply(prompt, _request_id):
        if "Repair add in calc.py." in prompt:  # the main agent: it hands the task on, once
            asks = call("Agent", **task, subagent_type="general-purpose")
            return "Done." if "SUBTASK" in prompt else asks
        if WRONG not in prompt:
            return read
        return "Repaired." if RIGHT in prompt else edit

    group = await play_group("harness:claude-code", reply, config_of(sandbox="bwrap"))
    (episode,) = group.trajectories
    assert (episode.status, episode.error, episode.reward) == (EpisodeStatus.OK, None, 1.0)
    figures = audit_of(tmp_path / "episodes.sqlite", group)
    assert (figures.timelines, figures.num_faults) == (2, 0)


async def test_a_sub_agent_of_codex_is_called_in_its_namespace_and_is_a_timeline(tmp_path):
    needs_program("harness:codex")
    (edit,) = EDITS["harness:codex"]

    def reply(prompt, _request_id):
        _, is_main, said = prompt.rpartition("Repair add in calc.py.")
        if not is_main:
            return "Repaired." if "exited with code 0" in prompt else edit
        if "SUBTASK" not in said:
            return call("spawn_agent", message="SUBTASK: repair")
        if "wait_agent" in said:
            return "Done."
        (identifier,) = re.findall(r'"agent_id":"([^"]+)"', said)
        return call("wait_agent", targets=[identifier])

    group = await play_group("harness:codex", reply, config_of(sandbox="bwrap"))
    (episode,) = group.trajectories
    assert (episode.status, episode.error, episode.reward) == (EpisodeStatus.OK, None, 1.0)
    figures = audit_of(tmp_path / "episodes.sqlite", group)
    assert (figures.calls, figures.timelines, figures.num_faults) == (5, 2, 0)
