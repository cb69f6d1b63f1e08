"""A run over two hosts that share no file but what is installed, on a Ray that is started by hand,
as docs/cluster.md says. The project is copied to both, and the run folder is on the first alone."""

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import contextmanager

import pytest

from ajet.core.checkpoint.manifest import newest_checkpoint
from tests.e2e.three_backbones import episodes
from tests.e2e.toy_run import SEES, ToyRun
from tests.processes import command as command_of
from tests.two_hosts import two_hosts

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

PROJECT, STEPS, EPISODES = "/tmp/project", 3, 16
WITHIN_S, GONE_WITHIN_S = 900, 120
SETTINGS = (
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.optim.lr=1e-6",
    "ajet.model.dtype=float64",
)
SPREAD = (
    "ajet.trainer_common.nnodes=2",
    "ajet.trainer_common.n_trainer_ranks=2",
    "ajet.rollout.n_vllm_engine=2",
    "ajet.rollout.agent.num_workers=2",
)
TOKEN = "0123456789abcdef" * 4


def start_ray(host, *options):
    """Starts a node of Ray by hand; its store is small."""
    command = ["ray", "start", *options, "--num-cpus=4", "--object-store-memory=200000000"]
    code, said = host.run(*command, "--disable-usage-stats", RAY_AUTH_MODE="token")
    assert code == 0, said


def head_ray(host):
    start_ray(host, "--head", "--port=6379", "--include-dashboard=false")


def join_ray(host, head):
    start_ray(host, f"--address={head.address}:6379")


@pytest.fixture(scope="module")
def hosts():
    with two_hosts() as made:
        for host in made:
            host.path("/tmp/home/.ray").mkdir()
            host.path("/tmp/home/.ray/auth_token").write_text(TOKEN)
            ToyRun(host.path(PROJECT))
        head_ray(made[0])
        join_ray(made[1], made[0])
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The episodes of the same run in one process."""
    one = ToyRun(tmp_path_factory.mktemp("one"), *SETTINGS)
    assert one.finish(timeout=WITHIN_S) == 0, one.stderr()
    return episodes(one)


def new_run(host):
    """A run on a host, whose episodes of the second step wait in their middle there."""
    run = ToyRun(host.path(PROJECT))
    shutil.rmtree(run.folder / "launcher_record", ignore_errors=True)
    run.forget_told()
    run.hold(2)
    return run


@contextmanager
def command(host, backbone, *overrides):
    """Starts the run's command on a host; its output goes to a file."""
    train = ["ajet", "--conf", "toy.yaml", "--backbone", backbone, "--with-ray-cluster"]
    train += [*SETTINGS, *SPREAD, *overrides]
    with host.path("/tmp/output").open("w+") as output:
        process = host.start(train, cwd=PROJECT, output=output, RAY_ADDRESS="10.77.0.1:6379")
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def output_of(host):
    return host.path("/tmp/output").read_text()


def refusal(host, *overrides):
    """Returns what a command says that ends before anything is loaded, and the seconds it took."""
    started = time.monotonic()
    with command(host, "verl", *overrides) as process:
        assert process.wait(WITHIN_S) == 1, output_of(host)
    assert "Traceback" not in output_of(host)
    return output_of(host).splitlines()[-1], time.monotonic() - started


def wait_for(condition, process, host):
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert process.poll() is None, output_of(host)
        assert time.monotonic() < deadline, output_of(host)
        time.sleep(0.1)


def test_a_node_with_other_files_is_named_before_anything_is_loaded(hosts):
    workflow = hosts[1].path(f"{PROJECT}/workflow.py")
    own = workflow.read_text()
    workflow.write_text(f"{own}\n# an older copy\n")
    said, _ = refusal(hosts[0])
    workflow.unlink()
    without, _ = refusal(hosts[0])
    workflow.write_text(own)
    assert said.startswith(
        f"error: node {hosts[1].address} has other files than this machine in {PROJECT}: another "
        "workflow.py; every node needs the same project in the same folder"
    )
    assert f"{PROJECT}: no workflow.py" in without


def test_what_needs_the_run_folder_on_the_other_node_is_refused(hosts):
    said, _ = refusal(hosts[0], "verl.rollout.sync_method=checkpoint")
    assert f"node {hosts[1].address} does not see the run folder {PROJECT}/launcher_record" in said


@pytest.mark.skipif(shutil.which("iptables") is None, reason="no firewall is here")
def test_a_firewall_between_the_nodes_is_named(hosts):
    filtered = ["-s", hosts[0].address, "-p", "tcp", "--syn", "-j", "DROP"]
    within = ["ip", "netns", "exec", hosts[1].machine.network, "iptables"]
    subprocess.run([*within, "-A", "INPUT", *filtered], check=True)
    try:
        said, _ = refusal(hosts[0])
    finally:
        subprocess.run([*within, "-D", "INPUT", *filtered], check=True)
    assert f"no connection to the Ray of {hosts[1].address} at port " in said


