"""Plays tasks of MiniWoB++ in a real Chromium: small web pages, each with an instruction.

Click on the "ok" button.     the instruction, then what the page shows: elements with a number,
[1] div "lorem ipsum"         kind, text and state, and text between elements without a number
[2] button "ok"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import EnvironmentFault, NoSuchEnvironment, PackageMissing, SettingError
from ajet.core.text.error_text import did_you_mean
from ajet.environments.miniwob.chromium import Tab, chromium_path, new_tab
from ajet.environments.randomness import belongs_to

ACTION = re.compile(r"click ([0-9]{1,4})|(type|select) ([0-9]{1,4}) (.{1,200})")
OVER = "The task is over, with reward {:g}."
STEP_MS = 1000
"""How far the page's clock moves with each action."""


class MiniWobEnvironment(Environment):
    """Plays one task; `name` is that of its file in the package, which needs Selenium and is not
    imported: only its pages are read. The reward is the task's own when it ends, without MiniWoB's
    discount for time, and -1 after `max_actions`, in place of MiniWoB's limit of time. The seed
    chooses the instance, and the splits share none; tasks with few instances look alike in both."""

    instruction = (
        "Write one action: click N, type N text, or select N option, where N is the number of an "
        "element."
    )

    def __init__(self, name: str, /, max_actions: int = 10, max_text_chars: int = 80) -> None:
        self._wanted_by = f"miniwob:{name}"
        self._url = _page(name).as_uri()
        chromium_path(self._wanted_by)
        for key, value in {"max_actions": max_actions, "max_text_chars": max_text_chars}.items():
            if value < 1:
                raise SettingError(
                    f"{self._wanted_by}: env_config.{key} is {value}; it takes at least 1"
                )
        self._max_actions, self._max_text_chars = max_actions, max_text_chars
        self._num_actions = 0
        self._tab: Tab | None = None
        self._is_over = False
        self._num_elements = 0
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        self.close()
        number = page_seed(seed, str((options or {}).get("split", "train")))
        self._tab = new_tab(self._wanted_by)
        self._tab.open(self._url)
        self._tab.evaluate(_script())
        self._tab.evaluate(f"ajetPage.start('{number}', {self._max_text_chars})")
        self._tab.advance(STEP_MS)
        self._num_actions = 0
        self._observe()
        return self.observation, {"state_key": self._state_key()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._num_actions += 1
        is_valid = not self._is_over and self._act(action.strip())
        if is_valid:
            self._open_tab.advance(STEP_MS)
            reward = self._observe()
            text = self.observation
        else:  # the page is unchanged, so the state is
            reward, text = 0.0, f"{self.instruction}\n{self.observation}"
        if self._num_actions >= self._max_actions and not self._is_over:
            self._is_over, reward = True, -1.0
            text = self.observation = f"No actions left. {OVER.format(reward)}"
        metrics = {"success": reward >= 1, "action_is_valid": is_valid}
        info = {"metrics": metrics, "state_key": self._state_key()}
        return text, reward, self._is_over, False, info

    def render(self) -> str:
        return self.observation

    def close(self) -> None:
        if self._tab is not None:
            tab, self._tab = self._tab, None
            tab.close()

    def sample_action(self, rng: Random) -> str:
        numbers = self._open_tab.evaluate("ajetPage.clickable()")
        return f"click {rng.choice(numbers or [1])}"

    @property
    def _open_tab(self) -> Tab:
        if self._tab is None:
            raise EnvironmentFault(f"{self._wanted_by}: no episode is open; call reset()")
        return self._tab

    def _act(self, action: str) -> bool:
        """Carries out a valid action; returns whether it is one."""
        match = ACTION.fullmatch(action)
        if match is None or not action.isprintable():
            return False
        clicked, verb, number, text = match.groups()
        tab, number = self._open_tab, int(clicked or number)
        if not 1 <= number <= self._num_elements:
            return False
        if verb == "select":
            return bool(tab.evaluate(f"ajetPage.choose({number}, {json.dumps(text)})"))
        if verb == "type" and not tab.evaluate(f"ajetPage.takesText({number})"):
            return False
        point = tab.evaluate(f"ajetPage.point({number})")
        if point is None:
            return False
        tab.click(*point)
        if verb == "type":
            tab.evaluate(f"ajetPage.selectText({number})")
            tab.type(text)
        return True

    def _observe(self) -> float:
        """Reads the page, and returns the reward that the task has given."""
        page = self._open_tab.evaluate("ajetPage.read()")
        self._is_over = page["isOver"]
        self._num_elements = page["count"]
        if self._is_over:
            self.observation = OVER.format(page["reward"])
        else:
            self.observation = "\n".join([page["utterance"], *page["lines"]])
        return float(page["reward"])

    def _state_key(self) -> str:
        return sha256(self.observation.encode()).hexdigest()[:16]


def page_seed(seed: int | None, split: str) -> int:
    """Returns the seed of an instance that belongs to the split."""
    rng = Random(seed)
    number = rng.randrange(2**31)
    while not belongs_to(split, "miniwob", number):
        number = rng.randrange(2**31)
    return number


def _page(name: str) -> Path:
    """Returns the file of a task."""
    spec = find_spec("miniwob")  # which does not import it
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissing(
            f"miniwob:{name} needs the pages of miniwob: pip install --no-deps miniwob"
        )
    folder = Path(spec.submodule_search_locations[0]) / "html" / "miniwob"
    names = sorted(file.stem for file in folder.glob("*.html"))
    if name not in names:
        hint = did_you_mean(name, names, f"there are {', '.join(names)}")
        raise NoSuchEnvironment(f"miniwob:{name}: {folder} has no task of this name; {hint}")
    return folder / f"{name}.html"


@cache
def _script() -> str:
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8")
