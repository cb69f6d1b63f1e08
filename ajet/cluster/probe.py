"""Checks if a Ray of this version answers at an address: `python -m ajet.cluster.probe host:6379`.

Exits with 0, or with 1 and the reason in one line. The caller sets a time limit.
"""

import logging
import re
import sys


def main(address: str) -> int:
    """Connects to the address; returns the exit status."""
    import ray

    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (RuntimeError, ConnectionError, ValueError) as error:
        print(one_line(str(error)))
        return 1
    ray.shutdown()
    return 0


def one_line(message: str) -> str:
    """Returns Ray's message in one line; if versions differ, with advice.

    Ray's message is: `Version mismatch: The cluster was started with:\\n Ray: A\\n Python: B\\nThis
    process on … was started with:\\n Ray: C\\n Python: D`."""
    rays, pythons = (re.findall(rf"{name}: (\S+)", message) for name in ("Ray", "Python"))
    if "mismatch" in message and len(rays) == len(pythons) == 2:
        return (
            f"it is Ray {rays[0]} on Python {pythons[0]}, this is Ray {rays[1]} on Python "
            f"{pythons[1]}; install the same on every node (pip install ray=={rays[0]})"
        )
    return " ".join(message.split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
