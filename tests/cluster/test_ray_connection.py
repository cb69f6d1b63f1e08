"""How Ray is had: flags and environment in, one decision out; none is started."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from ajet.cluster import machine, session
from ajet.cluster.connection import RayConnection, SessionSettings, choose_connection
from ajet.cluster.machine import GpuMemory, local_gpus, read_gpu_memory, require_free_gpus
from ajet.cluster.placement import Node
from ajet.cluster.probe import one_line
from ajet.cluster.session import (
    LOOPBACK,
    _check_cluster,
    _end_processes_of,
    ray_session,
    serve_as_node,
    start_ray,
    worker_environment,
)
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.plan.gpu_plan import local_gpu
from tests.processes import command

AUTO, START, CLUSTER = (SessionSettings(mode=mode) for mode in ("auto", "start", "cluster"))
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7000"}


@pytest.mark.parametrize(
    ("settings", "environ", "connection"),
    [
        (AUTO, {}, RayConnection("start", reason="no RAY_ADDRESS is set")),
        (AUTO, {"RAY_ADDRESS": "local"}, RayConnection("start", reason="no RAY_ADDRESS is set")),
        (AUTO, MASTER, RayConnection("start", reason="no RAY_ADDRESS is set")),
        (AUTO, {"RAY_ADDRESS": "h:1"}, RayConnection("join", "h:1")),
        (START, {"RAY_ADDRESS": "h:1"}, RayConnection("start", reason="--with-ray")),
        (CLUSTER, {"RAY_ADDRESS": "h:1", **MASTER}, RayConnection("join", "h:1")),
        (CLUSTER, {"RAY_ADDRESS": "auto"}, RayConnection("join", "auto")),
        (CLUSTER, {"RAY_ADDRESS": "head"}, RayConnection("join", "head:6379")),
        (CLUSTER, {**MASTER, "RANK": "0"}, RayConnection("lead", "10.0.0.1:7000")),
        (CLUSTER, {**MASTER, "RANK": "1"}, RayConnection("serve", "10.0.0.1:7000")),
        (
            CLUSTER,
            {**MASTER, "NODE_RANK": "1", "RANK": "0"},
            RayConnection("serve", "10.0.0.1:7000"),
        ),
        (CLUSTER, {**MASTER, "SLURM_NODEID": "0"}, RayConnection("lead", "10.0.0.1:7000")),
        (CLUSTER, {"MASTER_ADDR": LOOPBACK}, RayConnection("lead", f"{LOOPBACK}:6379")),
        (CLUSTER, {"MASTER_ADDR": "203.0.113.9"}, RayConnection("serve", "203.0.113.9:6379")),
        (CLUSTER, {"RAY_ADDRESS": "fd00::1"}, RayConnection("join", "[fd00::1]:6379")),
        (CLUSTER, {"RAY_ADDRESS": "[fd00::1]"}, RayConnection("join", "[fd00::1]:6379")),
        (CLUSTER, {"RAY_ADDRESS": "[fd00::1]:7"}, RayConnection("join", "[fd00::1]:7")),
        (CLUSTER, {"MASTER_ADDR": "2001:db8::9"}, RayConnection("serve", "[2001:db8::9]:6379")),
        (CLUSTER, {"MASTER_ADDR": "[2001:db8::9]"}, RayConnection("serve", "[2001:db8::9]:6379")),
    ],
)
def test_flags_and_environment_decide(settings, environ, connection):
    assert choose_connection(settings, environ) == connection


def test_the_node_with_an_ipv6_address_leads_and_is_reached_there():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        port = str(listener.getsockname()[1])
        asked = {"MASTER_ADDR": "::1", "MASTER_PORT": port}
        assert choose_connection(CLUSTER, asked) == RayConnection("lead", f"[::1]:{port}")
        assert session._is_reachable(f"[::1]:{port}")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "neither RAY_ADDRESS nor MASTER_ADDR is set; set one"),
        ({"RAY_ADDRESS": "ray://h:10001"}, "this is a client's or a dashboard's address; run ajet"),
        ({"RAY_ADDRESS": "local", **MASTER}, "RAY_ADDRESS=local names no cluster; with --with-ray"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "x"}, "MASTER_PORT=x: not a port, such as 6379"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
    ],
)
def test_contradictory_ray_options_are_one_line(environ, message):
    with pytest.raises(ConfigError, match=message):
        choose_connection(CLUSTER, environ)


def test_no_ray_at_an_address_is_one_line():
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError) as error:
        _check_cluster(f"{LOOPBACK}:{port}")
    assert str(error.value).startswith(f"no Ray answers at {LOOPBACK}:{port}; is it running")


def test_rays_own_mismatch_is_told_in_one_line():
    told = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7\n"
        "This process on 1.2.3.4:5 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    assert one_line(told) == (
        "it is Ray 2.50.0 on Python 3.11.7, this is Ray 2.60.0 on Python 3.11.7; install the same "
        "on every node (pip install ray==2.50.0)"
    )
    assert one_line("Could not find\n any running Ray") == "Could not find any running Ray"


def test_workers_get_the_users_folders_and_the_tags(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n")
    config = load_config(path)
    env = worker_environment(AUTO, config.base_dirs, {"PYTHONPATH": "/extra"})
    assert env["PYTHONPATH"].startswith(f"{tmp_path}:") and ":/extra" in env["PYTHONPATH"]
    assert list(env) == ["PYTHONPATH"]
    tagged = worker_environment(SessionSettings(debug_tags=("a", "b")), config.base_dirs, {})
    assert (tagged["AJET_DEBUG_TAGS"], tagged["RAY_DEBUG"]) == ("a|b", "legacy")


def test_gpus_are_counted_without_torch(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert local_gpus({}, tmp_path) == 2
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    assert local_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == 0
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, tmp_path) == 1


def test_a_gpu_in_use_is_one_line_unless_it_is_not_visible():
    gpus = read_gpu_memory("0, 500, 81920\n1, 40960, 81920\nN/A\n")
    assert gpus == [GpuMemory("0", 500, 81920), GpuMemory("1", 40960, 81920)]
    with pytest.raises(ConfigError, match=r"GPU 1 is in use: 40.0 of 80.0 GiB; wait, choose other"):
        require_free_gpus(gpus, {})
    require_free_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(ConfigError, match="GPU 1 is in use"):
        require_free_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "0, 1"})


def test_gpus_that_the_run_does_not_take_may_be_in_use():
    gpus = [GpuMemory(str(index), 500 if index < 2 else 40960, 81920) for index in range(4)]
    require_free_gpus(gpus, {}, numbers=())
    require_free_gpus(gpus, {}, numbers=(0, 1))
    with pytest.raises(ConfigError, match="GPU 2 is in use"):
        require_free_gpus(gpus, {}, numbers=(1, 2))
    with pytest.raises(ConfigError, match="GPU 3 is in use"):
        require_free_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "1,3"}, numbers=(1,))


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (["ajet.model.device=cpu"], ()),
        (["ajet.trainer_common.device_mapping=[1,2]"], (1, 2)),
        (["ajet.trainer_common.n_gpus_per_node=2"], (0, 1)),
        ([], (0, 1, 2, 3)),
    ],
)
def test_a_run_takes_the_gpus_that_its_config_gives_it(tmp_path, monkeypatch, overrides, numbers):
    (tmp_path / "run.yaml").write_text("ajet:\n  model: {path: m}\n")
    config = load_config(tmp_path / "run.yaml", overrides, backbone="verl")
    monkeypatch.setattr(machine, "local_node", lambda: Node("this machine", 8, 4))
    assert machine.gpus_taken(config) == numbers


NVIDIA_SMI = """#!/bin/sh
echo "0, 500, 16384, GPU-aaaa1111"
echo "1, 500, 81920, GPU-bbbb2222"
"""


@pytest.mark.parametrize(
    ("visible", "gib"), [(None, 16), ("1", 80), ("0,1", 16), ("GPU-bbbb", 80), ("", None)]
)
def test_memory_is_that_of_the_gpus_that_are_visible(tmp_path, monkeypatch, visible, gib):
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "local_gpus", lambda environ=None: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = local_gpu()
    assert (gpu and gpu.memory) == gib


class NoHead:
    """`ray start` that nobody may call; says whether somebody did."""

    def __init__(self):
        self.was_started = False

    def __call__(self, *options):
        self.was_started = True
        raise ConfigError("a head was started")


@pytest.fixture
def as_head(tmp_path, monkeypatch):
    """On the node of MASTER_ADDR, with an empty home; gives what happens there."""
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MASTER_ADDR", LOOPBACK)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.setattr(session, "_ray_start", start := NoHead())
    (tmp_path / "run.yaml").write_text("ajet:\n  model: {path: m}\n")
    config = load_config(tmp_path / "run.yaml", backbone="verl")

    def refused(**environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError) as error, ray_session(CLUSTER, config):
            pass
        return start.was_started, str(error.value)

    return refused


def test_a_head_that_anybody_could_use_is_not_started(as_head):
    was_started, line = as_head()
    assert not was_started and "\n" not in line
    assert "anybody who reaches its port" in line and "ray get-auth-token --generate" in line
    assert line.endswith("or set RAY_AUTH_MODE=disabled in a network that you trust")


def test_an_open_head_is_started_where_the_user_says_so(as_head):
    assert as_head(RAY_AUTH_MODE="disabled") == (True, "a head was started")


class FlakyHead:
    """Connects that fail at these times, and at all later ones; a node that serves meanwhile."""

    def __init__(self, *fails, ends):
        self.fails, self.ends, self.asked = set(fails), ends, 0

    def __call__(self, address):
        self.asked += 1
        return self.asked not in self.fails and self.asked < self.ends


class ServingNode:
    """`ray start --address` that goes on until it is stopped."""

    child = None

    def __init__(self, *options): ...
    def poll(self): ...
    def __enter__(self):
        self.child = self
        return self

    def __exit__(self, *error): ...


def test_one_connect_that_fails_does_not_take_a_node_out_of_the_cluster(monkeypatch):
    pytest.importorskip("ray")
    for name, value in {**MASTER, "RANK": "1", "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "POLL_S", 0.0)
    monkeypatch.setattr(session, "_is_reachable", head := FlakyHead(4, 7, 8, ends=20))
    monkeypatch.setattr(session, "_ray_start", ServingNode)
    assert serve_as_node(CLUSTER) is True
    assert head.asked >= 20


def await_command(pid, text):
    """Returns when the process has its command line: one that begins has none for a moment."""
    while text not in command(pid):
        time.sleep(0.01)


def test_a_command_line_that_is_no_text_is_in_nobodys_way(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    other = subprocess.Popen([*map(os.fsencode, sleep), b"\xff\xfe"])
    left = subprocess.Popen([*sleep, str(tmp_path)])
    try:
        await_command(left.pid, str(tmp_path))
        _end_processes_of(tmp_path)
        assert left.wait(5) == -signal.SIGKILL and other.poll() is None
    finally:
        for process in (other, left):
            process.kill()
            process.wait()


class SlowRay:
    """`ray.init` that leaves a process behind and gives up, so many times."""

    def __init__(self, folder, slow, reason="The current node timed out during startup."):
        self.folder, self.slow, self.reason = folder, slow, reason
        self.left = []

    def __call__(self, **options):
        assert options["_temp_dir"] == str(self.folder) and options["num_cpus"] == 2
        if len(self.left) < self.slow:
            command = [sys.executable, "-c", "import time; time.sleep(60)", str(self.folder)]
            self.left.append(subprocess.Popen(command))
            await_command(self.left[-1].pid, str(self.folder))
            raise Exception(self.reason)


@pytest.fixture
def slow_ray(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    made = []

    def make(*args):
        made.append(SlowRay(tmp_path, *args))
        monkeypatch.setattr(ray, "init", made[-1])
        return made[-1]

    yield make
    for process in (process for each in made for process in each.left):
        process.kill()
        process.wait()


def test_a_ray_that_was_too_slow_is_ended_and_started_again(slow_ray, tmp_path, warnings):
    slow = slow_ray(2)
    start_ray(tmp_path, num_cpus=2)
    assert [process.wait(5) for process in slow.left] == [-signal.SIGKILL] * 2
    assert len(warnings) == 2 and "trying again" in warnings[0]


def test_a_ray_that_does_not_start_is_one_line(slow_ray, tmp_path):
    slow_ray(9)
    with pytest.raises(ConfigError, match=r"did not start on this machine: .*\(tried 3x"):
        start_ray(tmp_path, num_cpus=2)
    slow_ray(9, "no space left")
    with pytest.raises(ConfigError, match=r"no space left \(tried 1x"):
        start_ray(tmp_path, num_cpus=2)
