"""What is measured of programs and folders, and which line says that it is too much."""

import os
import subprocess
import sys
import threading

import pytest

from ajet.sandbox.limiter import Group, descendants, excess, folder_bytes, usage_of


def test_the_first_exceeded_limit_is_named_and_null_sets_none():
    used = {"memory_mib": 10.5, "num_processes": 3, "cpu_s": 2.0, "folder_mib": 9.0}
    assert excess(used, {"memory_mib": 11, "num_processes": None, "cpu_s": 2}) is None
    assert excess(used, {"memory_mib": 10, "cpu_s": 1}) == (
        "the program used more than 10 MiB of memory (ajet.harness.limits.memory_mib)"
    )


def test_a_peak_that_ended_between_two_measurements_is_known_by_what_the_kernel_refused(tmp_path):
    for name, text in {"pids.current": "9", "pids.max": "80", "pids.events": "max 0"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    group = Group(tmp_path)
    assert group.num_processes() == 9 - threading.active_count()
    (tmp_path / "pids.events").write_text("max 234\n")
    assert group.num_processes() == 80


def test_folders_count_blocks_and_empty_files_and_follow_no_links(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "text").write_bytes(b"x" * 8192)
    for number in range(3):
        (tmp_path / str(number)).touch()
    (tmp_path / "link").symlink_to("/usr")
    found = folder_bytes([str(tmp_path)], 1 << 30)
    assert 8192 + 4 * 4096 <= found <= 8192 + 6 * 4096
    assert folder_bytes([str(tmp_path / "gone")], 1 << 30) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_and_its_child_are_measured_together():
    code = "import os, time; x = b'1' * (50 << 20); os.fork(); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(4)
        before = len(list(descendants(process.pid)))
        shared, apart = usage_of(os.getpid(), 60), usage_of(os.getpid(), None)
        for pid in [*descendants(process.pid), process.pid]:
            os.kill(pid, 9)
    assert before == 1
    assert shared["num_processes"] >= 2
    assert apart["memory_mib"] > 100  # the page of either process
    assert 50 < shared["memory_mib"] < apart["memory_mib"] - 30  # once, where it matters
