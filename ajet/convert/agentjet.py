"""Converts AgentJet's YAML. Keys that moved are renamed; keys that ajet refuses are left out.

    trainer_common.trinity_only__n_vllm_engine      rollout.n_vllm_engine
    lora.lora_rank                                  trainer_common.lora.rank
    frozen_lake: {…}                                a section of the user's own stays

A config of ajet keeps its values. Not covered: keys of verl that an AgentJet YAML may hold beside
`ajet:` (`ajet convert --from verl` knows them).
"""

from typing import Any

from ajet.convert.draft import Absent, Draft, ajet_defaults
from ajet.convert.schedule import take_schedule
from ajet.core.config.nested import flatten
from ajet.core.config.renames import REMOVED, RENAMED

TRAINER = "ajet.trainer_common"
TYPED = ("ajet", "verl", "trinity")
BOILERPLATE = ("hydra", "defaults")
OTHERS = ("actor_rollout_ref", "data", "critic", "algorithm", "trainer", "reward_model")

DEFAULTS: dict[str, Any] = {
    "ajet.rollout.compute_madness_checklist": ["nonsense"],
    "ajet.trainer_common.optim.weight_decay": 0.01,
    "ajet.trainer_common.algorithm.clip_high": 0.2,
    "ajet.trainer_common.algorithm.dual_clip": 3.0,
}

RENAMED_HERE = {
    **RENAMED,
    "ajet.lora.lora_rank": f"{TRAINER}.lora.rank",
    "ajet.lora.lora_alpha": f"{TRAINER}.lora.alpha",
    "ajet.lora.target_modules": f"{TRAINER}.lora.target_modules",
    "ajet.rollout.gpu_memory_utilization": "verl.rollout.gpu_memory_utilization",
    f"{TRAINER}.val_max_num_task_each_validation": "ajet.data.val_max_tasks",
    "ajet.rollout.val_kwargs.num_repeat": f"{TRAINER}.val_pass_n",
    "ajet.enable_interchange_server": "ajet.enable_experimental_interchange_server",
    "ajet.task_judge.rubrics_auto_grader.jsonl_dataset_file.training.file_path": (
        "ajet.task_judge.rubrics_auto_grader.dataset_file.training.file_path"
    ),
}
JUDGE, LEVEL = (
    "ajet.task_judge.judge_protocol",
    "ajet.context_tracker.timeline_merging_policy.timeline_compare_level",
)
CHOICES = {
    (JUDGE, "ajet.task_judge.env_service_as_judge->EnvServiceJudge"): "env_service",
    (LEVEL, "text_and_image"): "text",
}

AS_IN_VERL = Absent("AdamW, with half a cycle of the cosine", algorithm=True)
ABSENT: dict[str, Absent] = {
    **{key: Absent(reason) for key, reason in REMOVED.items()},
    f"{TRAINER}.optim.optimizer": Absent(AS_IN_VERL.reason, off=("AdamW",), algorithm=True),
    f"{TRAINER}.optim.optimizer_impl": Absent(AS_IN_VERL.reason),
    f"{TRAINER}.optim.lr_warmup_steps_ratio": Absent("warmup_steps counts steps", algorithm=True),
    f"{TRAINER}.optim.num_cycles": Absent(AS_IN_VERL.reason),
    f"{TRAINER}.optim.total_training_steps": Absent(AS_IN_VERL.reason, off=(-1, None)),
    f"{TRAINER}.optim.zero_indexed_step": Absent(AS_IN_VERL.reason),
    f"{TRAINER}.loss_extra_scale_ratio": Absent(
        "the loss has its own scale", off=(1, None), algorithm=True
    ),
    f"{TRAINER}.val_only": Absent("`ajet eval` does it"),
    f"{TRAINER}.val_max_num_task_clip_method": Absent("the first val_max_tasks tasks"),
    f"{TRAINER}.*_print_to_markdown_file_path": Absent("every episode is in the run folder"),
    "ajet.lora.*": Absent("the inference engine is the backbone's"),
    "ajet.context_tracker.alien_llm_*": Absent("AgentJet itself no longer reads it"),
    "ajet.*swarm_mode*": Absent("episodes run in this process"),
    "ajet.interchange_server.already_started": Absent("episodes run in this process"),
}


def take(draft: Draft) -> None:
    """Copies ajet's own keys and the user's own sections."""
    for name, section in draft.read.values.items():
        if name in BOILERPLATE or section is None:
            draft.ignore(name)
        elif name in OTHERS:
            reason = "a section of verl's; `ajet convert --from verl` reads those"
            draft.leave_out(name, reason, algorithm=True)
        elif name not in TYPED:
            draft.ignore(name)
            draft.result.sections[name] = section
    _environments(draft)
    written = {key: value for key, value in flatten(draft.read.values).items() if _is_typed(key)}
    for key in written:
        if _known(key):
            _take_key(draft, key)
    for key, value in DEFAULTS.items():
        if key not in draft.result.values:
            draft.set(key, value, key)
    _old_logprobs(draft)
    _warmup(draft)
    kind = f"{TRAINER}.optim.lr_scheduler_type"
    take_schedule(draft, kind, f"{TRAINER}.total_training_steps")


def _old_logprobs(draft: Draft) -> None:
    """Writes what AgentJet's trainer of verl takes as the old log-probabilities, its own."""
    key = f"{TRAINER}.algorithm.old_logprobs"
    if key not in draft.result.values and draft.take("ajet.backbone") != "trinity":
        draft.set(key, "trainer", key)


def _is_typed(key: str) -> bool:
    return key.split(".")[0] in TYPED and not key.startswith("ajet.environment.custom_envs.")


def _environments(draft: Draft) -> None:
    """Copies `custom_envs` as a whole, because a tag may contain a dot and is no key of the
    config."""
    key = "ajet.environment.custom_envs"
    if draft.has_key(key):
        draft.copy(key, key)


def _known(key: str) -> bool:
    """Returns whether the config tree has this key, or a mapping above it that takes any key."""
    name = RENAMED_HERE.get(key, key)
    sections = ajet_defaults()
    parents = (name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1))
    return name in sections or any(sections.get(parent) == {} for parent in parents)


def _take_key(draft: Draft, key: str) -> None:
    """Copies a key under its present name. A key that moved yields to one that is written under the
    present name."""
    target, value = RENAMED_HERE.get(key, key), draft.take(key)
    if target == key:
        draft.set(key, CHOICES.get((key, str(value)), value), key)
    elif value is not None and not draft.has_key(target):
        draft.set(target, float(value) if key.endswith(".lora_alpha") else value, key)


def _warmup(draft: Draft) -> None:
    """Converts the warm-up, which AgentJet counts in training steps (-1 for none), to optimizer
    steps."""
    key = f"{TRAINER}.optim.lr_warmup_steps"
    steps = draft.number(key)
    if steps > 0:
        updates = draft.number(f"{TRAINER}.mini_batch_num") or 1
        epochs = draft.number(f"{TRAINER}.ppo_epochs") or 1
        draft.set(f"{TRAINER}.optim.warmup_steps", steps * updates * epochs, key)
