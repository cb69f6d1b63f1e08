"""Recognises a config of another system by keys that no other system has.

buffer.explorer_input: …          Trinity-RFT
actor_rollout_ref: …              verl, also where a script's arguments were read
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
"""Maps the name that `ajet convert --from` takes to the system's name and the keys that mark it."""


class Recognised(NamedTuple):
    """Holds a system, as `ajet convert --from` and as its users call it, and a key that marks
    it."""

    name: str
    title: str
    key: str


def recognise(values: Mapping[str, Any]) -> list[Recognised]:
    """Returns the systems whose marks a config has."""
    systems = []
    for name, (title, keys) in MARKS.items():
        key = next((key for key in keys if _has(values, key)), None)
        if key is not None:
            systems.append(Recognised(name, title, key))
    return systems


def _has(values: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True
