"""Reads the section `verifiers:` of a config, which names an environment of that package.

    ajet:
      task_reader: {type: ajet.environments.verifiers.reader->VerifiersReader}
      rollout: {user_workflow: verifiers_agent}
    verifiers:
      python: .venv-verifiers/bin/python    an interpreter that has verifiers and the environment
      env:                                  as vf-eval's [env]: taskset, roles, timeouts
        taskset: {id: my-env}
      num_tasks: 200                        how many of its tasks, from the first
      num_validation_tasks: 20              the last of them are held out

An environment whose package has `load_environment`, as of verifiers up to 0.3, is named by an id
and its arguments:

      env: {id: my-env, args: {difficulty: easy}}
      validation_env: {split: eval}         its evaluation set

ajet does not install the package: it pins other versions of openai and mcp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from ajet.core.config.section import Section
from ajet.core.errors import NoSuchEnvironment, SettingError

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig


class VerifiersSection(Section):
    python: str = Field(
        default="python", description="The interpreter that has verifiers and the environment."
    )
    env: dict[str, Any] = Field(
        default={},
        description="The environment: taskset (with an id), roles and limits, as vf-eval's [env] "
        "has them; or id, args and split (train or eval) of a package with load_environment.",
    )
    num_tasks: int | None = Field(
        default=None, ge=1, description="How many tasks, from the first; null takes all."
    )
    num_validation_tasks: int = Field(
        default=0, ge=0, description="How many of these tasks, from the last, are held out."
    )
    validation_env: dict[str, Any] | None = Field(
        default=None, description="Changes to env for held-out tasks: {taskset: {…}}."
    )
    start_timeout_s: float = Field(
        default=300.0, gt=0, description="How long loading the environment may take."
    )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the section of the config; raises ConfigError if it is missing or wrong."""
        section = cls.from_sections(config.user_sections(), "verifiers")
        if "taskset" not in section.env:
            _check_classic("verifiers.env", section.env)
            _check_classic("verifiers.validation_env", section.env | (section.validation_env or {}))
        elif not isinstance(taskset := section.env["taskset"], dict) or not taskset.get("id"):
            raise NoSuchEnvironment(
                "verifiers.env.taskset.id names no environment: write the id of an installed one"
            )
        return section


def _check_classic(key: str, env: Mapping[str, Any]) -> None:
    """Checks a section for `load_environment`: an id, arguments and a split."""
    if not isinstance(env.get("id"), str):
        raise NoSuchEnvironment(
            f"{key} names no environment: write taskset: {{id: …}}, or id for a package with "
            "load_environment"
        )
    unknown = env.keys() - {"id", "args", "split"}
    if unknown or not isinstance(env.get("args", {}), dict):
        raise SettingError(
            f"{key}.{min(unknown, default='args')}: an environment without a taskset has id, "
            "args (a mapping) and split"
        )
    if env.get("split", "train") not in ("train", "eval"):
        raise SettingError(f"{key}.split is train or eval, not {env['split']!r}")
