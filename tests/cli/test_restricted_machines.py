"""What works without the extras, and without what only POSIX has. A step in a process of its own
that lacks them (restricted.py); the machine itself may be neither."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ajet.core.text.error_text import EXTRAS
from ajet.core.text.install import install_command

ROOT = Path(__file__).parents[2]
RESTRICTED = Path(__file__).with_name("restricted.py")
LIGHT = {"modules": sorted(EXTRAS), "names": []}
DEMO = "tutorial/example_math_agent/demo.yaml"
GAME = "tutorial/example_guess_number/demo.yaml"
VERL = Path(__file__).parents[1] / "data/convert/verl/ppo.yaml"
WINDOWS = {
    "modules": ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"],
    "names": [
        *("os.fork", "os.register_at_fork", "os.getuid", "os.geteuid", "os.getegid"),
        *("os.sysconf", "os.sched_getaffinity", "os.killpg", "os.setsid", "os.getpgid"),
        *("os.uname", "os.pipe2", "os.pidfd_open", "os.memfd_create", "os.posix_spawnp"),
        *("os.O_CLOEXEC", "os.O_NONBLOCK", "os.O_DIRECTORY", "signal.SIGKILL", "signal.SIGCHLD"),
        *("signal.SIGHUP", "signal.SIGPIPE", "signal.SIGXFSZ", "signal.SIGALRM"),
        *("signal.setitimer", "signal.pthread_sigmask"),
    ],
    "before": [  # what these two packages import when they load is their own affair
        *("torch", "tokenizers", "loguru", "transformers.modeling_utils"),
        *(
            f"transformers.models.{name}"
            for name in ("auto.modeling_auto", "auto.tokenization_auto")
        ),
        "transformers.models.qwen2.modeling_qwen2",
    ],
}


def run(restrictions, commands, folder):
    return subprocess.run(
        [sys.executable, str(RESTRICTED), json.dumps(restrictions), commands],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def folder(tmp_path):
    """A folder outside the repository with the examples that are run, and a recorded run."""
    sys.path.append(str(ROOT / "tests" / "read" / "logview"))
    from logview_fixtures import write_run

    write_run(tmp_path / "recorded")
    return tmp_path


LIGHT_COMMANDS = (
    "--version",
    "examples",
    "examples math_agent guess_number",
    f"check --conf {DEMO}",
    "schema --out schema.json",
    f"convert --from verl {VERL} --out converted.yaml",
    "view recorded --export page.html",
    "servers",
    "env-check guess_number",
    "init project --kind chat",
)


def test_the_light_commands_need_no_extra(folder):
    done = run(LIGHT, " ; ".join(LIGHT_COMMANDS), folder)
    assert done.returncode == 0, done.stderr
    assert "start: begins" in done.stdout and "sound: " in done.stdout
    written = {path.name for path in folder.iterdir()}
    assert {"tutorial", "schema.json", "converted.yaml", "page.html"} <= written


@pytest.mark.parametrize("command", ["train", "debug", "eval", "plan"])
def test_a_command_whose_extra_is_missing_names_it_in_one_line(command, tmp_path):
    done = run(LIGHT, f"examples math_agent ; {command} --conf {DEMO}", tmp_path)
    assert done.returncode == 1
    expected = f"error: ajet {command} needs torch, which is not installed: "
    assert done.stderr == f"{expected}{install_command('train')} [AJ-PKG-001]\n"


@pytest.mark.parametrize("command", [f"check --conf {GAME}", "view recorded --export page.html"])
def test_check_and_view_need_nothing_that_windows_lacks(command, folder):
    done = run(
        {**WINDOWS, "before": ["numpy", "loguru"]}, f"examples guess_number ; {command}", folder
    )
    assert done.returncode == 0, done.stderr


def test_eval_needs_nothing_that_windows_lacks(tmp_path):
    commands = f"examples guess_number ; eval --conf {GAME} --num-tasks 2 -k 1"
    done = run(WINDOWS, commands, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout


def extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"]


def test_the_extra_all_is_every_other_but_dev():
    named = {name for entry in extras()["all"] for name in entry[5:-1].split(",")}
    assert named == set(extras()) - {"all", "dev"}


def test_every_extra_that_an_error_names_exists():
    assert set(EXTRAS.values()) <= set(extras()) - {"all", "dev"}


def test_mcp_is_pinned_for_its_users_alone():
    with_mcp = {name for name, entries in extras().items() if any(e[:3] == "mcp" for e in entries)}
    assert with_mcp == {"agentscope", "mcp"}
