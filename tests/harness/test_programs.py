"""Programs of others, unchanged: each edits a file by its own tools over the gateway.

A program that is not on PATH is skipped, as is bubblewrap. What is scripted is the model alone.
"""

import shutil

import pytest

from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.trajectory.trie import timelines
from ajet.core.workflow.registry import registered_workflow
from tests.harness.harness_run import RIGHT, WRONG, audit_of, call, config_of, needs_bwrap, play_group

FILE = "/workspace/calc.py"
EDITS = {
    "harness:codex": [call("exec_command", cmd=f"sed -i 's/{WRONG}/{RIGHT}/' calc.py")],
    "harness:claude-code": [
        call("Read", file_path=FILE),
        call("Edit", file_path=FILE, old_string=WRONG, new_string=RIGHT),
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
    needs_bwrap()
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


SUB_AGENTS = {
    "harness:claude-code": call(
        "Agent", description="repair", prompt="SUBTASK: repair", subagent_type="general-purpose"
    ),
}


@pytest.mark.parametrize("name", SUB_AGENTS)
async def test_a_sub_agent_is_a_timeline_of_its_own(name, tmp_path):
    needs_program(name)
    edits = list(EDITS[name])

    def reply(prompt, request_id):
        asked = prompt.rpartition("<|im_start|>user")[2]
        if "SUBTASK" in prompt and "Repair add" not in prompt:
            return edits.pop(0) if edits else "Repaired."
        return "Done." if "Repaired." in asked else SUB_AGENTS[name]

    group = await play_group(name, reply, config_of(sandbox="bwrap"))
    (episode,) = group.trajectories
    assert (episode.status, episode.error, episode.reward) == (EpisodeStatus.OK, None, 1.0)
    assert len(timelines(episode.turns)) == 2
    assert audit_of(tmp_path / "episodes.sqlite", group).num_faults == 0
