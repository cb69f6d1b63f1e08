"""The names that environments written for ROLL import, in addition to those of Gymnasium and numpy.
The config names the class, so `gem.register` and `gem.make` are not needed. A class that derives
from the real `gem.Env`, if gem is installed, works as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ajet.environments.randomness import PrivateRandom

__all__ = ["Env", "all_seed", "default_parser_action_func"]


class Env:
    """gem's base class: `reset` keeps a generator for the seed, and subclasses write the rest."""

    _np_random: np.random.Generator
    _np_random_seed: int

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._np_random, self._np_random_seed = np.random.default_rng(seed), seed

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise NotImplementedError(f"{type(self).__name__} does not define step()")


@contextmanager
def all_seed(seed: int) -> Iterator[None]:
    """Seeds the global generators of `random` and numpy for the block, and restores them
    afterwards. Only one environment of a process is in such a block at a time."""
    with PrivateRandom(seed).active():
        yield


def default_parser_action_func(
    text: str,
    action_pattern: str,
    action_lookup: Mapping[Any, str] | None,
    special_token_list: Sequence[str] | None,
    enable_thinking: bool = False,
) -> dict[str, Any]:
    """Returns the action that a reply names, as ROLL does: `action` is the key of `action_lookup`
    whose value is in the reply (in any case), or the text without a lookup, or None."""
    for token in special_token_list or ():
        text = text.replace(token, "").strip()
    before, closed, after = text.partition("</think>")
    is_cut = enable_thinking and not closed
    read = after if enable_thinking else text
    # The last group is the action, and the one before it, if any, is the thought.
    match = None if is_cut else re.search(action_pattern, read, re.DOTALL)
    groups = ("", *match.groups())[-2:] if match else ("", "")
    thought, written = ((group or "").strip() for group in groups)
    action: Any = written if match else None
    if match and action_lookup:
        keys = {value.lower(): key for key, value in action_lookup.items()}
        action = keys.get(written.lower())
    return {
        "action": action,
        "action_content": written,
        "think_content": before if is_cut else thought,
        "thinking_truncated": is_cut,
    }
