import json
import subprocess
import sys
import urllib.request

import pytest
from logview_fixtures import write_run

from tests.e2e.toy_run import ended

LAUNCHER = [sys.executable, "-m", "ajet.cli.launcher", "view"]


def test_view_serves_the_page_until_it_is_interrupted(tmp_path):
    folder = write_run(tmp_path / "math")
    command = [*LAUNCHER, str(folder.path), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process, ended(process):
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url, timeout=10) as page:
            assert b"<title>ajet</title>" in page.read()
        process.send_signal(2)  # Ctrl-C
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(("given", "folder"), [(["other"], "other"), ([], "launcher_record")])
def test_a_folder_that_is_no_run_is_one_line(tmp_path, given, folder):
    done = subprocess.run(
        [*LAUNCHER, *given], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{folder}: no such folder; give the folder of a run, as" in done.stderr


def test_a_folder_of_run_folders_is_all_of_them(tmp_path):
    for name in ("reinforcement", "supervised"):
        write_run(tmp_path / name)
    command = [*LAUNCHER, str(tmp_path), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process, ended(process):
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}/api/runs", timeout=10) as runs:
            names = [run["name"] for run in json.loads(runs.read())["runs"]]
    assert names == ["reinforcement", "supervised"]
