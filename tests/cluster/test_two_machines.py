"""A run over two machines: ranks and engines on both, weights by a broadcast between them."""

import json
import os
import secrets
import signal
import subprocess
import sys

import pytest

from tests.e2e.toy_run import ToyRun
from tests.processes import below, until_gone
from tests.two_networks import two_networks

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

FINISHED_WITHIN_S, GONE_WITHIN_S = 600, 60
PORT = 6399
SPREAD = (
    "ajet.trainer_common.nnodes=2",
    "ajet.trainer_common.n_trainer_ranks=2",
    "ajet.trainer_common.total_training_steps=2",
    "ajet.rollout.n_vllm_engine=2",
    "ajet.rollout.agent.num_workers=2",
)


@pytest.mark.parametrize("family", [4, 6])
def test_ranks_and_engines_of_two_machines_meet_where_names_are_loopback_addresses(
    family, tmp_path
):
    run = ToyRun(tmp_path)
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", "toy.yaml"]
    command += ["--backbone", "trinity", "--with-ray-cluster", *SPREAD]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with two_networks(family=family) as machines:
        env |= {"MASTER_ADDR": machines[0].address, "MASTER_PORT": str(PORT)}
        logs = [(tmp_path / f"machine_{rank}").open("w+") for rank in range(2)]
        processes = [
            subprocess.Popen(
                [*machine.command, *command],
                cwd=tmp_path,
                env=env | {"NODE_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=logs[rank],
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for rank, machine in enumerate(machines)
        ]
        try:
            status = processes[0].wait(FINISHED_WITHIN_S)
            output = (tmp_path / "machine_0").read_text()
            assert status == 0, output[-3000:]
            assert processes[1].wait(GONE_WITHIN_S) == 0, (tmp_path / "machine_1").read_text()
        finally:
            for process in processes:
                for pid in below(process.pid) | {process.pid}:
                    if until_gone({pid}, 0):
                        os.kill(pid, signal.SIGKILL)
    assert json.loads((run.path / "summary.json").read_text())["steps"] == 2
