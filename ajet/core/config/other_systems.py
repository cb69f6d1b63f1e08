"""Recognises a config of another system by keys that no other system has.

    buffer.explorer_input: …          Trinity-RFT
    actor_rollout_ref: …              verl, also where a script's arguments were read

Not covered: what the keys mean (`ajet convert`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

MARKS = {
    "roll": (
        "ROLL",
        ("actor_train", "actor_infer", "custom_envs", "train_env_manager", "rollout_batch_size"),
    ),
    "verl": ("verl", ("actor_rollout_ref", "data.train_files", "algorithm.adv_estimator")),
    "chatlearn": ("ChatLearn", ("runtime_args", "models.policy_trainer", "models.policy")),
    "agentjet": ("AgentJet", ("ajet", "astuner")),
    "trinity": (
        "Trinity-RFT",
        (
            "buffer.explorer_input",
            "buffer.trainer_input",
            "algorithm.algorithm_type",
            "synchronizer.sync_method",
            "model.model_path",
        ),
    ),
}
"""Maps the name that `ajet convert --from` takes to the system's own and the keys that mark it."""


class Recognised(NamedTuple):
    """A system, as `ajet convert --from` names it and as its users do, and the key that shows
    it."""

    name: str
    title: str
    key: str


def recognise(values: Mapping[str, Any]) -> list[Recognised]:
    """Returns the systems whose marks a config has."""
    marked = (
        (name, title, next((key for key in keys if _has(values, key)), None))
        for name, (title, keys) in MARKS.items()
    )
    return [Recognised(name, title, key) for name, title, key in marked if key is not None]


def _has(values: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True
