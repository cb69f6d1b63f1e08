"""Ends an attempt of a run when one of its nodes is lost, and says which.

await while_nodes_last(placement, work())     NodeLost("node 10.0.0.2 is lost, with trainer 1")
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ajet.cluster.actor_errors import ProcessLost
from ajet.cluster.nodes import alive_nodes, silent_nodes
from ajet.cluster.placement import Node, Placement
from ajet.core.process.bounded_loop import first_of

INTERVAL_S = 2.0


class NodeLost(ProcessLost):
    """A node of the run has left the cluster, or does not answer."""


async def while_nodes_last(placement: Placement, work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work. Raises NodeLost when a node of the placement is lost, instead of an error
    that this has caused."""
    if not any(node.is_remote for node in placement.nodes):
        return await work
    try:
        await first_of(work, _watch(placement))
    except NodeLost:
        raise
    except Exception as error:
        # Processes fail because of a lost node before Ray notices it, so the nodes are asked.
        lost = await asyncio.to_thread(silent_nodes, placement.nodes)
        if lost:
            raise NodeLost(_line(placement, list(lost))) from error
        raise


async def _watch(placement: Placement) -> None:
    """Raises NodeLost when Ray has given up on a node of the placement."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        alive = {node.ray_id for node in await asyncio.to_thread(alive_nodes)}
        lost = [node for node in placement.nodes if node.ray_id not in alive]
        if lost:
            raise NodeLost(_line(placement, lost))


def _line(placement: Placement, lost: list[Node]) -> str:
    return "; ".join(f"node {node.name} is lost, with {placement.names_on(node)}" for node in lost)
