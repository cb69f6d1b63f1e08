"""Defines `ajet.environment`: environments that an agent acts in, with ROLL's names.

Four of ROLL's keys belong to other sections and are also accepted here (renames.py):

    train_env_manager.num_env_groups          data.train_batch_size
    train_env_manager.group_size              rollout.num_repeat
    train_env_manager.group_size_redundancy   rollout.group_size_redundancy
    val_env_manager.group_size                trainer_common.val_pass_n
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ajet.core.config.section import Section


class CustomEnv(Section):
    """Configures one environment and how it is shown to the agent. Its name is the tag of its
    episodes."""

    env_type: str = Field(
        description="frozen_lake, sokoban, webshop, countdown, guess_number, a Gymnasium id, "
        "textarena:ID, reasoning_gym:NAME, openenv:URL, textworld:NAME, scienceworld:NAME, "
        "miniwob:NAME, env_service, or your own class as file.py->Class."
    )
    env_config: dict[str, Any] = Field(default={}, description="The environment's own settings.")
    max_steps: int = Field(default=10, ge=1, description="Actions of one episode at most.")
    max_tokens_per_step: int = Field(default=128, ge=1, description="Tokens of one reply at most.")
    env_manager_cls: str = Field(
        default="traj_env_agent",
        description="Who plays: traj_env_agent keeps the whole conversation (StarPO), "
        "step_env_agent shows each step alone (GiGPO), or your own agent's registered name.",
    )
    agent_system_template: str = Field(
        default="{env_instruction}", description="System prompt; empty has none."
    )
    agent_template: str | None = Field(
        default=None,
        description="What the model is shown at each step, with {observation}, {history}, "
        "{turn_idx}, {actions_left} and more; null is the agent's own.",
    )
    action_pattern: str | None = Field(
        default="<answer>(.*?)</answer>",
        description="Where a reply says its action: the last match's first group; null takes all.",
    )
    history_length: int = Field(
        default=2, ge=0, description="Earlier steps that step_env_agent shows."
    )
    format_penalty: float | None = Field(
        default=None, le=0, description="As its managers' format_penalty; null takes theirs."
    )
    isolation: Literal["auto", "inline", "thread", "process"] = Field(
        default="auto",
        description="Where its calls run; auto: our quick games in place, others in a thread.",
    )
    step_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds until a call of it fails; not in place."
    )


class EnvManager(Section):
    """Configures which environments an episode is drawn from."""

    tags: list[str] = Field(default=[], description="Names of custom_envs; empty takes all.")
    num_groups_partition: list[int] = Field(
        default=[], description="Groups of each tag; empty divides them evenly."
    )
    max_env_num_per_worker: int = Field(
        default=16, ge=1, description="Environments of one process, with isolation process."
    )
    format_penalty: float = Field(
        default=0.0,
        le=0,
        description="Added to the reward of a step whose action could not be read.",
    )


class ValEnvManager(EnvManager):
    """Configures the environments of validation."""

    num_env_groups: int = Field(default=64, ge=0, description="Held-out instances.")


class EnvironmentConfig(Section):
    """Configures environments, which are used with task_reader.type: environment."""

    custom_envs: dict[str, CustomEnv] = Field(default={}, description="The environments, by tag.")
    train_env_manager: EnvManager = Field(default=EnvManager(), description="Training episodes.")
    val_env_manager: ValEnvManager = Field(
        default=ValEnvManager(), description="Validation episodes."
    )
    render_save_dir: str | None = Field(
        default=None,
        description="A folder for GIFs and PNGs of validation episodes, those of ajet eval in its "
        "folder eval; a relative one is in the run folder; null draws none.",
    )
    max_rendered_episodes: int = Field(
        default=8, ge=1, description="Episodes of one validation that are drawn, the first ones."
    )

    @model_validator(mode="after")
    def _tags_exist(self) -> Self:
        for name in ("train_env_manager", "val_env_manager"):
            manager = getattr(self, name)
            unknown = [tag for tag in manager.tags if tag not in self.custom_envs]
            if unknown:
                names = ", ".join(self.custom_envs) or "none"
                raise ValueError(f"{name}.tags: {unknown[0]!r} is not in custom_envs ({names})")
            tags = manager.tags or list(self.custom_envs)
            if len(set(tags)) < len(tags):
                raise ValueError(
                    f"{name}.tags names an environment twice; see num_groups_partition"
                )
            num_groups = manager.num_groups_partition
            if num_groups and len(num_groups) != len(tags):
                raise ValueError(
                    f"{name}.num_groups_partition has {len(num_groups)} numbers for "
                    f"{len(tags)} tags"
                )
        return self
