"""One round of learning: the sessions of the log, in their order, make a version of the weights.
The same log, config and base model give the same bits in any process, so `rebuild` trains the
promoted versions again from these alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ajet import assembly
from ajet.core.advantage import ESTIMATORS
from ajet.core.checkpoint.checkpoint import WEIGHT_PREFIX
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.learning.learner import Learner, TrainBatch
from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.policy import Policy
from ajet.core.weight_sync.manifest import Manifest, TensorInfo
from ajet.engines.in_process import InProcessEngine
from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.log import FILE, RatedSession, SessionLog, episode_of

LONE_ESTIMATORS = [
    name
    for name, row in ESTIMATORS.items()
    if not row.compares_group and not row.needs_greedy_episode
]
"""The estimators that give an episode without a group an advantage: traffic has no groups, so each
session is a group of one episode, and an estimator must compare over the batch."""


class RoundLearner:
    """The policy and its optimizer, or those of each adapter, at some version (0: untrained). A
    round trains one adapter; its checkpoint holds all adapters as they are served together with
    that version."""

    def __init__(self, config: AjetConfig, folder: RunFolder) -> None:
        """`folder` has the images of the sessions, if the model sees any."""
        assembly.prepare_torch(config)
        self.config = config
        images = assembly.run_images(config, folder)
        self.loaded = assembly.load_policy_model(config, images=images)
        self.template = assembly.make_template(self.loaded)
        self.learner = assembly.make_learner(config, self.loaded)
        keep = max(
            config.ajet.trainer_common.max_checkpoints_to_keep, config.ajet.serve.learn.num_versions
        )
        self._checkpoints = LearnerCheckpoints(self.learner, self.loaded, keep=keep)

    def load(self, checkpoints: Path, version: int) -> None:
        """Loads a version that was saved in this folder; 0 is the initial one."""
        if version:
            self._checkpoints.load(version_path(checkpoints, version))

    def save(self, checkpoints: Path, version: int) -> None:
        self._checkpoints.save(checkpoints, version, {})

    def train(self, groups: Sequence[Group], number: int) -> tuple[TrainBatch, dict[str, float]]:
        """Trains on the groups of a round; returns its batch and the metrics of the update. The
        update's ratio is to the recorded log-probabilities, so for tokens of an older version it is
        the importance ratio."""
        batch = self.learner.make_batch(groups)
        return batch, self.learner.update(number, batch)

    def policy(self, adapter: str) -> Policy:
        """Returns the policy of an adapter, or of the model where there are none."""
        if isinstance(self.learner, Learner):
            return self.learner.policy
        return self.learner.learners[adapter].policy

    def checksum(self, version: int, adapter: str) -> str:
        """Returns a checksum of all weights that this version has trained."""
        tensors = self.policy(adapter).state_dict().tensors
        weights = {name: t for name, t in tensors.items() if name.startswith(WEIGHT_PREFIX)}
        infos = (TensorInfo.of(name, tensor) for name, tensor in weights.items())
        return Manifest(version, tuple(infos)).checksum

    def make_engine(self, version: int) -> InProcessEngine:
        """Makes an engine over the current weights whose results do not depend on timing."""
        engine = assembly.make_engine(
            self.config,
            self.loaded,
            self.template,
            deterministic=True,
            adapters=self.learner.models,
        )
        engine.publish(version)
        return engine


def groups_of(sessions: Sequence[RatedSession], number: int) -> list[Group]:
    """Returns the sessions of a round as judged episodes, each alone in a group."""
    groups: list[Group] = []
    for index, session in enumerate(sessions):
        episode = episode_of(session.session, session.turns, round_number=number, index=index)
        judged = replace(episode, reward=session.reward, is_success=session.reward > 0)
        groups.append(Group(judged.group_id, (judged,), judged.workflow_task.task))
    return groups


def version_path(checkpoints: Path, version: int) -> Path:
    return checkpoints / f"step_{version:06d}"


@dataclass(frozen=True, slots=True)
class RebuiltVersion:
    """A version's checksum in the log, and that of the rebuilt weights."""

    version: int
    recorded: str | None
    rebuilt: str
    adapter: str = ""

    @property
    def is_same(self) -> bool:
        return self.recorded == self.rebuilt


def rebuild(run: RecordedRun, out: Path | None = None) -> Iterator[RebuiltVersion]:
    """Yields the promoted versions as they are rebuilt, up to the first one that differs. Saves
    them as checkpoints in the folder `out`, if there is one.

    No checkpoint is read. Equal checksums mean that every weight has the same bits as the one that
    was served; other package versions or another machine may round differently."""
    if not (run.folder.path / FILE).exists():
        raise CheckpointError(
            f"{run.folder.path} is not a run of `ajet serve --learn`: it has no {FILE}",
            code=Code.RUN_NOT_FOUND,
        )
    log = SessionLog(run.folder.path)
    os.chdir(run.current_folder)  # the model's path may be relative
    learner, versions = RoundLearner(run.config, run.folder), dict[str, int]()
    for round_ in log.rounds():
        if round_.state != "promoted":
            continue
        version, adapter = round_.number, round_.adapter
        base = versions.get(adapter, 0)
        assert round_.base == base, f"round {version} began from {round_.base}"
        versions[adapter] = version
        learner.train(groups_of(log.sessions_of(version), version), version)
        checksum = learner.checksum(version, adapter)
        rebuilt = RebuiltVersion(version, round_.checksum, checksum, adapter)
        if out is not None:
            learner.save(out, version)
        yield rebuilt
        if not rebuilt.is_same:
            break
    log.close()
