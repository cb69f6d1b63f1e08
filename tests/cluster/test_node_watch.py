"""A node of a run that is lost, told by a Ray that is written out here."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ajet.cluster import nodes, run_attempts
from ajet.cluster.actors import ProcessLost
from ajet.cluster.nodes import alive_nodes, await_nodes
from ajet.cluster.placement import Node, Placement, Process
from ajet.cluster.run_attempts import NodeLost, while_nodes_last
from ajet.core.errors import ConfigError

HERE, THERE = Node("10.0.0.1", 4.0, 0, "a"), Node("10.0.0.2", 4.0, 0, "b", is_remote=True, port=7)
PLACED = Placement(
    (HERE, THERE),
    (Process("trainer", 0, 0), Process("trainer", 1, 1)),
    (),
    (Process("worker", 0, 1),),
)
LOST = "node 10.0.0.2 is lost, with trainer 1, worker 0"


class Cluster:
    """Which nodes are in the cluster, and which of them do not answer."""

    def __init__(self, *alive, silent=()):
        self.alive, self.silent = list(alive), set(silent)

    def silent_nodes(self, nodes):
        return {node: "no answer within 5 s" for node in nodes if node in self.silent}


@pytest.fixture
def cluster(monkeypatch):
    def of(*alive, silent=()):
        found = Cluster(*alive, silent=silent)
        for module in (run_attempts, nodes):
            monkeypatch.setattr(module, "alive_nodes", lambda: found.alive)
            monkeypatch.setattr(module, "silent_nodes", found.silent_nodes)
        return found

    monkeypatch.setattr(run_attempts, "INTERVAL_S", 0.0)
    monkeypatch.setattr(nodes, "POLL_S", 0.0)
    return of


async def fails(error):
    raise error


@pytest.mark.parametrize("error", [ProcessLost("trainer rank 1 is lost"), RuntimeError("gloo")])
async def test_an_error_that_a_lost_node_has_caused_names_the_node(cluster, error):
    cluster(HERE, THERE, silent=[THERE])  # Ray has not noticed it yet
    with pytest.raises(NodeLost, match=LOST) as raised:
        await while_nodes_last(PLACED, fails(error))
    assert raised.value.__cause__ is error


async def test_an_error_of_a_run_whose_nodes_are_well_is_raised_as_it_is(cluster):
    cluster(HERE, THERE)
    with pytest.raises(ProcessLost, match=r"^trainer rank 1 is lost$"):
        await while_nodes_last(PLACED, fails(ProcessLost("trainer rank 1 is lost")))


async def test_work_that_waits_for_a_node_for_ever_ends_when_ray_gives_it_up(cluster):
    found, ended = cluster(HERE, THERE), []

    async def work():
        found.alive.remove(THERE)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(NodeLost, match=LOST):
        await while_nodes_last(PLACED, work())
    assert ended


async def test_a_run_on_the_drivers_machine_has_no_node_to_lose(cluster):
    cluster()  # the watch would find it lost
    done = []

    async def work():
        await asyncio.sleep(0.01)
        done.append(True)

    await while_nodes_last(Placement((HERE,), (), (), ()), work())
    assert done


def test_the_run_waits_for_the_node_that_comes_back_and_says_so(cluster):
    found, said = cluster(HERE), []

    def say(line):
        said.append(line)
        found.alive.append(THERE)

    assert await_nodes(2, say) == [HERE, THERE]
    assert said == ["waiting for nodes: 1 of 2 (ajet.trainer_common.nnodes)"]


def test_waiting_for_nodes_ends_when_it_is_stopped(cluster):
    cluster(HERE)
    assert await_nodes(2, is_stopped=lambda: True) == [HERE]


def test_a_node_that_stays_and_does_not_answer_is_named(cluster, monkeypatch):
    cluster(HERE, THERE, silent=[THERE])
    monkeypatch.setattr(nodes, "UNREACHABLE_TIMEOUT_S", -1.0)
    with pytest.raises(ConfigError) as error:
        await_nodes(2)
    assert str(error.value) == (
        "no connection to the Ray of 10.0.0.2 at port 7 (no answer within 5 s): are all TCP ports "
        "between the nodes open?"
    )


def test_the_drivers_node_comes_first_since_it_has_the_run_folder(monkeypatch):
    ray = pytest.importorskip("ray")

    def node(name, *resources):
        about = {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "NodeManagerPort": 7}
        return about | {
            "Alive": name != "4",
            "Resources": {"CPU": 2.0} | dict.fromkeys(resources, 1.0),
        }

    described = [node("1"), node("2", "node:__internal_head__"), node("3"), node("4")]
    monkeypatch.setattr(ray, "nodes", lambda: described)
    here = SimpleNamespace(get_node_id=lambda: "3")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    found = alive_nodes()
    assert [(each.ray_id, each.is_remote) for each in found] == [
        ("3", False),
        ("2", True),
        ("1", True),
    ]
    assert found[0].name == "10.0.0.3" and found[0].port == 7
