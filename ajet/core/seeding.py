"""Derives every seed of a run from its path in a tree (run seed, step, group, member, turn).

A seed is a hash of its path, so it depends on what it is for and never on what ran before it or
beside it. Nothing reads or sets the global `random`.
"""

import hashlib


def derive(*path: int | str) -> int:
    """Returns a 63-bit seed for a path such as ``(run_seed, "rollout", step, group, member,
    turn)``."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
