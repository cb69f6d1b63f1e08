"""The base class of the user's agents: a workflow runs one task and returns its output.

    class Solver(Workflow):
        name: str = "solver"
        max_turns: int = Field(default=3)      # pydantic's: self.max_turns is 3

A subclass may also derive from pydantic's BaseModel, which then handles its fields.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ajet.core.config import AjetConfig
    from ajet.core.workflow.tuner import ModelTuner


class Workflow:
    """Subclass this and write `execute`. Each episode gets a new object, so `self` may hold state.

    `trainable_targets` limits training to these agent names or target tags (None: every agent).
    """

    name: ClassVar[str] = "workflow"
    trainable_targets: ClassVar[list[str] | None] = None
    reads: ClassVar[tuple[str, ...] | None] = None
    """The keys and sections below `ajet.` that `execute` reads, of those that not every agent reads
    (cli/findings.py); None if it may read any."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        """Runs the agent on `workflow_task.task`, with `model_tuner` as its model."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    async def after_verdict(self) -> None:
        """Releases what the judge needed. Called once the episode is judged or has failed; an
        exception is logged and does not change the episode."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        pydantic = sys.modules.get("pydantic")  # a class that uses it has imported it
        if pydantic is None or issubclass(cls, pydantic.BaseModel):
            return
        for name, value in list(vars(cls).items()):
            if isinstance(value, pydantic.fields.FieldInfo):
                setattr(cls, name, _FieldDefault(value, cls, name))

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        """Raises a `ConfigError` for what would fail in every episode; called before a launch."""


class _FieldDefault:
    """Replaces pydantic's `Field(…)` in a class: each object gets a new copy of the default."""

    def __init__(self, field: FieldInfo, owner: type, name: str) -> None:
        if field.is_required():
            raise TypeError(
                f"{owner.__name__}.{name}: Field() has no default, and a workflow is made without "
                "arguments: write Field(default=…)"
            )
        self._field, self._name = field, name

    def __get__(self, instance: Any, owner: type) -> Any:
        value = copy.deepcopy(self._field.get_default(call_default_factory=True))
        if instance is not None:
            vars(instance)[self._name] = value  # which Python finds first from now on
        return value
