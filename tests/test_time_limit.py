"""A test that hangs fails with its name and its stack, and the tests behind it still run."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import RAY_TIMEOUT_S

ROOT = Path(__file__).parents[1]
HANGS = """
import threading

def test_hangs():
    waits_for_ever()

def waits_for_ever():
    threading.Event().wait()

def test_behind_it():
    pass
"""


def test_a_test_that_hangs_is_named_with_its_stack_and_the_next_one_runs(tmp_path):
    (tmp_path / "test_it.py").write_text(HANGS)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "--noconftest"]
    command = [sys.executable, "-m", "pytest", *config, "-p", "no:cacheprovider", "-o", "timeout=1"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, "test_it.py"], check=False, **options)
    assert "FAILED test_it.py::test_hangs" in done.stdout, done.stdout + done.stderr
    assert "in waits_for_ever" in done.stdout and "1 failed, 1 passed" in done.stdout


def test_every_test_has_a_limit_and_one_on_ray_a_longer_one(request):
    assert 0 < float(request.config.getini("timeout")) < RAY_TIMEOUT_S
