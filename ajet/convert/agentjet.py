"""Converts AgentJet's YAML. Keys that moved are renamed; keys that ajet refuses are left out. Keys
of verl next to `ajet:` are left to `ajet convert --from verl`.
"""

from copy import deepcopy
from typing import Any

from ajet.convert.draft import Absent, Draft, ajet_defaults, take_schedule
from ajet.core.config import agentjet_keys
from ajet.core.config.nested import flatten, get_key
from ajet.core.config.renames import JUDGE, JUDGE_MODELS, RENAMED, take_judge_models

TRAINER = "ajet.trainer_common"
TYPED = ("ajet", "verl", "trinity")
ENVIRONMENTS = "ajet.environment.custom_envs"
"""Copied as a whole, because a tag may contain a dot and is not a key of the config."""
BOILERPLATE = ("hydra", "defaults")
OTHERS = ("actor_rollout_ref", "data", "critic", "algorithm", "trainer", "reward_model")

DEFAULTS: dict[str, Any] = {
    "ajet.rollout.compute_madness_checklist": ["nonsense"],
    "ajet.trainer_common.optim.weight_decay": 0.01,
    "ajet.trainer_common.algorithm.clip_high": 0.2,
    "ajet.trainer_common.algorithm.dual_clip": 3.0,
}

SCHEDULE = f"{TRAINER}.optim.lr_scheduler_type"
RENAMED_HERE = {
    **{key: name for key, name in RENAMED.items() if key != SCHEDULE},
    "ajet.rollout.val_kwargs.num_repeat": f"{TRAINER}.val_pass_n",
}
WARMUP = f"{TRAINER}.optim.lr_warmup_steps"
CHOICES = {
    **agentjet_keys.OTHER_NAMES,
    (
        f"{JUDGE}.judge_protocol",
        "ajet.task_judge.env_service_as_judge->EnvServiceJudge",
    ): "env_service",
}
ABSENT: dict[str, Absent] = {
    key: Absent(absent.reason, off=absent.off, algorithm=absent.refused)
    for key, absent in agentjet_keys.ABSENT.items()
    if key != WARMUP
}


def take(draft: Draft) -> None:
    """Copies ajet's keys and the user's sections."""
    for name, section in draft.read.values.items():
        if name in BOILERPLATE or section is None:
            draft.ignore(name)
        elif name in OTHERS:
            draft.refuse(name, "a section of verl's; `ajet convert --from verl` reads those")
        elif name not in TYPED:
            draft.ignore(name)
            draft.result.sections[name] = section
    if draft.has_key(ENVIRONMENTS):
        draft.copy(ENVIRONMENTS, ENVIRONMENTS)
    tree = ajet_defaults()
    written = {
        key: value
        for key, value in flatten(draft.read.values).items()
        if key.split(".")[0] in TYPED and not key.startswith(f"{ENVIRONMENTS}.")
    }
    for key, value in written.items():
        # The key, or a section above it, may have moved.
        old = next((old for old in RENAMED_HERE if f"{key}.".startswith(f"{old}.")), None)
        target = key if old is None else RENAMED_HERE[old] + key[len(old) :]
        parents = (target.rsplit(".", count)[0] for count in range(1, target.count(".") + 1))
        # The tree has this key, or a mapping above it that takes any key.
        if target not in tree and not any(tree.get(parent) == {} for parent in parents):
            continue
        draft.ignore(key)
        if target == key:
            draft.set(key, CHOICES.get((key, str(value)), value), key)
        elif value is not None and not draft.has_key(target):  # the present name wins
            draft.set(target, float(value) if key.endswith(".lora_alpha") else value, key)
    _judge_model(draft)
    for key, value in DEFAULTS.items():
        if key not in draft.result.values:
            draft.set(key, value, key)
    old_logprobs = f"{TRAINER}.algorithm.old_logprobs"
    if old_logprobs not in draft.result.values and draft.take("ajet.backbone") != "trinity":
        draft.set(old_logprobs, "trainer", old_logprobs)
    _warmup(draft)
    take_schedule(draft, SCHEDULE, f"{TRAINER}.total_training_steps")


def _judge_model(draft: Draft) -> None:
    """Converts the judging model, whose former key depends on the judge."""
    values = deepcopy(draft.read.values)
    notices = take_judge_models(values)
    for key in (f"{JUDGE}.{name}" for name in JUDGE_MODELS.values()):
        if get_key(draft.read.values, key) is None:
            continue
        if any(f"{key}=" in notice for notice in notices):
            draft.leave_out(key, f"another judge's; this one's is {JUDGE}.model_name")
        else:
            draft.ignore(key)
            draft.set(f"{JUDGE}.model_name", get_key(values, f"{JUDGE}.model_name"), key)


def _warmup(draft: Draft) -> None:
    """Converts the warm-up from training steps (-1 for none) to optimizer steps."""
    steps = draft.number(WARMUP)
    if steps > 0:
        updates = draft.number(f"{TRAINER}.mini_batch_num") or 1
        epochs = draft.number(f"{TRAINER}.ppo_epochs") or 1
        draft.set(f"{TRAINER}.optim.warmup_steps", steps * updates * epochs, WARMUP)
