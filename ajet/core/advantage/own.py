"""The user's own estimator and reward shaping, named in the YAML as file.py->function.

    adv_estimator: my_estimator.py->centred

    def centred(groups, options):
        return [e.reward - sum(o.reward for o in g) / len(g) for g in groups for e in g]

    estimator(groups, options)   one number for each episode, in the order of the groups, or arrays
                                 by episode id: one for each turn, with a number for each trained
                                 token
    shaping(groups)              one reward for each episode, in the order of the groups

Both must be functions of the batch alone: no checkpoint has what they keep between steps. An error
ends the run with one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ajet.core.advantage.comparison import episodes_of, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, EpisodeCredit, GroupCredit
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import run_user_code


@dataclass(frozen=True, slots=True)
class OwnEstimator:
    """Calls the user's estimator and checks what it returns."""

    location: str
    function: Callable[..., Any]

    def __call__(self, groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
        result = run_user_code(partial(self.function, groups, options), self.location)
        if not isinstance(result, dict):
            return spread_evenly(groups, numbers_of(result, groups, self.location))
        return {e.episode_id: self._turns(e, result) for e in episodes_of(groups)}

    def _turns(self, episode: EpisodeCredit, result: dict[Any, Any]) -> tuple[Any, ...]:
        name, lengths = episode.episode_id, episode.lengths_T.tolist()
        if name not in result:
            raise _misfit(f"{self.location}: it returned nothing for episode {name}")
        try:
            turns = tuple(np.array(turn, np.float32) for turn in result[name])
        except (TypeError, ValueError) as error:
            raise _misfit(
                f"{self.location}: episode {name}: return one array of numbers for each turn "
                f"({error})"
            ) from error
        if [turn.shape for turn in turns] != [(length,) for length in lengths]:
            raise _misfit(
                f"{self.location}: episode {name}: its turns have {lengths} trained tokens, the "
                f"arrays {[turn.shape for turn in turns]}"
            )
        if not all(np.isfinite(turn).all() for turn in turns):
            raise _misfit(f"{self.location}: episode {name}: a number is not finite")
        return turns


@dataclass(frozen=True, slots=True)
class OwnShaping:
    """Calls the user's reward shaping and checks what it returns."""

    location: str
    function: Callable[..., Any]

    def __call__(self, groups: Sequence[GroupCredit]) -> list[float]:
        result = run_user_code(partial(self.function, groups), self.location)
        return numbers_of(result, groups, self.location)


def _misfit(text: str) -> ConfigError:
    return ConfigError(text, code=Code.OWN_RESULT)


def numbers_of(result: Any, groups: Sequence[GroupCredit], location: str) -> list[float]:
    """Returns one finite number for each episode; raises a ConfigError if the result is not
    that."""
    num_episodes = sum(map(len, groups))
    try:
        numbers = [float(number) for number in result]
    except (TypeError, ValueError) as error:
        raise _misfit(
            f"{location}: return a list of {num_episodes} numbers, one for each episode ({error})"
        ) from error
    if len(numbers) != num_episodes:
        raise _misfit(f"{location}: it returned {len(numbers)} numbers for {num_episodes} episodes")
    if not all(map(math.isfinite, numbers)):
        raise _misfit(f"{location}: a number that it returned is not finite")
    return numbers
