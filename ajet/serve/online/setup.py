"""What `ajet serve --learn` requires of a config and of its run folder. A run folder belongs to one
experiment: another model, algorithm or held-out task would make versions that the log does not
explain, so a start with such a change is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ajet.core.config import AjetConfig
from ajet.core.config.effects import Effect
from ajet.core.errors import CheckpointError, ConfigError, KeysConflict, RunChanged
from ajet.core.errors.codes import Code
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import AttemptRecord, begin_attempt, earlier_identity, next_number
from ajet.core.run.identity import RunIdentity, listed
from ajet.core.run.run_tasks import RunTasks
from ajet.core.task.task import Task
from ajet.core.trajectory.adapter_choice import METADATA, AdapterChoice
from ajet.core.user_code.importing import load_function
from ajet.serve.online.feedback import NextMessage
from ajet.serve.online.log import FILE
from ajet.serve.online.round import LONE_ESTIMATORS

DECIDES_ROUNDING = (
    "ajet.model.device",
    "ajet.trainer_common.batch_layout",
    "ajet.trainer_common.max_tokens_per_micro_batch",
    "ajet.trainer_common.torch_threads",
    "ajet.trainer_common.fsdp_config",
)
"""Keys that a training run may change when it resumes, but that change the bits of a version."""


def check_can_learn(config: AjetConfig) -> None:
    """Raises a `ConfigError` for settings that `ajet serve --learn` does not support."""
    ajet, learn = config.ajet, config.ajet.serve.learn
    algorithm, lora = ajet.trainer_common.algorithm, ajet.trainer_common.lora
    refusals = {
        "ajet.backbone": ajet.backbone != "debug"
        and f"{ajet.backbone}: a served model learns on backbone debug alone: set debug",
        "ajet.kind": ajet.kind != "reinforcement"
        and f"{ajet.kind}: feedback is a reward: set reinforcement",
        "ajet.stages": bool(ajet.stages) and "serve one stage at a time: a config without stages",
        "ajet.rollout.name": ajet.rollout.name not in ("auto", "in_process")
        and f"{ajet.rollout.name}: versions are served by the in-process engine: set in_process",
        "ajet.trainer_common.algorithm.adv_estimator": algorithm.adv_estimator
        not in LONE_ESTIMATORS
        and f"{algorithm.adv_estimator}: traffic has no groups to compare within: set one of "
        f"{', '.join(LONE_ESTIMATORS)}",
        "ajet.trainer_common.lora.adapter_by": bool(lora.adapters)
        and not lora.adapter_by.startswith(METADATA)
        and f"{lora.adapter_by}: a held-out task says whose it is: set metadata.KEY, its key",
        "ajet.serve.learn.max_shadow_kl": learn.max_shadow_kl is not None
        and not learn.shadow_sessions
        and "it is measured on shadow traffic: set shadow_sessions above 0",
    }
    for key, reason in refusals.items():
        if reason:
            raise KeysConflict(f"ajet serve --learn: {key}: {reason}")


def begin_serving(config: AjetConfig, folder: RunFolder, tasks: RunTasks) -> None:
    """Records this start of the server in its run folder. Raises if the folder holds another kind
    of run, or one of another experiment."""
    for adapter in adapters_of(config):
        if not tasks_of(config, tasks.held_out, adapter):
            whose = f" of adapter {adapter}" if adapter else ""
            raise ConfigError(
                f"ajet serve --learn: there is no held-out task{whose} to decide "
                "which version is promoted: give validation tasks in ajet.task_reader",
                code=Code.NO_VALIDATION_TASK,
            )
    # A folder with an identity but without a log holds a run of `ajet --conf`.
    identity, earlier = RunIdentity.of(config, tasks), earlier_identity(folder)
    if earlier is not None and not (folder.path / FILE).exists():
        raise CheckpointError(
            f"{folder.path} holds a run of training: choose another ajet.experiment_name",
            code=Code.RUN_FOLDER_UNUSABLE,
        )
    changes = [] if earlier is None else identity.changes_since(earlier)
    if any(
        change.effect is Effect.EXPERIMENT or change.what.startswith(DECIDES_ROUNDING)
        for change in changes
    ):
        raise RunChanged(
            f"{folder.path} holds a served model that learns, and these have changed since: "
            f"{listed(changes)}; undo that, or choose another ajet.experiment_name"
        )
    begun = datetime.now().isoformat(timespec="seconds")
    attempt = AttemptRecord(next_number(folder), begun, 0, identity, changes)
    begin_attempt(folder, attempt, config)


def adapters_of(config: AjetConfig) -> list[str]:
    """Returns the names of the adapters; one empty name where there are none."""
    return config.ajet.trainer_common.lora.adapters or [""]


def tasks_of(config: AjetConfig, tasks: Sequence[Task], adapter: str) -> dict[int, Task]:
    """Returns an adapter's tasks by their numbers among all tasks, on which their seeds depend; all
    tasks where there are no adapters."""
    choice, numbered = AdapterChoice.from_config(config), dict(enumerate(tasks))
    if choice is None:
        return numbered
    return {
        n: task for n, task in numbered.items() if choice.for_task(task).task_adapter == adapter
    }


def load_next_message(config: AjetConfig) -> NextMessage | None:
    spec = config.ajet.serve.learn.next_message
    if spec is None:
        return None
    location = "ajet.serve.learn.next_message"
    return load_function(spec, base_dirs=config.base_dirs, location=location)
