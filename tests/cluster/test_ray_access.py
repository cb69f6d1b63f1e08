"""How Ray is had: flags and environment in, one decision out; none is started."""

import signal
import socket
import subprocess
import sys

import pytest

from ajet.cluster.gpus import GpuMemory, local_gpus, read_gpu_memory, require_free_gpus
from ajet.cluster.probe import reason
from ajet.cluster.session import (
    LOOPBACK,
    Access,
    SessionSettings,
    _check_cluster,
    ray_access,
    start_ray,
    worker_environment,
)
from ajet.core.config import load_config
from ajet.core.errors import ConfigError

AUTO, START, CLUSTER = (SessionSettings(how=how) for how in ("auto", "start", "cluster"))
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7000"}


@pytest.mark.parametrize(
    ("settings", "environ", "access"),
    [
        (AUTO, {}, Access("start", because="no RAY_ADDRESS is set")),
        (AUTO, {"RAY_ADDRESS": "local"}, Access("start", because="no RAY_ADDRESS is set")),
        (AUTO, MASTER, Access("start", because="no RAY_ADDRESS is set")),
        (AUTO, {"RAY_ADDRESS": "h:1"}, Access("join", "h:1")),
        (START, {"RAY_ADDRESS": "h:1"}, Access("start", because="--with-ray")),
        (CLUSTER, {"RAY_ADDRESS": "h:1", **MASTER}, Access("join", "h:1")),
        (CLUSTER, {"RAY_ADDRESS": "auto"}, Access("join", "auto")),
        (CLUSTER, {"RAY_ADDRESS": "head"}, Access("join", "head:6379")),
        (CLUSTER, {**MASTER, "RANK": "0"}, Access("lead", "10.0.0.1:7000")),
        (CLUSTER, {**MASTER, "RANK": "1"}, Access("serve", "10.0.0.1:7000")),
        (CLUSTER, {**MASTER, "NODE_RANK": "1", "RANK": "0"}, Access("serve", "10.0.0.1:7000")),
        (CLUSTER, {**MASTER, "SLURM_NODEID": "0"}, Access("lead", "10.0.0.1:7000")),
        (CLUSTER, {"MASTER_ADDR": LOOPBACK}, Access("lead", f"{LOOPBACK}:6379")),
        (CLUSTER, {"MASTER_ADDR": "203.0.113.9"}, Access("serve", "203.0.113.9:6379")),
    ],
)
def test_flags_and_environment_decide(settings, environ, access):
    assert ray_access(settings, environ) == access


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "neither RAY_ADDRESS nor MASTER_ADDR is set; set one"),
        ({"RAY_ADDRESS": "ray://h:10001"}, "a client's or a dashboard's address; run ajet on a n"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "x"}, "MASTER_PORT=x: a port is expected, as 6379"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
    ],
)
def test_what_cannot_be_meant_is_one_line(environ, message):
    with pytest.raises(ConfigError, match=message):
        ray_access(CLUSTER, environ)


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
    assert reason(told) == (
        "it is Ray 2.50.0 on Python 3.11.7, this is Ray 2.60.0 on Python 3.11.7; install the same "
        "on every node (pip install ray==2.50.0)"
    )
    assert reason("Could not find\n any running Ray") == "Could not find any running Ray"


def test_workers_get_the_users_folders_and_the_tags(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n")
    config = load_config(path)
    env = worker_environment(AUTO, config, {"PYTHONPATH": "/extra"})
    assert env["PYTHONPATH"].startswith(f"{tmp_path}:") and ":/extra" in env["PYTHONPATH"]
    assert list(env) == ["PYTHONPATH"]
    tagged = worker_environment(SessionSettings(debug_tags=("a", "b")), config, {})
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
