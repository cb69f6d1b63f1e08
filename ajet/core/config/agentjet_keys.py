"""Knows the keys of AgentJet's YAML that the tree does not have, by another name or at all.

lora.lora_rank: 8                 trainer_common.lora.rank
astuner: {…}                      ajet: {…}
rollout.mode: async               what always holds: accepted silently
optim.zero_indexed_step: false    taken, with a notice
optim.optimizer: SGD              refused: it would change the experiment
"""

from dataclasses import dataclass
from typing import Any

TRAINER, OPTIM = "ajet.trainer_common", "ajet.trainer_common.optim"
READER, RUBRICS = "ajet.task_reader", "ajet.task_judge.rubrics_auto_grader"
TRACKER, RUNNER, SERVER = "ajet.context_tracker", "ajet.task_runner", "ajet.interchange_server"

MOVED = {
    "ajet.lora.lora_rank": f"{TRAINER}.lora.rank",
    "ajet.lora.lora_alpha": f"{TRAINER}.lora.alpha",
    "ajet.lora.target_modules": f"{TRAINER}.lora.target_modules",
    "ajet.rollout.gpu_memory_utilization": "verl.rollout.gpu_memory_utilization",
    "ajet.rollout.agentscope_workflow": "ajet.rollout.user_workflow",
    "ajet.rollout.agentscope_learn_protocol": "ajet.rollout.user_workflow",
    "ajet.rollout.agentscope_disable_toolcalls": "ajet.rollout.force_disable_toolcalls",
    f"{READER}.dataset_file": f"{READER}.jsonl_dataset_file",
    f"{RUBRICS}.jsonl_dataset_file": f"{RUBRICS}.dataset_file",
    f"{RUBRICS}.generate_number": f"{RUBRICS}.query_specific_generate_number",
    f"{RUBRICS}.num_reference_samples": f"{RUBRICS}.num_examples",
    f"{TRAINER}.val_max_num_task_each_validation": "ajet.data.val_max_tasks",
    f"{OPTIM}.lr_scheduler_type": f"{OPTIM}.lr_schedule",
}
FORMER_SECTION = "astuner"
"""The name that AgentJet's section `ajet:` had before."""
FORMER_DEFAULTS = ("astune_default", "astuner_default")
ENV_JUDGE = "task_judge.env_service_as_judge->EnvServiceJudge"
OTHER_NAMES = {
    ("ajet.task_judge.judge_protocol", f"astuner.{ENV_JUDGE}"): "env_service",
    ("ajet.task_judge.judge_protocol", f"agentscope_tuner.{ENV_JUDGE}"): "env_service",
    (f"{READER}.type", "dataset_file"): "jsonl_dataset_file",
}
"""Maps a key and AgentJet's name for one of its values to the tree's name."""


@dataclass(frozen=True)
class Absent:
    """Describes a key without a counterpart. A value of `off` is what holds here; another one is
    taken with a notice, or `refused` if it would change the experiment."""

    reason: str
    off: tuple[Any, ...] = ()
    refused: bool = False


