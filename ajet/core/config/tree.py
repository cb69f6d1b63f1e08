"""Defines the whole config as one tree.

    config.ajet.rollout.num_repeat     typed, checked, frozen
    config.verl…, config.trinity…      the same
    config.frozen_lake.size            the user's own section, as written in the YAML
    config.run_folder, config.notices  derived

`load_config` (load.py) makes it.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from ajet.core.config.cluster import TrinityConfig, VerlConfig
from ajet.core.config.environment import EnvironmentConfig
from ajet.core.config.kinds import (
    DistillationConfig,
    Kind,
    PreferenceConfig,
    RowsConfig,
    SupervisedConfig,
)
from ajet.core.config.model import ModelConfig
from ajet.core.config.rollout import Decoding, RolloutConfig
from ajet.core.config.section import Section
from ajet.core.config.services import (
    ContextTrackerConfig,
    DebugConfig,
    HarnessConfig,
    InterchangeServerConfig,
    ServeConfig,
)
from ajet.core.config.task_judge import TaskJudgeConfig
from ajet.core.config.task_reader import DataConfig, TaskReaderConfig
from ajet.core.config.trainer import TrainerConfig
from ajet.core.text.error_text import did_you_mean

Backbone = Literal["debug", "verl", "trinity"]
FIXED_IN_STAGES = {"experiment_name", "experiment_dir", "project_name", "backbone", "stages"}
"""Keys that a stage cannot change."""
MAX_NAME_BYTES = 240
"""File systems take 255 bytes for a name; a run that is set aside gets a number as its suffix."""


class AjetSection(Section):
    """Configures everything under `ajet:`."""

    project_name: str = Field(
        default="ajet_project", description="Groups experiments in a logger's page."
    )
    experiment_name: str = Field(
        default="read_yaml_name",
        min_length=1,
        description="Names the run folder; read_yaml_name takes the YAML file's name.",
    )
    experiment_dir: str = Field(
        default="auto", description="The run folder; auto is launcher_record/<experiment_name>."
    )
    backbone: Backbone = Field(
        default="debug", description="Where the loop runs: debug, verl or trinity."
    )
    kind: Kind = Field(
        default="reinforcement",
        description="What the run learns from: reinforcement (rewards of sampled episodes), "
        "supervised (given replies), preference (replies of which one is better) or distillation "
        "(a teacher's log-probabilities).",
    )
    supervised: SupervisedConfig = Field(
        default=SupervisedConfig(), description="Learning from rows of chat messages."
    )
    preference: PreferenceConfig = Field(
        default=PreferenceConfig(), description="Learning from pairs of replies."
    )
    distillation: DistillationConfig = Field(
        default=DistillationConfig(), description="Learning from a teacher."
    )
    stages: dict[str, dict[str, Any] | None] = Field(
        default={},
        description="Runs one after another, by their names: keys below ajet that differ in each. "
        "A stage begins from the model of the stage before.",
    )
    seed: int = Field(
        default=0, ge=0, description="The run's seed; every draw of the run follows from it."
    )
    not_secret: list[str] = Field(
        default=[],
        description="Dotted paths of values in sections of your own, env_config and the like that "
        "may be stored and shown, as my_agent.style or my_agent.*; ajet masks the rest.",
    )
    model: ModelConfig = Field(default=ModelConfig(), description="The model in training.")
    data: DataConfig = Field(default=DataConfig(), description="Batch size and token ceilings.")
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="Episodes and sampling.")
    task_reader: TaskReaderConfig = Field(default=TaskReaderConfig(), description="The tasks.")
    environment: EnvironmentConfig = Field(
        default=EnvironmentConfig(), description="Games and other environments."
    )
    harness: HarnessConfig = Field(
        default=HarnessConfig(), description="Command-line agents as workflows."
    )
    task_judge: TaskJudgeConfig = Field(default=TaskJudgeConfig(), description="The reward.")
    context_tracker: ContextTrackerConfig = Field(
        default=ContextTrackerConfig(), description="Tokens of an episode."
    )
    debug: DebugConfig = Field(default=DebugConfig(), description="`ajet debug`.")
    trainer_common: TrainerConfig = Field(default=TrainerConfig(), description="Training.")
    interchange_server: InterchangeServerConfig = Field(
        default=InterchangeServerConfig(), description="The HTTP gateway."
    )
    serve: ServeConfig = Field(
        default=ServeConfig(), description="`ajet serve`: episodes that clients run."
    )

    @field_validator("experiment_name")
    @classmethod
    def _is_one_name(cls, name: str) -> str:
        if name in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name):
            raise ValueError("it names one folder, so give a name, not a path")
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise ValueError(f"it names one folder, so give at most {MAX_NAME_BYTES} bytes")
        return name

    @field_validator("stages")
    @classmethod
    def _are_folder_names(cls, stages: dict[str, Any]) -> dict[str, Any]:
        for name, changed in stages.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise ValueError(
                    f"{name!r} names a folder: give letters, digits, - and _, beginning with a "
                    "letter or a digit"
                )
            if fixed := FIXED_IN_STAGES & (changed or {}).keys():
                raise ValueError(f"{name}: all stages share {min(fixed)}: set it above them")
        return stages

    @property
    def rows(self) -> RowsConfig | None:
        """Returns what a run on given replies says of its rows; None for other runs."""
        match self.kind:
            case "supervised":
                return self.supervised
            case "preference":
                return self.preference
        return None


class UserSection(dict[str, Any]):
    """Holds a section of the user's own: a mapping whose keys are attributes too.

    A key hides a method of the same name, so `section.items` may be the key; use `dict(section)`.
    """

    def __getattribute__(self, name: str) -> Any:
        is_key = not name.startswith("__") and name in self
        return self[name] if is_key else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the config section has no key {name!r}; {_hint(name, self)}")

    def __reduce__(self) -> tuple[type["UserSection"], tuple[dict[str, Any]]]:
        # The default would call `items()`, which a key may hide.
        return UserSection, (dict(self),)


def _hint(name: str, keys: Iterable[Any]) -> str:
    names = [str(key) for key in keys]
    return did_you_mean(name, names, f"it has {', '.join(names) or 'no key'}")


def _as_user_section(value: Any) -> Any:
    if isinstance(value, Mapping):
        return UserSection({key: _as_user_section(inner) for key, inner in value.items()})
    return [_as_user_section(inner) for inner in value] if isinstance(value, list) else value


CLIENT_OWNED = "client_owned"
"""The name of the workflow that `ajet serve` sets: its episodes are run by clients over HTTP."""


class AjetConfig(BaseModel):
    """Holds the root of the tree: `ajet`, `verl`, `trinity` and the user's own sections."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    ajet: AjetSection = Field(default=AjetSection(), description="The run.")
    verl: VerlConfig = Field(default=VerlConfig(), description="Backbone verl's own settings.")
    trinity: TrinityConfig = Field(
        default=TrinityConfig(), description="Backbone trinity's own settings."
    )

    _yaml_path: Path | None = PrivateAttr(None)
    _project_dir: Path | None = PrivateAttr(None)
    _notices: list[str] = PrivateAttr(default_factory=list)
    _references: dict[str, str] = PrivateAttr(default_factory=dict)
    _stage: str | None = PrivateAttr(None)
    _overrides: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="before")
    @classmethod
    def _wrap_user_sections(cls, values: Any) -> Any:
        return {
            key: value if key in cls.model_fields else _as_user_section(value)
            for key, value in values.items()
        }

    if not TYPE_CHECKING:  # a type checker would then accept every name as a section

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):
                    raise
                sections = [*type(self).model_fields, *self.user_sections()]
                hint = _hint(name, sections)
                raise AttributeError(f"the config has no section {name!r}; {hint}") from None

    @property
    def yaml_path(self) -> Path | None:
        return self._yaml_path

    @property
    def overrides(self) -> tuple[str, ...]:
        """Returns the command line's overrides, ``key=value``, secrets included."""
        return self._overrides

    @property
    def project_dir(self) -> Path | None:
        return self._project_dir

    @property
    def notices(self) -> list[str]:
        """Returns one line for each key that was set and has no effect here."""
        return self._notices

    @property
    def references(self) -> dict[str, str]:
        """Returns ``${oc.env:NAME}`` by the path of each value that came from the environment."""
        return self._references

    @property
    def stage(self) -> str | None:
        """Returns the name of the config's stage, if the run has stages."""
        return self._stage

    @property
    def base_dirs(self) -> list[Path]:
        """Returns the folders where the user's files and modules are looked for, in this order."""
        folders = [self._project_dir, self._yaml_path and self._yaml_path.parent, Path.cwd()]
        return list(dict.fromkeys(folder.resolve() for folder in folders if folder))

    @property
    def experiment_name(self) -> str:
        name = self.ajet.experiment_name
        if name == "read_yaml_name":
            return self._yaml_path.stem if self._yaml_path else "experiment"
        return name

    @property
    def run_folder(self) -> Path:
        """Returns the folder that everything of the run is written to."""
        folder = self.ajet.experiment_dir
        auto = Path("launcher_record") / self.experiment_name
        return auto if folder == "auto" else Path(folder).expanduser()

    @property
    def gpu_memory_utilization(self) -> float:
        section = self.trinity if self.ajet.backbone == "trinity" else self.verl
        return section.rollout.gpu_memory_utilization

    @property
    def max_staleness(self) -> int:
        """Returns the largest age of a trained token in updates; 0 on-policy."""
        is_async = self.ajet.backbone == "trinity" and self.trinity.mode != "colocate"
        return self.trinity.staleness if is_async else 0

    @property
    def kept_versions(self) -> int | None:
        """Returns how many updates older than an engine's weights those of kept keys and values may
        be; None: all are computed again."""
        keeps = self.ajet.backbone == "trinity" and self.trinity.keep_kv_cache
        return self.max_staleness if keeps else None

    def learns_from_rows(self, *, is_training: bool) -> bool:
        """Tells whether the rows of the training or the held-out split hold given replies."""
        rows = self.ajet.rows
        return rows is not None and (is_training or rows.validation == "rows")

    @property
    def samples(self) -> bool:
        """Tells whether the run needs an engine: not where the replies of both splits are given."""
        return not (
            self.learns_from_rows(is_training=True) and self.learns_from_rows(is_training=False)
        )

    @property
    def clients_run_episodes(self) -> bool:
        """Tells whether clients run the episodes. There are no rollout workers then: the episodes
        wait in the process of the run's loop."""
        return self.ajet.rollout.user_workflow == CLIENT_OWNED

    def saves_in_background(self, *, on_gpu: bool) -> bool:
        """Tells whether a checkpoint is written during the next step. `auto` does not where clients
        run the episodes: what they are told must survive a kill."""
        setting = self.ajet.trainer_common.save_in_background
        return on_gpu and not self.clients_run_episodes if setting == "auto" else setting

    @property
    def runs_on_ray(self) -> bool:
        if self.ajet.backbone == "trinity":
            return self.trinity.mode not in ("bench", "serve")
        return self.ajet.backbone != "debug"

    @property
    def has_explorer_elsewhere(self) -> bool:
        """Tells whether the run is a trainer whose episodes another command runs."""
        return self.ajet.backbone == "trinity" and self.trinity.mode == "train"

    @property
    def has_several_adapters(self) -> bool:
        return bool(self.ajet.trainer_common.lora.adapters)

    @property
    def learns_from_rewards(self) -> bool:
        """Tells whether a training episode needs a reward; distillation alone needs none."""
        return self.ajet.kind != "distillation" or self.ajet.distillation.reward_weight > 0

    @property
    def validation_repeats(self) -> int:
        """Returns the number of episodes of a validation task."""
        # An explicit number holds with greedy decoding too (with a notice): tools and environments
        # may be random though the model answers each repeat alike.
        number = self.ajet.trainer_common.val_pass_n
        return self.repeats_by_default(self.validation_decoding) if number is None else number

    @staticmethod
    def repeats_by_default(decoding: Decoding) -> int:
        """Returns the number of episodes of a validation task where the config has none."""
        return 1 if decoding == "greedy" else 4

    @property
    def validation_decoding(self) -> Decoding:
        return "greedy" if self.ajet.rollout.val_kwargs.is_greedy else "sampled"

    @property
    def second_decoding(self) -> Decoding:
        """Returns the other decoding, in which success is also measured before the first step and
        after the last."""
        return "sampled" if self.ajet.rollout.val_kwargs.is_greedy else "greedy"

    def user_sections(self) -> dict[str, Any]:
        """Returns the user's own top-level sections."""
        return dict(self.__pydantic_extra__ or {})

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, with all secrets; `redacted_config` is what may be stored."""
        return self.model_dump(mode="json")
