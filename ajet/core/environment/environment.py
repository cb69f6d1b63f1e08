"""Defines a gym-like environment, with the signatures of Gymnasium. An action is text; an
observation is text, a picture, or a dict or a list of both (observations.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Info = dict[str, Any]
Frame = str | NDArray[np.uint8]
"""A frame is text, or an RGB picture ``[height, width, 3]``."""
Observation = Frame | Sequence[Any] | Mapping[str, Any]


class Environment:
    """Base class of environments: subclasses implement `reset` and `step`; `env_config` holds the
    constructor's arguments.

    `instruction` states the rules and the form of an action; templates refer to it as
    ``{env_instruction}``. Calls of a class with `is_quick` run on the event loop instead of a
    thread: they must never wait. One object lives for one episode. It may put into `info`:

    metrics            {"success": True, "action_is_valid": False, "pushes": 2}: numbers and bools
    metrics_agg_mode   {"pushes": "sum"}: how the steps' numbers become the episode's: mean (the
                       default), sum, last (the default of success), min or max
    env_instruction    of `reset` alone: the rules of this instance, in place of `instruction`
    state_key          the state in which the NEXT action is taken: equal keys are equal states of
                       one task, for step-wise credit (GiGPO)
    """

    instruction: str = ""
    is_quick: ClassVar[bool] = False

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Starts a new instance and returns observation and info. `seed` determines everything
        that the environment draws; members of a group get the same one. ``options["split"]`` is
        "train" or "validation"; where instances may repeat, the two splits must not share any."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset()")

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        """Returns observation, reward, terminated, truncated, info. An invalid action leaves the
        state unchanged; the observation then shows the form of a valid one, and
        ``info["metrics"]["action_is_valid"]`` is False."""
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def render(self) -> Frame:
        """Returns the state as a picture, or the last observation's text."""
        raise NotImplementedError(f"{type(self).__name__} does not define render()")

    def close(self) -> None:
        """Releases the environment's resources. It is called once, whatever happened."""

    def sample_action(self, rng: random.Random) -> str:
        """Returns a random valid action, for `ajet inspect env`."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_action()")

    def oracle_action(self) -> str | None:
        """Returns the next action of an optimal policy, for `ajet inspect env`; None where it knows
        none."""
        return None