ADAMW = "the optimizer is torch's AdamW"
NO_SWARM = (
    "clients run the episodes of `ajet serve --conf X.yaml`, or of `ajet serve --swarm`, and no "
    "key turns that on"
)
NO_MODEL = "no filter of recorded conversations asks a model"
SHOWN = "every episode and metric is in the run folder (`ajet view`)"
MERGED = "ajet decides how adapters reach the engines"
GATEWAY = "the HTTP gateway starts when a workflow asks for an address"
ONE_THREAD = "the gateway is one event loop in a thread of the run, which calls the model directly"
NOT_BY_TEXT = (
    "joined by text, tokens would be trained after prompts that the model never saw: timelines are "
    "joined by their token ids"
)
EXAMPLES = (
    "graded examples are read from JSON lines (dataset_file.training.file_path), or the training "
    "tasks are the examples"
)
ABSENT = {
    "ajet.rollout.mode": Absent("a call of the model never waits for a batch", ("async",), True),
    "ajet.rollout.use_agentscope_protocol": Absent("all workflows are run alike"),
    f"{RUBRICS}.sampling_mode": Absent("examples are drawn by the seed"),
    f"{RUBRICS}.max_epochs": Absent("criteria are made once and not revised"),
    f"{RUBRICS}.max_retries": Absent("task_judge.client.max_retries is for every judge"),
    f"{RUBRICS}.aggregation_mode": Absent("enable_categorization merges criteria", ("keep_all",)),
    f"{READER}.feedback_tracing.alien_llm_model": Absent(NO_MODEL),
    f"{READER}.feedback_tracing.alien_llm_response_length": Absent(NO_MODEL),
    "ajet.context_tracker.alien_llm_model": Absent("AgentJet itself no longer reads it"),
    "ajet.context_tracker.alien_llm_response_length": Absent("AgentJet itself no longer reads it"),
    f"{TRAINER}.val_only": Absent("`ajet eval` does it", (False,), True),
    f"{TRAINER}.val_max_num_task_clip_method": Absent("data.val_max_tasks says which are taken"),
    f"{TRAINER}.val_print_to_markdown_file_path": Absent(SHOWN),
    f"{TRAINER}.train_print_to_markdown_file_path": Absent(SHOWN),
    f"{TRAINER}.loss_extra_scale_ratio": Absent("the loss has its own scale", (1,), True),
    f"{OPTIM}.optimizer": Absent(ADAMW, ("AdamW",), True),
    f"{OPTIM}.optimizer_impl": Absent(ADAMW, ("torch.optim",)),
    f"{OPTIM}.lr_warmup_steps": Absent(
        "it counts training steps: set optim.warmup_steps, which counts optimizer steps",
        (-1, 0),
        True,
    ),
    f"{OPTIM}.lr_warmup_steps_ratio": Absent("set optim.warmup_steps, a number", (0,), True),
    f"{OPTIM}.num_cycles": Absent("cosine is half a cycle", (0.5,), True),
    f"{OPTIM}.total_training_steps": Absent("set trainer_common's", (-1,), True),
    f"{OPTIM}.zero_indexed_step": Absent("the first step has the rate of step 1", (True,)),
    "ajet.lora.load_format": Absent(MERGED, ("auto",)),
    "ajet.lora.layered_summon": Absent(MERGED, (False,)),
    "ajet.enable_swarm_mode": Absent(NO_SWARM, (False,), True),
    "ajet.swarm_mode_sample_collection_method": Absent(NO_SWARM),
    "ajet.swarm_mode_sample_collection_max_cached_episodes": Absent(NO_SWARM),
    f"{SERVER}.already_started": Absent(NO_SWARM, (False,)),
    f"{SERVER}.interchange_method": Absent(ONE_THREAD, ("ipc",)),
    f"{SERVER}.num_fastapi_process": Absent(ONE_THREAD, (2,)),
    f"{SERVER}.max_fastapi_threads": Absent(ONE_THREAD, (128,)),
    f"{SERVER}.max_inference_tracker_threads": Absent(ONE_THREAD, (64,)),
    "ajet.enable_interchange_server": Absent(GATEWAY, (False,)),
    "ajet.enable_experimental_interchange_server": Absent(GATEWAY, (False,)),
    f"{RUNNER}.llm_infer_submit_method": Absent("model calls are asynchronous", ("async",)),
    f"{RUNNER}.wrapper_type": Absent(
        "workflows run on one event loop: asyncio", ("asyncio-with-gc", "asyncio")
    ),
    f"{RUNNER}.wrapper_multiprocessing_timeout": Absent(
        "rollout.episode_timeout_s is an episode's deadline", (3600,)
    ),
    f"{TRACKER}.timeline_merging_policy.timeline_compare_level": Absent(NOT_BY_TEXT, ("token",)),
    f"{TRACKER}.timeline_merging_policy.ignore_tools": Absent(
        "timelines are joined by their token ids, to which the tool list is rendered", (True,)
    ),
    f"{TRACKER}.fix_retokenization_drift": Absent(
        "sampled ids are never encoded again: to train on others is not possible", (True,), True
    ),
    "ajet.rollout.multi_turn.max_sample_per_task": Absent(
        "every timeline of an episode is trained, none is dropped", (30,)
    ),
    "ajet.rollout.multi_turn.expected_steps": Absent(
        "nothing is sized by an expected number of turns", (1,)
    ),
    "ajet.rollout.val_kwargs.num_repeat": Absent(
        "trainer_common.val_pass_n is the number of episodes of a validation task", (1,), True
    ),
    "ajet.rollout.step_skip_action": Absent("every turn is sampled by the model", (0,), True),
    f"{RUBRICS}.training_judge_strategy": Absent("every episode is judged in the same way"),
    f"{RUBRICS}.input_data_type": Absent(EXAMPLES, ("jsonl_dataset_file", "dataset_file"), True),
    "ajet.debug.debug_vllm_port": Absent("no server is started", (18000,)),
    "ajet.debug.debug_vllm_seed": Absent("ajet.seed is the run's seed", (12345,)),
    "ajet.debug.debug_tensor_parallel_size": Absent("no server is started", (4,)),
    f"{TRAINER}.fsdp_config.optimizer_offload": Absent(
        "the optimizer's state lies with the weights: see param_offload", (False,)
    ),
    f"{TRAINER}.checkpoint_base_dir": Absent(
        "checkpoints are in the run folder: choose that with --exp-dir"
    ),
    f"{TRAINER}.save_trajectory_as_json_file": Absent(SHOWN, (False,)),
    "ajet.execute_test": Absent("a run does not run the project's tests", (False,), True),
    "ajet.execute_testing_lambda": Absent("a run does not run the project's tests", ("",), True),
}
EMPTIED = (RUNNER, f"{TRACKER}.timeline_merging_policy")
"""Sections of which no key is left."""
