"""An environment that hands over the value that its config names, in the place that it names."""

from ajet.core.environment.environment import Environment
from tests.hostile_values import MAKERS

VALUES = {**MAKERS, "100 MB of text": lambda: "x" * 100_000_000}
TOO_LONG = "200 MB of text"
STEPS = {
    "the step": lambda value: value,
    "observation": lambda value: (value, 0.0, False, False, {}),
    "reward": lambda value: ("x", value, False, False, {}),
    "terminated": lambda value: ("x", 0.0, value, False, {}),
    "truncated": lambda value: ("x", 0.0, False, value, {}),
    "info": lambda value: ("x", 0.0, False, False, value),
    "metrics": lambda value: ("x", 0.0, False, False, {"metrics": value}),
    "a metric": lambda value: ("x", 0.0, False, False, {"metrics": {"m": value}}),
    "modes": lambda value: ("x", 0.0, False, False, {"metrics_agg_mode": value}),
    "a mode": lambda value: ("x", 0.0, False, False, {"metrics_agg_mode": {"m": value}}),
    "state key": lambda value: ("x", 0.0, False, False, {"state_key": value}),
    "other info": lambda value: ("x", 0.0, False, False, {"other": value}),
}
RESETS = {
    "the reset": lambda value: value,
    "first observation": lambda value: (value, {}),
    "first info": lambda value: ("x", value),
    "first state key": lambda value: ("x", {"state_key": value}),
}
PLACES = [*STEPS, *RESETS, "raised", "instruction"]


class Hostile(Environment):
    """Its actions are "PLACE: VALUE"; the first reset is hostile where the config says so."""

    def __init__(self, place="", value="none"):
        self.place, self.value = place, value
        if place == "instruction":
            self.instruction = VALUES[value]()

    def reset(self, seed=None, options=None):
        if self.place in RESETS:
            return RESETS[self.place](VALUES[self.value]())
        return "begin", {}

    def step(self, action):
        place, _, name = action.partition(": ")
        if place == "raised":
            raise ValueError(VALUES[name]())
        value = "x" * 200_000_000 if name == TOO_LONG else VALUES[name]()
        return STEPS[place](value)
