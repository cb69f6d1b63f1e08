"""Tries the addresses that a config names for its judge, environments, data and teacher: one short
connection each, without a request. (Readers and environments that connect when they are created
report failures themselves.)
"""

import os
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

from ajet.cli.finding import Finding
from ajet.core.config import AjetConfig
from ajet.core.config.nested import flatten
from ajet.core.config.support import unread_keys
from ajet.core.net.address import LOOPBACK_NAMES

CONNECT_S = 3.0
SECTIONS = {"task_judge", "environment", "task_reader", "distillation"}
JUDGE_ADDRESS = "ajet.task_judge.client.base_url"
PORTS = {"http": 80, "https": 443}


def address_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields a warning for each address at which nothing answers."""
    for key, address in _addresses(config):
        if problem := _problem(address):
            yield Finding(
                "warning",
                f"{key}: nothing answers at {address} ({problem}): start the server, or correct "
                "the address",
            )


def _addresses(config: AjetConfig) -> Iterator[tuple[str, str]]:
    """Yields the keys in sections that the run reads, with their addresses."""
    unread = unread_keys(config.ajet)
    agent = (config.ajet.rollout.user_workflow or "").removesuffix("_agent")
    agent_section = {agent: config.user_sections().get(agent, {})}  # nemo_gym.url of nemo_gym_agent
    sections = flatten(config.ajet.model_dump(include=SECTIONS), "ajet.") | flatten(agent_section)
    for key, value in sections.items():
        if any(f"{key}.".startswith(f"{section}.") for section in unread):
            continue
        if key == JUDGE_ADDRESS and value is None:
            value = os.environ.get("OPENAI_BASE_URL")
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            yield key, value


def _problem(address: str) -> str | None:
    """Returns why no connection to the address can be made, or None."""
    url = urlsplit(address)
    assert url.hostname is not None
    if url.scheme in getproxies() and url.hostname not in LOOPBACK_NAMES:
        return None  # another program connects
    problems = [f"no answer within {CONNECT_S:g} s"]

    def connect(place: tuple[str, int]) -> None:
        try:
            socket.create_connection(place, CONNECT_S).close()
        except OSError as error:
            problems.append(error.strerror or str(error))
        else:
            problems.append("")

    # In a thread, because looking up a name has no time limit.
    place = (url.hostname, url.port or PORTS[url.scheme])
    attempt = threading.Thread(target=connect, args=[place], daemon=True)
    attempt.start()
    attempt.join(CONNECT_S + 1)
    return problems[-1] or None
