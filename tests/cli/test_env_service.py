"""The environment tutorial with its service on loopback, as a user runs it."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest
import uvicorn
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.environment.registry import environment_maker
from ajet.environments.env_service.server import make_app
from ajet.environments.guess_number import GuessNumber
from ajet.servers.process import free_port
from tests.env_server import serve

CONF = "tutorial/example_env_service/guess_number.yaml"


@pytest.fixture(scope="module")
def service():
    served = make_app({"guess_number": GuessNumber})
    with serve(served) as url:
        yield url, served.state.service


def run(command, url, *more):
    address = f"ajet.task_reader.env_service.env_url={url}"
    return CliRunner().invoke(app, [command, "--conf", CONF, address, *more])


def test_the_service_of_the_command_line_has_limits(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "ajet.environments.env_service", "--port", str(port)]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    client = socket.create_connection(("127.0.0.1", port), timeout=60)
                    break
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            with client:
                client.sendall(b"POST /create HTTP/1.1\r\n" + b"x-many: 1\r\n" * 10_000)
                assert client.recv(100).startswith(b"HTTP/1.1 431 ")
        finally:
            process.kill()


def test_a_port_that_is_taken_is_one_line_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "ajet.environments.env_service", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    told = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"
    assert told in result.stderr.splitlines()[-1]


def test_a_service_at_an_ipv6_address_is_reached():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no ::1")
    app_there = make_app({"guess_number": GuessNumber})
    server = uvicorn.Server(uvicorn.Config(app_there, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        result = run("check", f"http://[::1]:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(10)
    assert result.exit_code == 0, result.output


def test_check_lists_the_services_tasks(service):
    result = run("check", service[0])
    assert result.exit_code == 0, result.output
    assert " 64 " in result.output and " 16 " in result.output


def test_an_episode_is_shown_and_judged_by_the_environment(service):
    url, served = service
    result = run("debug", url, "--tasks", "1")
    assert result.exit_code == 0, result.output
    assert "Find a whole number from 1 to 16" in result.output
    assert "guesses left" in result.output and "1 episode" in result.output
    assert not served.instances


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ajet.task_reader.env_service.env_type=chess", "no env_type 'chess'"),
        ("ajet.task_reader.env_service.env_url=ftp://x", "an address begins with http://"),
        ("ajet.task_reader.env_service.env_type=null", "env_service.env_type is missing"),
        ("ajet.task_reader.env_service.training_split=moon", "the service has no task in 'moon'"),
        ("ajet.task_reader.type=random_dummy", "random_dummy gives tasks without one"),
    ],
)
def test_a_mistake_is_one_line(service, override, message):
    result = run("check", service[0], override)
    assert result.exit_code == 1 and message in result.output


def test_the_command_line_serves_an_environment_as_openenv():
    command = [sys.executable, "-m", "ajet.environments.env_service", "--env", "guess_number"]
    command += ["--protocol", "openenv", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[0]
            played = environment_maker(f"openenv:{url}", {}, [], "env_type")()
            direct = GuessNumber()
            assert played.reset(seed=3)[0] == direct.reset(3, {"split": "train"})[0]
            played.close()
        finally:
            process.terminate()
