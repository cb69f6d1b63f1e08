import http.client
import json
import os
import socket
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


def test_another_address_is_served_with_a_warning_and_the_command_of_a_tunnel(tmp_path):
    folder = write_run(tmp_path / "math")
    options = ["--port", "0", "--no-browser", "--host", "0.0.0.0"]
    process = subprocess.Popen(
        [*LAUNCHER, str(folder.path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process, ended(process):
        port = process.stdout.readline().split()[0].rpartition(":")[2]
        warning = process.stderr.readline()
        assert warning.startswith("warning: anybody who reaches http://")
        assert f"ssh -L {port}:127.0.0.1:{port} " in warning

        def status(host):
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
            connection.request("GET", "/api/runs", headers={"Host": f"{host}:{port}"})
            return connection.getresponse().status

        hosts = ("127.0.0.1", socket.gethostname(), "192.0.2.7", "[2001:db8::1]", "evil.example")
        assert [status(host) for host in hosts] == [200, 200, 200, 200, 403]


@pytest.mark.parametrize(
    ("connection", "lines"), [({}, 1), ({"SSH_CONNECTION": "192.0.2.1 5000 192.0.2.7 22"}, 2)]
)
def test_who_came_by_ssh_is_given_the_command_of_a_tunnel(tmp_path, connection, lines):
    folder = write_run(tmp_path / "math")
    environment = {name: os.environ[name] for name in os.environ if name != "SSH_CONNECTION"}
    process = subprocess.Popen(
        [*LAUNCHER, str(folder.path), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment | connection,
    )
    with process, ended(process):
        port = process.stdout.readline().split()[0].rpartition(":")[2]
        process.send_signal(2)
        rest = process.stdout.read().splitlines()
    assert any(f"ssh -L {port}:127.0.0.1:{port} " in line for line in rest) is (lines == 2)


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
