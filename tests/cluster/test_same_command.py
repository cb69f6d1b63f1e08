"""The same command on every node (MASTER_ADDR): one leads, the other serves it until it goes.

Both nodes are this machine, each a Ray node of its own; the ports of MASTER_ADDR are loopback's. Or
each has a network of its own, and an IPv6 address in it alone (where such networks may be made).
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.processes import below, first_line, until_gone
from tests.two_networks import two_networks

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

UP_WITHIN_S, GONE_WITHIN_S = 480, 60

LEAD = """
import json, os, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ajet.cluster.connection import SessionSettings
from ajet.cluster.nodes import await_nodes
from ajet.cluster.session import ray_session
from ajet.core.config import load_config

def where():
    return ray.get_runtime_context().get_node_id()

config = load_config(sys.argv[1], backbone="verl")
said = []
with ray_session(SessionSettings(mode="cluster"), config, said.append) as session:
    remote, ids = ray.remote(where), [node.ray_id for node in await_nodes(2, said.append)]
    on = [NodeAffinitySchedulingStrategy(each, soft=False) for each in ids]
    ran = ray.get([remote.options(scheduling_strategy=each).remote() for each in on])
    print(json.dumps(dict(ids=ids, ran=ran, said=said)), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def loopback():
    """The address of rank 0, and what starts a command on the machine of a rank."""
    return "127.0.0.1", [(), ()]


@pytest.fixture
def two_machines():
    """The same of two networks that are joined by a cable, with IPv6 addresses alone."""
    with two_networks(family=6) as machines:
        yield machines[0].address, [machine.command for machine in machines]


@pytest.fixture(params=["loopback", "two_machines"])
def start(request, tmp_path):
    """Processes as a job system starts them: the same variables, another rank."""
    master, machines = request.getfixturevalue(request.param)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "run.yaml").write_text("ajet:\n  model: {path: embedded:math}\n")
    started, token = [], secrets.token_hex(32)

    def of(rank, *command):
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        env |= {"MASTER_ADDR": master, "MASTER_PORT": str(port), "NODE_RANK": str(rank)}
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        process = subprocess.Popen(
            [*machines[rank], sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(log := (tmp_path / f"{rank}.err").open("w+")),
            text=True,
            env=env,
            cwd=tmp_path,
            start_new_session=True,
        )
        process.log = log
        started.append(process)
        return process

    yield of
    for process in started:
        for pid in below(process.pid) | {process.pid}:
            if until_gone({pid}, 0):
                os.kill(pid, signal.SIGKILL)


def errors(process):
    process.log.seek(0)
    return process.log.read()


def test_the_other_node_works_for_the_one_that_leads_and_ends_well_when_it_goes(start, tmp_path):
    conf = str(tmp_path / "run.yaml")
    serving = start(
        1, "-m", "ajet.cli.launcher", "--conf", conf, "--backbone", "verl", "--with-ray-cluster"
    )
    leading = start(0, "-c", LEAD, conf)
    line = first_line(leading, UP_WITHIN_S)
    assert line, errors(leading)
    told = json.loads(line)
    assert len(set(told["ids"])) == 2 and told["ran"] == told["ids"]
    assert any(text.startswith("starting the head of a Ray cluster") for text in told["said"])
    under = below(serving.pid) | below(leading.pid)
    leading.stdin.write("\n")
    leading.stdin.close()
    assert leading.wait(GONE_WITHIN_S) == 0, errors(leading)
    started = time.monotonic()
    assert serving.wait(GONE_WITHIN_S) == 0, errors(serving)
    assert until_gone(under, GONE_WITHIN_S - (time.monotonic() - started)) == set()
    assert "this node serves the Ray of " in errors(serving)
    assert not (tmp_path / "launcher_record").exists()  # it trains nothing itself
