"""The record of a training run, in its folder, so that `ajet view` and other readers understand it.

    forward_backward   record.add(…)     its data are kept until the step
    optim_step         record.step(…)    episodes.sqlite, and a row of logs/metrics.jsonl
    (a failure)        record.clear()    the gradients are dropped, and the data with them

The record only reads what training has computed. Where it cannot be written, training continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.errors import AjetError
from ajet.core.record.atomic_file import writing
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.update.settings import LoraSettings
from ajet.serve.tinker.step_data import StepData, StepEpisodes, TextOf
from ajet.serve.tinker.wire import Datum, LossResult


@dataclass(frozen=True)
class RunInputs:
    """What a run folder gets when its training run begins, so that it can be read by itself."""

    config: AjetConfig
    stop_token_ids: tuple[int, ...]
    tokenizer: Path
    text_of: TextOf

    def write(self, folder: RunFolder, lora: LoraSettings | None) -> None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        folder.save_config(self._config_with(lora))
        begun = datetime.now().isoformat(timespec="seconds")
        RunOrigin.from_config(self.config, self.stop_token_ids, begun).write(folder.origin_json)
        with writing(folder.tokenizer):
            shutil.copytree(self.tokenizer, folder.tokenizer, dirs_exist_ok=True)

    def _config_with(self, lora: LoraSettings | None) -> AjetConfig:
        numbers = {"rank": lora.rank, "alpha": lora.alpha} if lora else {"rank": 0}
        section = "ajet.trainer_common.lora"
        return with_values(self.config, {f"{section}.{name}": n for name, n in numbers.items()})


class StepRecord:
    """Records the steps of one training run; used by the thread that trains."""

    def __init__(self, folder: RunFolder, text_of: TextOf, last_step: int = 0) -> None:
        """Continues after `last_step`: what was recorded of later steps is removed."""
        self.last_step = last_step
        self._folder, self._text_of, self._since = folder, text_of, StepData()
        self._store = EpisodeStore(folder.episodes_db)
        self._store.truncate_from(last_step + 1)
        self._metrics = MetricsLogger([], folder, start_step=last_step + 1)

    def add(
        self, loss_fn: str, config: Mapping[str, float], data: Sequence[Datum], result: LossResult
    ) -> None:
        """Adds a request whose gradients the next step takes."""
        self._since.add(loss_fn, config, data, result)

    def clear(self) -> None:
        """Drops the data since the last step."""
        self._since = StepData()

    def step(self, metrics: Mapping[str, float]) -> None:
        """Writes the data since the last step as the next one; `metrics` are the optimizer's."""
        self.last_step += 1
        since, self._since = self._since, StepData()
        groups = since.groups()
        episodes = StepEpisodes(self.last_step, groups, self._text_of)
        parts = episodes.groups, episodes.advantages, episodes.samples, episodes.tokens
        try:
            self._store.write(self.last_step, *parts)
            self._metrics.log(self.last_step, {**since.metrics(groups), **metrics})
        except AjetError as error:
            logger.warning(f"step {self.last_step} of {self._folder.path} is not recorded: {error}")

    def close(self) -> None:
        self._metrics.close()
        self._store.close()
