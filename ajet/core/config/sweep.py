"""Reads the overrides of a sweep, in Hydra's syntax, as the overrides of its runs.

    optim.lr=1e-5,1e-4 seed=range(0,3)      a grid of six runs: lr=1e-05,seed=0 …
    optim.lr=tag(log,interval(1e-6,1e-4))   drawn log-uniformly, where a number of runs is given
    rollout.num_repeat=int(interval(4,16))  drawn uniformly from whole numbers

Draws depend on the seed, the key and the run's number, so a longer sweep begins with the same runs.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Any

from ajet.core.config.overrides import override_key, parsed_override
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.core.text.redaction import is_secret_key, without_secret_forms

MAX_RUNS = 1000
MAX_VALUE = 40
"""The most characters of a value in a run's name."""
DIGITS = 4
"""The significant digits of a drawn number, so that its name is its value."""
FOLDER_KEYS = ("ajet.experiment_name", "ajet.experiment_dir")


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One combination: the run's name, its value of each swept key, and all its overrides."""

    name: str
    values: Mapping[str, str]
    overrides: Sequence[str]


def sweep_runs(
    overrides: Sequence[str], num_random: int | None = None, seed: int = 0
) -> list[SweepRun]:
    """Returns the runs of a grid, the last key's values changing fastest; with `num_random` as many
    combinations at random. Raises ConfigError where nothing is swept, or a key that cannot be."""
    swept = {}
    for override in overrides:
        if (values := _swept(override)) is not None:
            swept[override_key(override)] = values
    if not swept:
        raise ConfigError(
            "nothing to sweep: give a key several values, as ajet.seed=1,2 or ajet.seed=range(0,5);"
            " a single run is `ajet train`",
            code=Code.SWEEP_FORM,
        )
    chosen = _grid(swept) if num_random is None else _random(swept, num_random, seed)
    names = _names(chosen)
    return [
        SweepRun(name, values, [_one_value(override, values) for override in overrides])
        for name, values in zip(names, chosen, strict=True)
    ]


def _swept(override: str) -> list[str] | Any | None:
    """Returns the values of a swept override, or Hydra's interval; None for a single value."""
    from hydra.errors import HydraException

    try:
        parsed = parsed_override(override)
    except (HydraException, ValueError, RecursionError):  # a literal text, such as a.py->A
        return None
    if not parsed.is_sweep_override():
        return None
    key = override_key(override)
    if key in FOLDER_KEYS:
        raise ConfigError(
            f"{key} cannot be swept: the runs are named after their values", code=Code.SWEEP_FORM
        )
    if not (parsed.is_interval_sweep() or hasattr(parsed.value(), "tags")):
        raise ConfigError(
            f"{override}: glob() is for Hydra's groups; write the values as a,b",
            code=Code.SWEEP_FORM,
        )
    if parsed.is_interval_sweep():
        interval = parsed.value()
        if interval.start >= interval.end or ("log" in interval.tags and interval.start <= 0):
            raise ConfigError(
                f"{override}: an interval goes from a smaller to a larger number, both above 0 "
                "where it is tagged log",
                code=Code.SWEEP_FORM,
            )
        return interval
    # The same value twice is the same run.
    values = list(dict.fromkeys(parsed.sweep_string_iterator()))
    if is_secret_key(key) or any(without_secret_forms(value) != value for value in values):
        raise ConfigError(
            f"{key} is a secret and cannot be swept: the runs are named after their values",
            code=Code.SWEEP_FORM,
        )
    return values


def _one_value(override: str, values: Mapping[str, str]) -> str:
    key = override_key(override)
    return f"{override.partition('=')[0]}={values[key]}" if key in values else override


def _grid(swept: Mapping[str, Any]) -> list[dict[str, str]]:
    for key, values in swept.items():
        if not isinstance(values, list):
            raise ConfigError(
                f"{key}: an interval has no grid: say how many runs to draw with --random N",
                code=Code.SWEEP_FORM,
            )
    size = math.prod(map(len, swept.values()))
    if size > MAX_RUNS:
        raise ConfigError(
            f"a grid of {size:,} runs: draw some of them with --random N (at most {MAX_RUNS:,})",
            code=Code.SWEEP_FORM,
        )
    return [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]


def _random(swept: Mapping[str, Any], number: int, seed: int) -> list[dict[str, str]]:
    # Each value has a separate seed, so that one more key changes no draw of the others.
    if any(not isinstance(values, list) for values in swept.values()):
        return [
            {key: _drawn(values, derive(seed, "sweep", key, run)) for key, values in swept.items()}
            for run in range(number)
        ]
    grid = _grid(swept)
    if number > len(grid):
        raise ConfigError(
            f"--random {number}: the grid has {len(grid)} runs; leave --random out",
            code=Code.SWEEP_FORM,
        )
    # Without replacement: a shuffled grid, of which a longer sweep takes more.
    order = sorted(range(len(grid)), key=lambda run: derive(seed, "sweep", run))
    return [grid[run] for run in order[:number]]


def _drawn(values: Any, seed: int) -> str:
    generator = random.Random(seed)
    if isinstance(values, list):
        return generator.choice(values)
    # Hydra's interval has whole ends only where it was cast by int(…).
    low, high = values.start, values.end
    if "log" in values.tags:
        number = math.exp(generator.uniform(math.log(low), math.log(high)))
    elif isinstance(low, int):
        return str(generator.randint(low, high))
    else:
        number = generator.uniform(low, high)
    number = round(number) if isinstance(low, int) else float(f"{number:.{DIGITS}g}")
    return str(min(max(number, low), high))


def _names(chosen: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns ``lr=1e-05,seed=0`` for each combination. Combinations whose names are equal, since
    values are shortened, end with a hash."""
    # A name must stay when values are added: it is the run's folder.
    short = short_keys(list(chosen[0]))
    names = [
        ",".join(f"{short[key]}={_in_a_name(value)}" for key, value in values.items())
        for values in chosen
    ]
    counts = Counter(names)
    return [
        name
        if counts[name] == 1
        else f"{name},{blake2b(repr(values).encode(), digest_size=4).hexdigest()}"
        for name, values in zip(names, chosen, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Maps each key to its shortest end that no other key has."""
    parts = {key: key.split(".") for key in keys}
    return {
        key: next(
            ".".join(names[-length:])
            for length in range(1, len(names) + 1)
            if sum(other[-length:] == names[-length:] for other in parts.values()) == 1
        )
        for key, names in parts.items()
    }


def _in_a_name(value: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", value).strip("_")[:MAX_VALUE] or "_"
