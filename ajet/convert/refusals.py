"""Leaves out the values that ajet's config refuses, with the config's messages as reasons.

    values  ->  pydantic, refused keys  ->  the refused ones are left out  ->  again

So a converted config loads, except for a missing ajet.model.path, which is listed as a to-do.
"""

from pydantic import ValidationError

from ajet.convert.draft import DEFAULT, Category, Conversion, OmittedKey
from ajet.convert.source import unflatten
from ajet.core.config.explain import message_of
from ajet.core.config.support import refusals_and_notices, unread_keys
from ajet.core.config.tree import AjetConfig

ALGORITHM = (
    "ajet.trainer_common.algorithm",
    "ajet.trainer_common.critic",
    "ajet.trainer_common.optim",
    "ajet.trainer_common.lora",
    "ajet.trainer_common.use_kl",
    "ajet.trainer_common.kl_",
    "ajet.trainer_common.ppo_epochs",
    "ajet.trainer_common.mini_batch_num",
    "ajet.rollout.temperature",
    "ajet.rollout.top_",
    "ajet.rollout.num_repeat",
    "ajet.rollout.agent_madness",
    "ajet.rollout.compute_madness",
    "ajet.rollout.enable_oversample",
    "ajet.data.train_batch_size",
    "ajet.environment.custom_envs",
    "ajet.environment.train_env_manager",
    "ajet.task_judge",
)
"""Prefixes of the keys that decide what is trained, and how."""


def drop_refused(result: Conversion) -> None:
    """Removes values that ajet's config refuses from the result, until it refuses none."""
    while True:  # pydantic's errors hide refusals of later checks, so one pass is not enough
        try:
            config = AjetConfig.model_validate(unflatten(result.values))
        except ValidationError as error:
            # One value may have several errors, one for each type that it could have.
            details = error.errors(include_url=False)[0]
            key = ".".join(part for part in details["loc"] if isinstance(part, str))
            is_unknown = details["type"] == "extra_forbidden"
            _drop(result, key, "no such key here" if is_unknown else message_of(details))
            continue
        refused, _ = refusals_and_notices(config)
        for key, reason in refused:
            _drop(result, key, reason)
        if not refused:
            # Defaults of the other system at keys that nothing reads would only be noise.
            for key in unread_keys(config.ajet):
                for name in [name for name in result.values if f"{name}.".startswith(f"{key}.")]:
                    if DEFAULT in result.origins[name]:
                        del result.values[name], result.origins[name]
            return


def _drop(result: Conversion, key: str, reason: str) -> None:
    """Removes the value at this key, or all values below it."""
    # The error may be about something inside a value: go up to a key that the result has.
    while not (keys := [name for name in result.values if _touches(name, key)]) and "." in key:
        key = key.rpartition(".")[0]
    for name in keys:
        category: Category = "algorithm" if name.startswith(ALGORITHM) else "machine"
        value, origin = result.values.pop(name), result.origins.pop(name)
        result.left_out.append(OmittedKey(origin, value, f"{name}: {reason}", category))


def _touches(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.")
