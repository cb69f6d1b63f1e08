"""Defines the whole config as one tree.

    config.ajet.rollout.num_repeat     typed, checked, frozen
    config.verl…, config.trinity…      the same
    config.frozen_lake.size            the user's own section, as written in the YAML
    config.run_folder, config.notices  derived

`load_config` (load.py) makes it. Not covered: whether a path or a class exists (`ajet check`).
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from ajet.core.config.cluster import TrinityConfig, VerlConfig
from ajet.core.config.data import DataConfig
from ajet.core.config.environment import EnvironmentConfig
from ajet.core.config.harness import HarnessConfig
from ajet.core.config.kinds import DistillationConfig, Kind, SupervisedConfig
from ajet.core.config.model import ModelConfig
from ajet.core.config.rollout import Decoding, RolloutConfig
from ajet.core.config.section import Section
from ajet.core.config.services import (
    ContextTrackerConfig,
    DebugConfig,
    InterchangeServerConfig,
    ServeConfig,
)
from ajet.core.config.task_judge import TaskJudgeConfig
from ajet.core.config.task_reader import TaskReaderConfig
from ajet.core.config.trainer import TrainerConfig

Backbone = Literal["debug", "verl", "trinity"]
STAGED_RUNS_OWN = {"experiment_name", "experiment_dir", "project_name", "backbone", "stages"}
"""Keys that a stage cannot change."""
MAX_NAME_BYTES = 240
"""File systems take 255 for a name, and that of a run set aside has a number behind it."""


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
        "supervised (given replies) or distillation (a teacher's log-probabilities).",
    )
    supervised: SupervisedConfig = Field(
        default=SupervisedConfig(), description="Learning from rows of chat messages."
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
        """Refuses what would name a folder somewhere else than where run folders are."""
        if name in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name):
            raise ValueError("it names one folder, so give a name that is no path")
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
            if fixed_keys := STAGED_RUNS_OWN & (changed or {}).keys():
                raise ValueError(f"{name}: {min(fixed_keys)} is that of all stages: set it above them")
        return stages


class UserSection(dict[str, Any]):
    """Holds a section of the user's own: a mapping whose keys are attributes too.

    A key comes before a method of its name: with a key `items`, `dict(section)` has the method.
    """

    def __getattribute__(self, name: str) -> Any:
        is_key = not name.startswith("__") and name in self
        return self[name] if is_key else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the config section has no key {name!r}; {_hint(name, self)}")

    def __reduce__(self) -> tuple[type["UserSection"], tuple[dict[str, Any]]]:
        return UserSection, (
            dict(self),
        )  # the default would call `items()`, which a key may replace


def _hint(name: str, keys: Iterable[Any]) -> str:
    names = [str(key) for key in keys]
    close = get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names) or 'no key'}"


def _as_user_section(value: Any) -> Any:
    if isinstance(value, Mapping):
        return UserSection({key: _as_user_section(inner) for key, inner in value.items()})
    return [_as_user_section(inner) for inner in value] if isinstance(value, list) else value


CLIENT_OWNED = "client_owned"
"""The name of the workflow that `ajet serve` sets: its episodes are run by clients over HTTP."""


class AjetConfig(BaseModel):
    """Holds the root of the tree: `ajet`, `verl`, `trinity`, and the user's own sections beside
    them."""

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

    @model_validator(mode="before")
    @classmethod
    def _wrap_user_sections(cls, values: Any) -> Any:
        typed_sections = cls.model_fields
        return {
            key: value if key in typed_sections else _as_user_section(value) for key, value in values.items()
        }

    if not TYPE_CHECKING:  # a type checker takes every name for a section of the user's own

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
        """Returns the YAML that the config was read from."""
        return self._yaml_path

    @property
    def project_dir(self) -> Path | None:
        """Returns the folder of --project-dir."""
        return self._project_dir

    @property
    def notices(self) -> list[str]:
        """Returns one line for each key that was set and has no effect here."""
        return self._notices

    @property
    def references(self) -> dict[str, str]:
        """Returns where the YAML takes a value from the environment: ``${oc.env:NAME}`` by path."""
        return self._references

    @property
    def stage(self) -> str | None:
        """Returns the name of the stage that this is the config of, if the run has stages."""
        return self._stage

    @property
    def base_dirs(self) -> list[Path]:
        """Returns the folders where the user's files and modules are looked for, in this order."""
        folders = [self._project_dir, self._yaml_path and self._yaml_path.parent, Path.cwd()]
        return list(dict.fromkeys(folder.resolve() for folder in folders if folder))

    @property
    def experiment_name(self) -> str:
        """Returns the experiment's name, with `read_yaml_name` resolved."""
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
        """Returns the engines' share of a GPU, on this backbone."""
        section = self.trinity if self.ajet.backbone == "trinity" else self.verl
        return section.rollout.gpu_memory_utilization

    @property
    def max_staleness(self) -> int:
        """Returns the number of updates that a trained token may be old; 0 where every token is
        sampled by the policy that it trains."""
        is_async = self.ajet.backbone == "trinity" and self.trinity.mode != "colocate"
        return self.trinity.staleness if is_async else 0

    def learns_from_rows(self, *, is_training: bool) -> bool:
        """Tells whether the rows of a split hold given replies: those to train on, or those that
        are held out."""
        supervised = self.ajet.kind == "supervised"
        return supervised and (is_training or self.ajet.supervised.validation == "rows")

    @property
    def samples(self) -> bool:
        """Tells whether the run asks an engine for anything: not where all replies are given."""
        gives = (self.learns_from_rows(is_training=is_training) for is_training in (True, False))
        return not all(gives)

    @property
    def clients_run_episodes(self) -> bool:
        """Tells whether clients run the episodes: these wait in the process of the run's loop, and
        there are no rollout workers."""
        return self.ajet.rollout.user_workflow == CLIENT_OWNED

    @property
    def has_several_adapters(self) -> bool:
        """Tells whether the run trains several adapters apart."""
        return bool(self.ajet.trainer_common.lora.adapters)

    @property
    def learns_from_rewards(self) -> bool:
        """Tells whether an episode of training must have a reward: with a teacher alone it need
        not."""
        return self.ajet.kind != "distillation" or self.ajet.distillation.reward_weight > 0

    @property
    def validation_repeats(self) -> int:
        """Returns the number of episodes of a validation task."""
        number = self.ajet.trainer_common.val_pass_n
        if number is None:
            # Greedy, the model answers each repeat alike. Tools and environments may be random all
            # the same, so a number that is given is played as it is, and `notices` has a line.
            return self.repeats_by_default(self.validation_decoding)
        return number

    @staticmethod
    def repeats_by_default(decoding: Decoding) -> int:
        """Returns the number of episodes of a validation task where the config has none."""
        return 1 if decoding == "greedy" else 4

    @property
    def validation_decoding(self) -> Decoding:
        """Returns how the run's validations draw replies."""
        return "greedy" if self.ajet.rollout.val_kwargs.is_greedy else "sampled"

    @property
    def second_decoding(self) -> Decoding:
        """Returns the other way to draw replies, in which success is measured before the first step
        and after the last."""
        return "sampled" if self.ajet.rollout.val_kwargs.is_greedy else "greedy"

    def user_sections(self) -> dict[str, Any]:
        """Returns the user's own top-level sections."""
        return dict(self.__pydantic_extra__ or {})

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, with all secrets; `redacted_config` is what may be stored."""
        return self.model_dump(mode="json")