def test_a_run_that_loses_a_host_waits_for_it_and_is_the_run_that_lost_none(hosts, undisturbed):
    """Episodes of the second step are held on the first host until the other is gone."""
    run = new_run(hosts[0])
    with command(hosts[0], "verl") as process:
        wait_for(lambda: run.episodes("begin", 2) > 0, process, hosts[0])
        hosts[1].end_processes()
        wait_for(lambda: "waiting for nodes: 1 of 2" in output_of(hosts[0]), process, hosts[0])
        run.hold(None)
        join_ray(hosts[1], hosts[0])
        assert process.wait(WITHIN_S) == 0, output_of(hosts[0])
    log = (run.path / "logs/run.log").read_text()
    assert f"node {hosts[1].address} is lost, with trainer 1, engine 1, worker 1" in log
    assert "the run continues from its last checkpoint (step 1)" in log
    assert f"the run folder is not on {hosts[1].address}" in log
    assert not hosts[1].path(f"{PROJECT}/launcher_record").exists()
    newest = newest_checkpoint(run.path / "checkpoints")
    assert newest is not None and newest.name == f"step_{STEPS:06d}"
    assert len(episodes(run)) == STEPS * EPISODES * 2 and episodes(run) == undisturbed


def test_a_run_that_loses_a_host_goes_on_with_the_one_that_is_left(hosts, undisturbed):
    """Ctrl-C ends the waiting, and the same command takes one node, with as many ranks or fewer."""
    run = new_run(hosts[0])
    with command(hosts[0], "verl") as process:
        wait_for(lambda: run.episodes("begin", 2) > 0, process, hosts[0])
        hosts[1].end_processes()
        wait_for(lambda: "waiting for nodes: 1 of 2" in output_of(hosts[0]), process, hosts[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130, output_of(hosts[0])
    run.hold(None)
    one_node = ("ajet.trainer_common.nnodes=1", "ajet.trainer_common.n_trainer_ranks=1")
    with command(hosts[0], "verl", *one_node) as process:
        assert process.wait(WITHIN_S) == 0, output_of(hosts[0])
    assert run.steps_saved()[-1] == STEPS and episodes(run) == undisturbed
    join_ray(hosts[1], hosts[0])


def test_a_run_that_loses_its_head_and_its_command_goes_on_by_the_same_command(hosts, undisturbed):
    """Both are on the first host, which ends as a whole. What the other has of the run ends when
    its Ray gives up the head, after a minute."""
    run = new_run(hosts[0])
    with command(hosts[0], "verl") as process:
        wait_for(lambda: run.episodes("begin", 2) > 0, process, hosts[0])
        hosts[0].end_processes()
        assert process.wait(GONE_WITHIN_S) == -signal.SIGKILL
    run.hold(None)
    deadline = time.monotonic() + GONE_WITHIN_S
    assert of_the_run(hosts[1])
    while of_the_run(hosts[1]):
        assert time.monotonic() < deadline, of_the_run(hosts[1])
        time.sleep(1)
    head_ray(hosts[0])
    join_ray(hosts[1], hosts[0])
    with command(hosts[0], "verl") as process:
        assert process.wait(WITHIN_S) == 0, output_of(hosts[0])
    assert run.steps_saved()[-1] == STEPS and episodes(run) == undisturbed


def test_pictures_reach_the_processes_of_the_host_without_the_run_folder(hosts, tmp_path):
    """What keeps them is killed in the second step, and Ray starts another."""
    one = ToyRun(tmp_path, *SETTINGS, *SEES)
    assert one.finish(timeout=WITHIN_S) == 0, one.stderr()
    run = new_run(hosts[0])
    with command(hosts[0], "verl", *SEES) as process:
        wait_for(lambda: run.episodes("begin", 2) > 0, process, hosts[0])
        (keeper,) = (pid for pid in hosts[0].processes() if "ray::ImageFile" in command_of(pid))
        os.kill(keeper, signal.SIGKILL)
        run.hold(None)
        assert process.wait(WITHIN_S) == 0, output_of(hosts[0])
    assert not hosts[1].path(f"{PROJECT}/launcher_record").exists()
    assert "the run continues" not in (run.path / "logs/run.log").read_text()
    assert len(episodes(run)) == STEPS * EPISODES * 2 and episodes(run) == episodes(one)
    with sqlite3.connect(run.path / "images.sqlite") as database:
        assert database.execute("SELECT count(*) FROM images").fetchone() == (3,)


def of_the_run(host):
    """Returns what the run's processes on a host are called."""
    kinds = ("ray::TrainerRank", "ray::EngineProcess", "ray::RolloutWorker")
    return {name for pid in host.processes() if (name := command_of(pid)).startswith(kinds)}
