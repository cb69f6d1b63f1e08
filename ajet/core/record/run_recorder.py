"""Records what a run does, whatever its backbone: episodes, metrics, warnings, the display.

What an earlier attempt of the run wrote after its last checkpoint is cut off first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.redacted import shown_overrides
from ajet.core.record.atomic_file import writing
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.evaluation import evaluate
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.progress import TrainingProgress
from ajet.core.record.run_checks import MetricsHistory, reward_without_success, run_checks
from ajet.core.record.run_folder import RunFolder, RunOrigin, shown_path
from ajet.core.record.selection import selections
from ajet.core.record.signal import why_no_signal
from ajet.core.record.step_metrics import held_out_metrics, step_metrics
from ajet.core.record.step_warnings import (
    call_form_warning,
    credit_warnings,
    metric_warnings,
    timeline_lines,
    warn_of_failures,
)
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.record.trace_follower import TraceFollower
from ajet.core.record.warning_log import RunWarning, WarningLog, shown_text
from ajet.core.rollout.batch import StepGroups
from ajet.core.text.terminal import Console
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import TokenAdvantages
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import Group

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NO_SIGNAL: Final = "no_signal"
"""The name of the warning of a step that has nothing to learn from."""


class UpdateRecord(Protocol):
    """Holds what is recorded of an update: the advantages of each episode's tokens, the samples,
    and what was computed for their tokens."""

    @property
    def advantages(self) -> TokenAdvantages: ...
    @property
    def samples(self) -> Sequence[TrainingSample]: ...
    @property
    def tokens(self) -> TrainedTokens: ...


class RunRecorder:
    """Writes the records of one attempt of a run, which starts at `first_step`."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        console: Console,
        *,
        first_step: int,
        total_steps: int,
        is_resumed: bool,
    ) -> None:
        self._config, self._folder = config, folder
        trainer = config.ajet.trainer_common
        # A fresh run begins with the validation at step 0; a resumed one has it already.
        first_recorded = first_step if is_resumed else 0
        self._store = EpisodeStore(folder.episodes_db)
        self._store.truncate_from(first_recorded)
        self._metrics = MetricsLogger(
            list(trainer.logger),
            folder,
            experiment=config.experiment_name,
            project=config.ajet.project_name,
            config=config,
            start_step=first_recorded,
        )
        self.progress = TrainingProgress(
            total_steps, console, title=config.experiment_name, first_step=first_step
        )
        self._followers = [
            TraceFollower(trace_format, folder) for trace_format in dict.fromkeys(trainer.traces)
        ]
        self._selections = selections(config)
        self._estimator = trainer.algorithm.adv_estimator
        self._history = MetricsHistory.read(folder.metrics_jsonl)
        self._checks = run_checks(trainer.sampler_gap.max_kl)
        self._warning_log = WarningLog(folder.warnings_jsonl, first_recorded)
        for warning in self._warning_log.warnings:
            self.progress.warned(warning.step, warning.name)
        self._where_to_look = _where_to_look(config, folder)  # before an agent changes the folder
        self._last_reason: str | None = None  # why the last step without signal had none

    def save_inputs(
        self, tokenizer: PreTrainedTokenizerBase, origin: RunOrigin, user_files: Iterable[Path]
    ) -> None:
        """Writes config, user code and tokenizer, so that the folder can be read by itself."""
        self._folder.save_config(self._config)
        origin.write(self._folder.origin_json)
        for left_out in self._folder.save_code(list(user_files)):
            logger.warning(f"not copied to the run folder's code/: {left_out}")
        with writing(self._folder.tokenizer):
            tokenizer.save_pretrained(self._folder.tokenizer)

    def __enter__(self) -> RunRecorder:
        self.progress.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.__exit__(error_type, error, trace)
        self._metrics.close()
        self._warning_log.close()
        self._store.close()
        for follower in self._followers:
            follower.close()

    def step(
        self, step: int, rollout: StepGroups, update: UpdateRecord, metrics: dict[str, float]
    ) -> TimelineCounts:
        """Records a step of training and returns the counts of its timelines."""
        groups, samples = rollout.groups, update.samples
        counts = TimelineCounts.from_groups(groups, samples)
        metrics = step_metrics(rollout, samples, counts, metrics, selections=self._selections)
        # Episodes first: when a row of metrics exists, its episodes can be looked up.
        self._store.write(step, rollout.all, update.advantages, samples, update.tokens)
        self._metrics.log(step, metrics)
        self._history.add(step, metrics)
        self._warn(metric_warnings(step, metrics))
        self._warn(credit_warnings(step, self._estimator, groups))
        self._warn([call_form_warning(step, self._config, groups)])
        self._warn([self._no_signal(step, groups, samples)])
        self._warn(check(self._history) for check in self._checks)
        for line in timeline_lines(self._config.ajet.context_tracker, groups, counts):
            logger.info(f"step {step}: {line}")
        for follower in self._followers:
            follower.check()
        self.progress.step_done(step, metrics)
        return counts

    def validation(self, step: int, groups: Sequence[Group]) -> None:
        """Records the episodes of the held-out tasks after `step` steps."""
        warn_of_failures(f"held-out tasks after step {step}", groups)
        report = evaluate(groups)
        self._store.write(step, groups)
        metrics = held_out_metrics(report)
        self._metrics.log(step, metrics)
        self._history.add(step, metrics)
        self.progress.held_out(step, report.success.value, self._config.validation_decoding)
        self._warn([call_form_warning(step, self._config, groups)])
        self._warn([reward_without_success(self._history)])

    def second_validation(self, step: int, decoding: str, groups: Sequence[Group]) -> None:
        """Records the success on the held-out tasks after `step` steps by another decoding than
        that of the run's validations. The episodes are not stored."""
        warn_of_failures(f"held-out tasks after step {step}, {decoding}", groups)
        success = evaluate(groups).success.value
        self._metrics.log(step, {f"held_out_{decoding}/success": success})
        self.progress.note(f"held-out success after step {step}, {decoding}: {success:.3f}")

    def validation_of_rows(self, step: int, groups: Sequence[Group], cross_entropy: float) -> None:
        """Records the held-out rows after `step` steps, and their cross-entropy."""
        warn_of_failures(f"held-out rows after step {step}", groups)
        self._store.write(step, groups)
        self._metrics.log(step, {"held_out/cross_entropy": cross_entropy})
        self.progress.note(f"held-out rows after step {step}: cross-entropy {cross_entropy:.4f}")

    @property
    def warnings(self) -> list[RunWarning]:
        """Returns the warnings of this run, earlier attempts included."""
        return self._warning_log.warnings

    @property
    def signal(self) -> dict[str, Any]:
        """Returns the numbers of groups and steps so far, those with and without signal, and the
        last reason for a step without."""
        rows = [metrics for _, metrics in self._history.steps if "groups/with_advantage" in metrics]
        reason = next(
            (warning.text for warning in self.warnings if warning.name == NO_SIGNAL), None
        )
        return {
            "groups": int(sum(row["groups/total"] for row in rows)),
            "groups_with": int(sum(row["groups/with_advantage"] for row in rows)),
            "steps": len(rows),
            "steps_without": sum(not row["groups/with_advantage"] for row in rows),
            "last_reason": self._last_reason or reason,
        }

    def _no_signal(
        self, step: int, groups: Sequence[Group], samples: Sequence[TrainingSample]
    ) -> RunWarning | None:
        """Returns a warning if a step has nothing to learn from, with the reason."""
        reason = why_no_signal(groups, samples, self._estimator)
        if reason is None:
            return None
        reason = shown_text(reason)
        self._last_reason = f"step {step}: {reason}"
        text = (
            f"no group of step {step} has signal, so nothing is learnt: {reason}. "
            f"{self._where_to_look}"
        )
        return RunWarning(step, NO_SIGNAL, text, {"groups": float(len(groups))})

    def _warn(self, warnings: Iterable[RunWarning | None]) -> None:
        """Logs those of these warnings whose names were not logged in this run yet."""
        for warning in warnings:
            if warning is not None and self._warning_log.add(warning):
                logger.warning(warning.text)
                self.progress.warned(warning.step, warning.name)


def _where_to_look(config: AjetConfig, folder: RunFolder) -> str:
    """Returns the commands that show episodes, with paths from the current folder."""
    look = f"`ajet view {shown_path(folder.path)}` shows its episodes"
    if config.yaml_path is None:
        return look
    given = shown_overrides(config.overrides, config.ajet.not_secret)
    command = shlex.join(["ajet", "debug", "--conf", shown_path(config.yaml_path), *given])
    return f"{look}, `{command}` runs a few in full"
