"""A command-line agent runs as a workflow: its folder, its limits, and what of it is seen."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ajet.core.errors import ConfigError
from ajet.core.trajectory.limits import Limit
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import registered_workflow
from tests.harness.harness_run import (
    PYTHON,
    ROW,
    audit_of,
    config_of,
    play,
    play_group,
    process_lines,
    sandboxed,
    shell,
)

CLIENT = """
import json, os, sys, urllib.request
body = {"model": "ajet", "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], end="")
"""
ASK = f"/usr/bin/env python3 -c '{CLIENT}' \"$1\""
REPAIR = f"{ASK} > calc.py; echo repaired"
RIGHT = "def add(a, b):\n    return a + b\n"


def repaired(*_):
    return RIGHT


@pytest.mark.parametrize("sandbox", ["none", "bwrap", "podman", "docker"])
async def test_a_program_is_given_the_tasks_files_and_its_calls_are_the_episode(sandbox, tmp_path):
    config = shell(REPAIR, "{prompt}", **sandboxed(sandbox))
    group = await play_group("harness:cmd", repaired, config)
    episode = group.trajectories[0]
    assert (episode.status, episode.reward, episode.is_success) == (EpisodeStatus.OK, 1.0, True)
    (turn,) = episode.turns
    assert turn.messages == [{"role": "user", "content": "Repair add in calc.py."}]
    said = episode.output.metadata
    assert (said["final_answer"], said["exit_code"]) == ("repaired", 0)
    assert "-    return a - b\n+    return a + b\n" in said["changes"]
    figures = audit_of(tmp_path / "episodes.sqlite", group)
    assert (figures.calls, figures.num_faults, figures.drift.total()) == (1, 0, 0)


async def test_the_reward_is_the_share_of_hidden_tests_that_pass():
    half = "def add(a, b):\n    return a\n"  # add(2, 0) is right, add(2, 3) is not
    episode = await play("harness:cmd", lambda *_: half, shell(REPAIR, "{prompt}"))
    assert (episode.reward, episode.is_success) == (0.5, False)


async def test_the_folder_is_removed_once_it_is_judged_unless_it_is_to_be_kept(tmp_path):
    episode = await play("harness:cmd", repaired, shell(REPAIR, "{prompt}"))
    assert not Path(episode.output.metadata["folder"]).parent.exists()
    config = shell(REPAIR, "{prompt}", episode_folders=str(tmp_path / "kept"))
    episode = await play("harness:cmd", repaired, config)
    folder = Path(episode.output.metadata["folder"])
    assert folder.is_relative_to(tmp_path / "kept") and (folder / "calc.py").read_text() == RIGHT


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_the_hidden_tests_are_nowhere_in_what_the_program_is_given(sandbox):
    look = "ls -a . .. ~ && env && cat ~/* * ; grep -r assert . ~ ; echo end"
    episode = await play(
        "harness:cmd", repaired, shell(f"{ASK}; {look}", "{prompt}", **sandboxed(sandbox))
    )
    seen = episode.output.metadata["final_answer"] + episode.output.metadata["errors"]
    assert "calc.py" in seen and "test_one" not in seen and "assert" not in seen


@pytest.mark.parametrize("sandbox", ["bwrap", "podman", "docker"])
async def test_a_confined_program_sees_the_gateway_and_its_own_folders_alone(
    sandbox, tmp_path, monkeypatch
):
    keys = sandboxed(sandbox)
    monkeypatch.setenv("AJET_TEST_SECRET", "hunter2")
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    of_this_machine = "/root /var" if sandbox == "bwrap" else tmp_path
    look = (
        f"cat {secret}; env | grep hunter2; echo x > /proc/sys/vm/swappiness; "
        f"grep -c : /proc/net/dev; ls {of_this_machine}; echo end"
    )
    episode = await play("harness:cmd", repaired, shell(f"{ASK}; {look}", "{prompt}", **keys))
    seen = episode.output.metadata
    assert "hunter2" not in seen["final_answer"] + seen["errors"]
    assert seen["final_answer"].endswith("1\nend")  # loopback is the only network
    assert seen["errors"].count("Read-only file system") == 1


@pytest.mark.parametrize("sandbox", ["bwrap", "podman", "docker"])
async def test_addresses_and_paths_inside_are_the_same_in_each_episode(sandbox):
    script = f"{ASK} >/dev/null; pwd; echo {{base_url}} {{folder}}"
    config = shell(script, "{prompt}", **sandboxed(sandbox))
    episode = await play("harness:cmd", repaired, config)
    said = episode.output.metadata["final_answer"]
    assert said == "/workspace\nhttp://127.0.0.1:8080/v1 /workspace"


@pytest.mark.parametrize("sandbox", ["none", "bwrap", "podman", "docker"])
async def test_a_program_that_runs_past_the_deadline_ends_with_all_that_it_started(sandbox):
    mark = f"8642{len(sandbox)}"  # seconds of a sleep that no other process has
    config = shell(f"sleep {mark} & {ASK}; sleep {mark}", "{prompt}", **sandboxed(sandbox))
    episode = await play("harness:cmd", repaired, config, episode_timeout_s=3.0)
    assert episode.status is EpisodeStatus.TIMEOUT
    assert f"sleep {mark}" not in process_lines()


def holds_within(seconds, condition):
    last_s = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < last_s:
        time.sleep(0.05)
    return holds


ENDLESS = """
import asyncio, sys
from pathlib import Path
from ajet.sandbox.command import run_command
from ajet.sandbox.runtime import Folders, Runtime
folders = Folders(Path(sys.argv[4]))
folders.make()
runtime = Runtime(sys.argv[1], sys.argv[2] or None)
command = ["sh", "-c", f"echo > begun; sleep {sys.argv[3]}"]
asyncio.run(run_command(runtime, command, folders, environment={}, port=None))
"""


@pytest.mark.parametrize("sandbox", ["none", "bwrap", "podman", "docker"])
def test_a_program_ends_where_ajet_is_killed(sandbox, tmp_path):
    image = sandboxed(sandbox).get("image") or ""
    mark = f"8643{len(sandbox)}{sandbox[0] == 'd':d}"  # seconds of a sleep that no other has
    line = [sys.executable, "-c", ENDLESS, sandbox, image, mark, str(tmp_path / "killed-ajet")]
    with subprocess.Popen(line) as ajet:
        begun = tmp_path / "killed-ajet" / "workspace" / "begun"
        assert holds_within(60, lambda: begun.exists() and f"sleep {mark}" in process_lines())
        ajet.kill()
    assert holds_within(20, lambda: f"sleep {mark}" not in process_lines())


async def test_a_program_that_a_limit_of_calls_stops_is_judged_as_truncated():
    config = shell(f"{ASK} > calc.py; {ASK} || exit 3", "{prompt}")
    episode = await play("harness:cmd", repaired, config, max_steps=1)
    assert episode.status is EpisodeStatus.TRUNCATED
    assert (episode.reward, episode.output.metadata["exit_code"]) == (1.0, 3)


async def test_a_program_that_fails_before_its_first_reply_fails_the_episode_with_its_last_line():
    episode = await play("harness:cmd", repaired, shell("echo no such option >&2; exit 2"))
    assert episode.status is EpisodeStatus.AGENT_ERROR
    assert "harness:cmd ended with exit code 2: no such option" in episode.error


async def test_a_program_that_is_refused_by_the_gateway_says_so():
    bad = CLIENT.replace('"messages"', '"colour": 1, "messages"')
    episode = await play("harness:cmd", repaired, shell(f"/usr/bin/env python3 -c '{bad}' hi"))
    assert "the gateway answered 400, unknown field colour" in episode.error


async def test_a_program_that_fails_after_replies_is_judged_and_counted():
    episode = await play("harness:cmd", repaired, shell(f"{REPAIR}; exit 7", "{prompt}"))
    assert (episode.status, episode.reward) == (EpisodeStatus.OK, 1.0)
    assert episode.output.metadata["exit_code"] == 7
    assert episode.output.log_metrics["program_failed"] == 1.0


async def test_the_output_of_a_program_is_cut_in_its_middle():
    config = shell(
        f"{ASK} > /dev/null; yes | head -c 3000000; echo; echo last", "{prompt}", max_output=12
    )
    episode = await play("harness:cmd", repaired, config)
    assert episode.output.metadata["final_answer"] == "y\ny\ny\n\nlast"


async def test_a_row_may_name_a_folder_and_its_files_come_on_top(tmp_path):
    source = tmp_path / "repository"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "note").write_text("old")
    (source / "calc.py").write_text("")
    row = ROW | {"folder": str(source), "files": {"deep/new": "new"}}
    episode = await play("harness:cmd", repaired, shell(f"{REPAIR}; cat deep/*", "{prompt}"), row)
    assert episode.output.metadata["final_answer"] == "repaired\nnewold"
    assert (source / "calc.py").read_text() == ""


async def test_tasks_may_begin_from_the_folder_that_an_episode_left(tmp_path):
    kept = shell(REPAIR, "{prompt}", episode_folders=str(tmp_path))
    left = (await play("harness:cmd", repaired, kept)).output.metadata["folder"]
    row = {"folder": left, "hidden_files": ROW["hidden_files"]}
    destroys = shell(f"{ASK} > /dev/null; cat calc.py; rm calc.py", "{prompt}")
    for _ in range(2):  # neither changes the snapshot
        episode = await play("harness:cmd", repaired, destroys, row)
        assert episode.output.metadata["final_answer"] == RIGHT.strip()
        assert episode.reward == 0.0


@pytest.mark.parametrize("sandbox", ["none", "bwrap", "podman"])
async def test_a_program_goes_on_with_the_folder_and_the_home_that_an_episode_left(
    sandbox, tmp_path
):
    keys = sandboxed(sandbox) | {"episode_folders": str(tmp_path)}
    first = shell(f"{REPAIR}; echo mine > ~/session; ln -s /etc ~/etc", "{prompt}", **keys)
    left = (await play("harness:cmd", repaired, first)).output.metadata
    row = {name: left[name] for name in ("folder", "home")}
    row["hidden_files"] = ROW["hidden_files"]
    goes_on = f"{ASK} > /dev/null; cat ~/session calc.py; echo theirs > ~/session"
    for _ in range(2):  # neither changes what was left
        episode = await play("harness:cmd", repaired, shell(goes_on, "{prompt}", **keys), row)
        assert episode.output.metadata["final_answer"] == f"mine\n{RIGHT}".strip()
        assert episode.reward == 1.0


async def test_a_program_is_started_by_its_path_with_further_arguments_before_the_prompt(tmp_path):
    program = tmp_path / "own"
    program.write_text(f"#!/bin/sh\n{ASK.replace('$1', 'hi')} >/dev/null; printf '%s|' \"$@\"\n")
    program.chmod(0o755)
    config = config_of(program=str(program), arguments=["--fast", "calc.py"])
    episode = await play("harness:qwen-code", repaired, config)
    said = episode.output.metadata["final_answer"]
    assert said == "--yolo|--fast|calc.py|--prompt|Repair add in calc.py.|"


async def test_a_shared_folder_next_to_the_yaml_is_read_only(tmp_path):
    (tmp_path / "note").write_text("shown")
    script = f"{ASK} > /dev/null; cat {{shown}}/note; echo x > {{shown}}/note"
    config = shell(script, "{prompt}", shown_folders=[str(tmp_path)], **sandboxed("bwrap"))
    episode = await play("harness:cmd", repaired, config)
    assert episode.output.metadata["final_answer"] == "shown"
    assert "Read-only file system" in episode.output.metadata["errors"]


async def test_the_changes_of_a_folder_are_kept_to_max_diff():
    episode = await play("harness:cmd", repaired, shell(REPAIR, "{prompt}", max_diff=5))
    assert episode.output.metadata["changes"] == "--- a\n[cut]\n"


async def test_a_hidden_test_that_does_not_end_within_timeout_s_has_not_passed():
    config = shell(REPAIR, "{prompt}", timeout_s=0.2)
    row = ROW | {"test_command": ["sleep", "86425"]}
    episode = await play("harness:cmd", repaired, config, row)
    assert (episode.reward, episode.is_success) == (0.0, False)
    assert "sleep 86425" not in process_lines()


async def test_without_test_in_the_command_it_is_run_once_for_all():
    row = ROW | {"test_command": [*PYTHON, "-c", "import test_one, test_two"]}
    episode = await play("harness:cmd", repaired, shell(REPAIR, "{prompt}"), row)
    assert (episode.reward, episode.is_success) == (1.0, True)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"hidden_files": {"a.py": ""}}, "hidden_files has no file named test_"),
        ({"hidden_files": {"../test_a.py": ""}}, "is not a path inside the folder"),
        ({"hidden_files": ["test_a.py"]}, "hidden_files must map paths to texts, not be list"),
    ],
)
async def test_hidden_files_that_cannot_be_used_are_the_judges_error(row, said):
    episode = await play("harness:cmd", repaired, shell(REPAIR, "{prompt}"), ROW | row)
    assert episode.status is EpisodeStatus.JUDGE_ERROR and said in episode.error


@pytest.mark.parametrize(
    ("harness", "said"),
    [
        ({"command": []}, "harness:cmd runs this command line, and it is empty"),
        ({"command": ["no-such-agent"]}, "PATH has no program 'no-such-agent'"),
        ({"command": ["sh", "{promt}"]}, "no placeholder {promt}; there are prompt,"),
        ({"command": ["sh", "{shown}"]}, "no placeholder {shown}"),
        ({"command": ["sh"], "shown_folders": ["nowhere"]}, "folder 'nowhere' not found"),
        ({"command": ["sh"], "sandbox": "podman"}, "podman"),
        ({"command": ["sh"], "sandbox": "docker"}, "docker"),
    ],
)
def test_a_harness_that_cannot_run_is_refused_before_a_launch(harness, said, monkeypatch):
    with pytest.raises(ConfigError, match=said):
        registered_workflow("harness:cmd").check_config(config_of(**harness))


@pytest.mark.parametrize("image", [None, "some/image"])
def test_a_sandbox_that_is_not_installed_is_refused_and_not_left_out(image, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    config = config_of(command=[sys.executable], sandbox="bwrap", image=image)
    with pytest.raises(
        ConfigError, match="bwrap is not on this machine's PATH: install bubblewrap"
    ):
        registered_workflow("harness:cmd").check_config(config)


def test_the_arguments_of_a_shell_keep_its_own_braces():
    kind = registered_workflow("harness:cmd")
    kind.check_config(config_of(command=["sh", "-c", "echo ${HOME} {model}"]))


EATERS = {
    "num_processes": "for n in $(seq 60); do sleep 86426 & done; wait",
    "memory_mib": 'python3 -c \'import time\nkept = []\nwhile kept.append(b"x" * 10**7) is None: '
    "time.sleep(0.1)'",  # the kernel of a container ends what doubles between two measurements
    "cpu_s": "while true; do true; done",
    "folder_mib": "while true; do n=$((n + 1)); yes | head -c 4000000 > $n; done",
}
SMALL = {"num_processes": 40, "memory_mib": 100, "cpu_s": 1, "folder_mib": 20}


@pytest.mark.parametrize(
    ("sandbox", "name"),
    [
        *(("bwrap", name) for name in EATERS),
        ("podman", "num_processes"),
        ("podman", "memory_mib"),
        *(("docker", name) for name in EATERS),
        ("none", "cpu_s"),
    ],
)
async def test_a_program_that_uses_more_than_a_limit_is_ended_and_judged_as_truncated(
    sandbox, name
):
    keys = sandboxed(sandbox) | {"limits": {name: SMALL[name]}}
    config = shell(f"{REPAIR}; {EATERS[name]}", "{prompt}", **keys)
    episode = await play("harness:cmd", repaired, config)
    assert episode.status is EpisodeStatus.TRUNCATED
    assert episode.truncation.limit is Limit.HARNESS
    assert episode.reward == (name != "folder_mib")  # the tests' copy is as large
    said = f"the program used more than {SMALL[name]} .* \\(ajet.harness.limits.{name}\\)"
    assert re.fullmatch(said, episode.error)
    assert "86426" not in process_lines()


async def test_docker_says_which_program_grew_past_all_bounds_between_two_measurements():
    keys = sandboxed("docker") | {"limits": {"memory_mib": 100}}
    config = shell(f"{REPAIR}; tail /dev/zero; echo over", "{prompt}", **keys)
    episode = await play("harness:cmd", repaired, config)
    assert (episode.status, episode.reward) == (EpisodeStatus.TRUNCATED, 1.0)
    assert "used more than 100 MiB of memory (ajet.harness.limits.memory_mib)" in episode.error


async def test_a_program_that_exceeds_a_limit_before_its_first_reply_fails_the_episode():
    config = shell(EATERS["cpu_s"], limits={"cpu_s": 1})
    episode = await play("harness:cmd", repaired, config)
    assert episode.status is EpisodeStatus.AGENT_ERROR
    assert "harness:cmd was ended: the program used more than 1 seconds of CPU" in episode.error


@pytest.mark.parametrize("sandbox", ["bwrap", "podman", "docker"])
async def test_tmp_and_single_files_have_a_size_and_the_rest_is_read_only(sandbox):
    fill = "yes | head -c 3000000 > {} || echo full; "
    script = "".join(map(fill.format, ("/tmp/a", "big", "/dev/a")))
    keys = sandboxed(sandbox) | {"limits": {"tmp_mib": 1, "folder_mib": 2}}
    episode = await play("harness:cmd", repaired, shell(f"{REPAIR}; {script}", "{prompt}", **keys))
    said = episode.output.metadata
    assert said["final_answer"].split() == ["repaired", "full", "full", "full"]
    assert "No space left on device" in said["errors"]
