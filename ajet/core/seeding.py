"""Derives every seed of a run as a hash of a path (run seed, step, group, member, turn).

A seed depends on its purpose and never on what else ran. Nothing uses the global `random`.
"""

import hashlib


def derive(*path: int | str) -> int:
    """Returns a 63-bit seed for a path such as ``(run_seed, "rollout", step, group, member,
    turn)``."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
