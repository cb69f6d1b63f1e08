"""Environments that do what they must not."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from ajet.core.environment.environment import Environment


class Unruly(Environment):
    """Fine until the action says otherwise. `closed_in` is a file that gets a line, the name of the
    thread, when it is closed: a test reads its own file, whatever threads of earlier tests do."""

    def __init__(self, in_constructor=None, in_reset=None, closed_in=None):
        if in_constructor:
            misbehave(in_constructor)
        self.in_reset = in_reset
        self.closed_in = closed_in
        self.has_begun = False

    def reset(self, seed=None, options=None):
        self.has_begun = True
        if self.in_reset:
            return misbehave(self.in_reset)
        return "begin", {}

    def step(self, action):
        if action == "end":
            return "over", 1, True, False, {}
        return misbehave(action)

    def close(self):
        if self.has_begun and self.closed_in:  # one that check_config made has not begun
            with Path(self.closed_in).open("a") as file:
                file.write(f"{threading.current_thread().name}\n")


class OddlyDrawn(Unruly):
    """Its frame is no picture: of the wrong type, or of objects that are no numbers."""

    def __init__(self, frame):
        super().__init__()
        self.frame = frame

    def render(self):
        return np.ones((2, 2, 3)) if self.frame == "floats" else np.array([object()])


def misbehave(how):
    match how.split()[0]:
        case "raise":
            raise ValueError("the dice are lost\nsecond line")
        case "exit":
            sys.exit(3)
        case "hang":
            time.sleep(float(how.split()[1]))
            return "late", 0.0, False, False, {}
        case "die":
            import os

            os._exit(7)
        case "leak":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            return f"child {child.pid}", 0.0, False, False, {}
        case "print":
            print("a line that is no message", flush=True)
            return "printed", 0.0, False, False, {}
    return {
        "nan": ("x", float("nan"), False, False, {}),
        "inf_metric": ("x", 0.0, False, False, {"metrics": {"speed": float("inf")}}),
        "short": ("x", 0.0, False),
        "none": None,
        "bytes": (b"x", 0.0, False, False, {}),
        "word_reward": ("x", "much", False, False, {}),
        "word_flag": ("x", 0.0, "no", False, {}),
        "no_info": ("x", 0.0, False, False, None),
        "pair_metric": ("x", 0.0, False, False, {"metrics": {("speed", 1): 2.0}}),
        "pair_mode": ("x", 0.0, False, False, {"metrics_agg_mode": {("speed", 1): "sum"}}),
        "odd_mode": ("x", 0.0, False, False, {"metrics_agg_mode": {"a": "median"}}),
        "number_key": ("x", 0.0, False, False, {"state_key": 3}),
    }[how]
