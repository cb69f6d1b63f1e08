"""A real Ray: started for one run and gone with it, joined by another process and left alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import below, first_line, is_running, until_gone

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

READY_WITHIN_S, GONE_WITHIN_S = 180, 10

HOLD = """
import json, os, sys, time
import ray
from ajet.cluster.placement import ResourceRequest, place_processes
from ajet.cluster.placement_groups import reserve
from ajet.cluster.connection import SessionSettings
from ajet.cluster.nodes import await_nodes
from ajet.cluster.session import ray_session, worker_environment
from ajet.core.config import load_config

class Process:
    def what(self):
        seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "AJET_DEBUG_TAGS")}
        return {**seen, "pid": os.getpid(), "mine": __import__("my_module").NAME}

config = load_config(sys.argv[1], ["ajet.rollout.agent.num_workers=2"], backbone="verl")
settings = SessionSettings(mode="start", debug_tags=("T",))
said = []
with ray_session(settings, config, said.append) as session:
    placement = place_processes(ResourceRequest.from_config(config), await_nodes(1))
    environment = worker_environment(settings, config.base_dirs, os.environ)
    with reserve(placement, environment) as reservation:
        kind = ray.remote(Process)
        actors = [kind.options(**reservation.options(p)).remote() for p in placement.processes]
        processes = ray.get([actor.what.remote() for actor in actors])
        roles = [p.role for p in placement.processes]
        told = dict(address=session.address, ours=session.is_own, said=said, roles=roles)
        print(json.dumps({**told, "processes": processes}), flush=True)
        time.sleep(600)
"""
JOIN = """
import json, sys
from ajet.cluster.connection import SessionSettings
from ajet.cluster.nodes import alive_nodes
from ajet.cluster.session import ray_session
from ajet.core.config import load_config

said = []
with ray_session(SessionSettings(), load_config(sys.argv[1]), said.append) as session:
    print(json.dumps(dict(ours=session.is_own, nodes=len(alive_nodes()), said=said)))
"""
OTHER_VERSION = """
import sys, ray
ray.__version__ = "2.0.0"
from ajet.cluster.probe import main
sys.exit(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_module.py").write_text("NAME = 'found beside the YAML'\n")
    path = folder / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n")
    return path


@pytest.fixture(scope="module")
def holder(conf):
    """A process that has a Ray of its own, with one actor for each process of a placement."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(conf)],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    line = first_line(process, READY_WITHIN_S)
    assert line.startswith("{"), "the holder did not come up"
    process.told = json.loads(line)
    yield process
    under = below(process.pid) | {process.pid}
    process.kill()
    for pid in under:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def python(code, *args, address, seconds=120, **variables):
    env = {**os.environ, "RAY_ADDRESS": address, **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=seconds,
        check=False,
    )


def test_a_local_ray_says_so_and_has_every_process_of_the_placement(holder):
    told = holder.told
    assert told["ours"] and told["address"].startswith("127.")
    assert told["said"][0].startswith("starting a Ray on this machine (--with-ray)")
    assert told["roles"] == ["trainer", "engine", "worker", "worker"]
    assert len({process["pid"] for process in told["processes"]}) == 4
    assert {process["CUDA_VISIBLE_DEVICES"] for process in told["processes"]} == {""}


def test_actors_find_the_users_modules_and_the_debug_tags(holder):
    for process in holder.told["processes"]:
        assert process["mine"] == "found beside the YAML"
        assert process["AJET_DEBUG_TAGS"] == "T"


def test_the_debuggers_command_that_it_says_reaches_it(holder):
    [said] = [line for line in holder.told["said"] if line.startswith("breakpoints: ")]
    command = said.split("`")[1]
    done = subprocess.run(
        command,
        shell=True,
        input="",
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert "Active breakpoints:" in done.stdout, done.stderr


def test_another_run_joins_it_by_its_address_and_leaves_it_running(holder, conf):
    done = python(JOIN, str(conf), address=holder.told["address"])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    address = holder.told["address"]
    assert told == {"ours": False, "nodes": 1, "said": [f"joined the Ray of {address}"]}
    actors = {process["pid"] for process in holder.told["processes"]}
    assert all(is_running(pid) for pid in actors)


def test_a_ray_of_another_version_is_one_line(holder):
    done = python(OTHER_VERSION, holder.told["address"], address="", RAY_AUTH_MODE="token")
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 1
    assert "this is Ray 2.0.0 on Python" in lines[0]
    assert "install the same on every node" in lines[0]


def test_what_listens_and_is_no_ray_is_one_line_after_a_while():
    from ajet.cluster import session
    from ajet.core.errors import ConfigError

    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(ConfigError, match="does not answer like a Ray"):
            session._check_cluster(address, timeout_s=3.0)


def test_ctrl_c_ends_every_process_within_ten_seconds(holder):
    """Last: it ends the Ray of the tests above."""
    under = below(holder.pid)
    actors = {process["pid"] for process in holder.told["processes"]}
    assert actors <= under and len(under) > len(actors)
    folder = Path(holder.told["said"][0].partition("its logs are in ")[2].split()[0])
    assert folder.is_dir()
    os.kill(holder.pid, signal.SIGINT)
    started = time.monotonic()
    holder.wait(GONE_WITHIN_S)
    left = until_gone(under, GONE_WITHIN_S - (time.monotonic() - started))
    assert left == set() and not folder.exists()
