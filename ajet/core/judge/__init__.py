"""Turns outputs into rewards. In: a task and a workflow's output. Out: ``(reward, is_success)``.

This package defines judges, finds the one that the config names, and checks its results. It ignores
tokens and turns. The judges that come with ajet are in ajet/judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.errors import UnknownName
from ajet.core.judge.judge import BaseJudge
from ajet.core.text.error_text import did_you_mean
from ajet.core.user_code.importing import ARROW, arrow_form, construct, load_object
from ajet.core.user_code.plugins import load_plugin, plugins

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.config.task_judge import TaskJudgeConfig

JUDGES = "ajet.judges"
"""The group of entry points; an entry is a judge's name in a config and its class."""


def judge_spec(section: TaskJudgeConfig) -> str | None:
    """Returns the judge that `ajet.task_judge` names; None for the workflow's own reward."""
    if section.judge_type == "rubrics_auto_grader":
        return f"rubrics_auto_grader-{section.rubrics_auto_grader.grader_mode}"
    return section.judge_protocol


def judge_class(spec: str | None, base_dirs: Sequence[Path] = ()) -> type[BaseJudge] | None:
    """Returns the class for a string that `judge_spec` returns."""
    if spec is None:
        return None
    judges = plugins(JUDGES)
    if spec in judges:
        return load_plugin(JUDGES, spec)
    key = "ajet.task_judge.judge_protocol"
    if ARROW not in spec and arrow_form(spec) is None:
        names = [name for name in judges if not name.startswith("rubrics_auto_grader-")]
        hint = did_you_mean(spec, names)
        raise UnknownName(f"{key}: no judge {spec!r}; {hint} (your own: file.py->Class)")
    return load_object(spec, base_dirs=base_dirs, base=BaseJudge, location=key)


def is_registered(spec: str | None) -> bool:
    """Tells whether this is the name of a judge and not a class of the user's project."""
    return spec in plugins(JUDGES)


def make_judge(config: AjetConfig) -> BaseJudge | None:
    """Makes the config's judge, which all runners of a run share; None for the workflow's own
    reward."""
    spec = judge_spec(config.ajet.task_judge)
    cls = judge_class(spec, config.base_dirs)
    if cls is None:
        return None
    location = f"ajet.task_judge.judge_protocol: {spec!r}"
    judge = cls(config) if is_registered(spec) else construct(cls, config, location)
    if config.clients_run_episodes:  # a slow plain method would hold up the clients' requests
        judge.thread_lock = asyncio.Lock()
    return judge
