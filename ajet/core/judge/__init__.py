"""Turns outputs into rewards. In: a task and a workflow's output. Out: ``(reward, is_success)``.

This package defines what a judge is, finds the one that the config names, and checks what it
returns. The judges that come with ajet are in ajet/judges. It ignores tokens and turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.importing import ARROW, arrow_form, construct, load_object
from ajet.core.judge.judge import BaseJudge

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.config.task_judge import TaskJudgeConfig

JUDGES = {
    "exact_match": "ajet.judges.exact_match:ExactMatchJudge",
    "env_service": "ajet.tools.env_service.judge:EnvServiceJudge",
    "hidden_tests": "ajet.judges.hidden_tests:HiddenTestsJudge",
    "llm": "ajet.judges.llm:LlmJudge",
    "llm_listwise": "ajet.judges.llm:LlmListwiseJudge",
    "math": "ajet.judges.math:MathJudge",
    "rubrics_auto_grader (pointwise)": "ajet.judges.rubrics_judge:RubricsJudge",
    "rubrics_auto_grader (listwise)": "ajet.judges.rubrics_judge:RubricsListwiseJudge",
}


def judge_spec(section: TaskJudgeConfig) -> str | None:
    """Returns the judge that `ajet.task_judge` names; None for the workflow's own reward."""
    if section.judge_type == "rubrics_auto_grader":
        return f"rubrics_auto_grader ({section.rubrics_auto_grader.grader_mode})"
    return section.judge_protocol


def judge_class(spec: str | None, base_dirs: Sequence[Path] = ()) -> type[BaseJudge] | None:
    """Returns the class for a string that `judge_spec` returns."""
    if spec is None:
        return None
    if spec in JUDGES:
        module, _, name = JUDGES[spec].partition(":")
        return getattr(import_module(module), name)
    where = "ajet.task_judge.judge_protocol"
    if ARROW not in spec and arrow_form(spec) is None:
        names = [name for name in JUDGES if " " not in name]
        close = get_close_matches(spec, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ConfigError(
            f"{where}: no judge {spec!r}; {hint} (your own: file.py->Class)", code=Code.UNKNOWN_NAME
        )
    return load_object(spec, base_dirs=base_dirs, base=BaseJudge, location=where)


def make_judge(config: AjetConfig) -> BaseJudge | None:
    """Makes the config's judge; None for the workflow's own reward. A run makes one, for every
    runner. Where clients run the episodes, its plain methods run in a thread."""
    spec = judge_spec(config.ajet.task_judge)
    kind = judge_class(spec, config.base_dirs)
    if kind is None:
        return None
    where = f"ajet.task_judge.judge_protocol: {spec!r}"
    judge = kind(config) if spec in JUDGES else construct(kind, config, where)
    if config.clients_run_episodes:
        judge.thread_lock = asyncio.Lock()
    return judge
