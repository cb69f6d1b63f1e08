import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder

HOLD = """
import sys, time
from pathlib import Path
from ajet.core.record.run_folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
{more}
print("held", flush=True)
time.sleep(60)
"""


def holder(path, more=""):
    """Another process that has the folder open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more=more), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_in_use_is_refused_with_the_process_that_has_it(tmp_path):
    process = holder(tmp_path)
    try:
        with pytest.raises(
            CheckpointError, match=f"in use by process {process.pid} on "
        ) as refused:
            RunFolder.open(tmp_path)
        assert "\n" not in str(refused.value)
        assert "--exp-dir" in str(refused.value)
    finally:
        process.kill()
        process.wait()


def test_a_killed_run_leaves_no_lock_though_its_forked_child_lives(tmp_path):
    fork = "import os\nif (child := os.fork()) == 0: time.sleep(60)\nprint(child, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more=fork), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        deadline = time.monotonic() + 10  # it may not have closed its copy yet
        while True:
            try:
                RunFolder.open(tmp_path).close()
                break
            except CheckpointError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_path_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made: Not a directory"):
        RunFolder.open(tmp_path / "file" / "run")


def test_secrets_are_not_saved(tmp_path):
    mine = {
        "api_key": "sk-1",
        "model": {"path": "m", "tokenizer": "t"},
        "max_token_len_per_gpu": 512,
        "judges": [{"hf_token": "hf_1"}, {"db_password": "p", "url": "http://me:pw@host/x"}],
        "secrets": {"a": "b"},
        "nothing_api_key": None,
    }
    folder = RunFolder(tmp_path)
    folder.save_config(AjetConfig.model_validate({"mine": mine}))
    assert yaml.safe_load(folder.config_yaml.read_text())["mine"] == {
        "api_key": "***",
        "model": {"path": "m", "tokenizer": "***"},
        "max_token_len_per_gpu": 512,
        "judges": [{"hf_token": "***"}, {"db_password": "***", "url": "http://***@host/x"}],
        "secrets": {"a": "***"},
        "nothing_api_key": None,
    }


def test_the_users_code_is_copied_with_its_siblings(tmp_path):
    for place in ("a/agent", "b/agent"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "workflow.py").write_text(place)
        (tmp_path / place / "helper.py").write_text("x = 1")
    (tmp_path / "a/agent/big.py").write_text("#" * 1_000_001)
    (tmp_path / "a/agent/.env").write_text("KEY=1")
    folder = RunFolder(tmp_path / "run")
    files = [tmp_path / "a/agent/workflow.py", tmp_path / "b/agent/workflow.py"]
    left_out = folder.save_code(files)
    copied = sorted(str(p.relative_to(folder.code)) for p in folder.code.rglob("*") if p.is_file())
    names = ["agent-2/helper.py", "agent-2/workflow.py", "agent/helper.py", "agent/workflow.py"]
    assert copied == names
    assert (folder.code / "agent/workflow.py").read_text() == "a/agent"
    assert [path.name for path in left_out] == ["big.py"]
