"""Computes a run's size before it starts: from tasks to episodes, optimizer steps and tokens.

264 tasks a step x 4 episodes = 1,056 episodes a step; 7,473 tasks / 264 = 28.3 steps an epoch
"""

import random
from dataclasses import dataclass
from typing import Literal

from ajet.core import seeding
from ajet.core.config import AjetConfig
from ajet.core.rollout.batch import BatchSettings
from ajet.core.task.cursor import DataCursor
from ajet.core.task.task import Task

AUTO_TASKS = 100
TaskLimit = int | Literal["auto"] | None


@dataclass(frozen=True)
class BatchPlan:
    """Computes the size of a run with this config and these numbers of tasks."""

    config: AjetConfig
    num_tasks: int
    num_validation_tasks: int

    @property
    def total_steps(self) -> int:
        trainer = self.config.ajet.trainer_common
        if trainer.total_training_steps is not None:
            return trainer.total_training_steps
        return DataCursor(self.num_tasks, self.tasks_per_step, seed=0).total_steps(
            trainer.total_epochs
        )

    @property
    def tasks_per_step(self) -> int:
        """Returns the number of tasks that a step takes from the data, without further rounds of
        dynamic sampling."""
        return BatchSettings.from_config(self.config).first_round

    @property
    def episodes_per_step(self) -> int:
        """Returns the number of episodes that a step trains on if none fails."""
        return self.config.ajet.data.train_batch_size * self.config.ajet.rollout.num_repeat

    @property
    def max_episodes_per_step(self) -> int:
        """Returns the largest number of episodes that start in a step, with redundancy,
        oversampling, the rounds of dynamic sampling and greedy baselines."""
        settings = BatchSettings.from_config(self.config)
        rounds = max(settings.max_rounds - 1, 0)
        tasks = settings.first_round + rounds * settings.train_batch_size
        greedy = settings.train_batch_size if settings.has_baselines else 0
        return tasks * settings.group_size + greedy

    @property
    def optimizer_steps_per_step(self) -> int:
        """Returns the number of optimizer steps of a step: at most one for each group, since a
        mini-batch has whole groups."""
        groups = self.config.ajet.data.train_batch_size
        return min(self.config.ajet.trainer_common.mini_batch_num, groups)

    @property
    def validation_episodes(self) -> int:
        return self._num_measured_tasks * self.config.validation_repeats

    @property
    def _num_measured_tasks(self) -> int:
        return sample_size(self.num_validation_tasks, self.config.ajet.data.val_max_tasks)

    @property
    def tokens_per_episode(self) -> int:
        """Returns the largest number of tokens of one timeline."""
        data = self.config.ajet.data
        ceiling = data.max_prompt_length + data.max_response_length
        return min(ceiling, self.config.ajet.rollout.max_model_len)

    def figures(self) -> dict[str, int]:
        """Returns the numbers by name, for programs."""
        names = (
            "num_tasks",
            "num_validation_tasks",
            "tasks_per_step",
            "episodes_per_step",
            "optimizer_steps_per_step",
            "total_steps",
            "validation_episodes",
            "tokens_per_episode",
        )
        return {name: getattr(self, name) for name in names}

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, number, origin) for a table."""
        ajet = self.config.ajet
        batch, repeat = ajet.data.train_batch_size, ajet.rollout.num_repeat
        mini, requested = self.optimizer_steps_per_step, ajet.trainer_common.mini_batch_num
        steps, episodes, tokens = self.total_steps, self.episodes_per_step, self.tokens_per_episode
        turn = min(ajet.rollout.max_response_length_in_one_turn, tokens)
        return [
            ("training tasks", f"{self.num_tasks:,}", ajet.task_reader.type),
            ("tasks per step", f"{batch:,}", "data.train_batch_size"),
            (
                "batches per epoch",
                f"{self.num_tasks / self.tasks_per_step:,.1f}",
                f"{self.num_tasks:,} / {self.tasks_per_step}",
            ),
            ("episodes per step", f"{episodes:,}", f"{batch} x {repeat} (rollout.num_repeat)"),
            *self._surplus_row(),
            (
                "optimizer steps per step",
                f"{mini:,}",
                "trainer_common.mini_batch_num"
                if mini == requested
                else "one for each task at most",
            ),
            ("steps", f"{steps:,}", "total_training_steps, or total_epochs passes"),
            ("episodes in all", f"{steps * episodes:,}", f"{steps:,} x {episodes:,}"),
            ("optimizer steps in all", f"{steps * mini:,}", f"{steps:,} x {mini}"),
            (
                "validation tasks",
                f"{self._num_measured_tasks:,}",
                f"of {self.num_validation_tasks:,} held-out tasks: data.val_max_tasks",
            ),
            (
                "validation episodes",
                f"{self.validation_episodes:,}",
                f"x {self.config.validation_repeats} (trainer_common.val_pass_n)",
            ),
            ("tokens of a reply", f"<= {turn:,}", "rollout.max_response_length_in_one_turn"),
            ("tokens of an episode", f"<= {tokens:,}", "max_prompt + max_response, max_model_len"),
            ("tokens of a step", f"<= {episodes * tokens:,}", f"{episodes:,} x {tokens:,}"),
        ]

    def _surplus_row(self) -> list[tuple[str, str, str]]:
        """Returns a row with the number of episodes that may start, if more than are trained."""
        if self.max_episodes_per_step == self.episodes_per_step:
            return []
        rollout, algorithm = self.config.ajet.rollout, self.config.ajet.trainer_common.algorithm
        causes = {
            "rollout.group_size_redundancy": rollout.group_size_redundancy > 0,
            "rollout.enable_oversample": rollout.enable_oversample,
            "algorithm.dynamic_sampling": algorithm.dynamic_sampling.enable,
            algorithm.adv_estimator: algorithm.estimator.needs_greedy_episode,
        }
        names = ", ".join(name for name, is_one in causes.items() if is_one)
        return [("episodes that begin", f"<= {self.max_episodes_per_step:,}", f"a step: {names}")]


def sample_size(num_tasks: int, limit: TaskLimit) -> int:
    if limit is None:
        return num_tasks
    return min(num_tasks, AUTO_TASKS if limit == "auto" else limit)


def validation_sample(tasks: list[Task], config: AjetConfig) -> list[Task]:
    """Returns the held-out tasks that a run is measured on at every validation: with
    `val_max_tasks` "auto" up to 100, drawn by the run's seed, with N the first N, else all. They
    are in the order of `tasks`.

    The standard error of success on n tasks is at most 0.5 / sqrt(n): 5 points for 100. That of the
    difference between two validations is smaller, since they have the same tasks and seeds.
    """
    limit = config.ajet.data.val_max_tasks
    size = sample_size(len(tasks), limit)
    if limit != "auto" or size == len(tasks):
        return tasks[:size]
    draw = random.Random(seeding.derive(config.ajet.seed, "validation_sample"))
    return [tasks[index] for index in sorted(draw.sample(range(len(tasks)), size))]
