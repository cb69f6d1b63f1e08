"""Converts configs of verl's PPO trainer: its YAML, or the overrides of its command line. Defaults
are those of verl 0.9. The tables of keys are in verl_keys.py, estimator and loss in
verl_algorithm.py. Settings of Megatron and of profilers are not converted.
"""

from ajet.convert.data_files import take_files
from ajet.convert.draft import (
    ENABLED,
    MAX_IMAGES,
    Choices,
    Draft,
    is_tower,
    num_batches,
    same_names,
    sees_images,
    take_moved,
    take_schedule,
    take_tower,
)
from ajet.convert.verl_algorithm import (
    ESTIMATOR,
    take_discount,
    take_kl_loss,
    take_loss,
    take_rewards_of_gdpo,
)
from ajet.convert.verl_keys import (
    ACTOR,
    ALGORITHM,
    CRITIC,
    EARLY_DEFAULTS,
    EARLY_KEYS,
    KEYS,
    KL_IN_REWARD,
    LORA,
    MODEL,
    ROLLOUT,
    TOOLS,
    TRAINER,
    TURNS,
)
from ajet.core.config.renames import staleness_of_threshold
from ajet.core.config.rollout import MultiTurnConfig

REWARD_FUNCTIONS = ("custom_reward_function", "reward.custom_reward_function")
JUDGE = "ajet.task_judge.judge_protocol"
OVERLONG = (
    "custom_reward_function.overlong_buffer",
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
RESUMES = Choices(same_names("auto disable"), "no such way to resume")
DECIDING = {
    "algorithm.adv_estimator": "a critic's keys and those of gdpo's rewards",
    f"{ACTOR}.policy_loss.loss_mode": "the loss's bounds",
}
"""Keys whose values decide how others are converted."""
IMAGE_COLUMNS = ("images", "image")
CHARACTERS_OF_A_TOKEN = 4
DEFAULT_CALLS = MultiTurnConfig().max_steps
MOST_ROUNDS = 100
"""Rollouts of one step where verl has no bound."""
GPUS_OF_A_NODE = 8  # verl's default
GROUP, STEPS = "env.rollout.n", "env.max_steps"
PENALTY = (f"{ACTOR}.use_invalid_action_penalty", f"{ACTOR}.invalid_action_penalty_coef")
DEFAULT_PENALTY = 0.1  # verl-agent's


def take(draft: Draft) -> None:
    draft.copy_all(KEYS)
    _early_defaults(draft)
    _clip(draft)
    # Its engines read the first of the two, its earlier workers the second.
    clips = (f"{ACTOR}.optim.clip_grad", f"{ACTOR}.grad_clip")
    take_moved(draft, *clips, f"{TRAINER}.optim.grad_clip")
    for key in draft.unknown(*DECIDING):
        draft.to_do(f"convert again with {key}=…: it decides how {DECIDING[key]} are converted")
    _choices(draft)
    take_loss(draft)
    take_files(draft, "data.train_files", "data.val_files")
    _batches(draft)
    _limits(draft)
    _agent(draft)
    take_discount(draft)
    _environments(draft)
    _critic(draft)
    for section in OVERLONG:
        if draft.section(section).get("enable"):
            target = f"{ALGORITHM}.overlong"
            draft.set(f"{target}.buffer_len", draft.take(f"{section}.len"), f"{section}.len")
            factor = float(draft.number(f"{section}.penalty_factor") or 1.0)
            draft.set(f"{target}.penalty_factor", factor, f"{section}.penalty_factor")
    # With Megatron the second rank counts, and adapters have a section of settings.
    if rank := draft.number(f"{MODEL}.lora_rank"):
        draft.set(f"{TRAINER}.lora.rank", rank, f"{MODEL}.lora_rank")
        draft.copy_all(LORA)
    elif rank := draft.number(f"{MODEL}.lora.rank"):
        draft.set(f"{TRAINER}.lora.rank", rank, f"{MODEL}.lora.rank")
        draft.copy(f"{MODEL}.lora.alpha", f"{TRAINER}.lora.alpha", float)
    else:
        draft.ignore(f"{MODEL}.lora_alpha", f"{MODEL}.target_modules", f"{MODEL}.lora")
    _asynchrony(draft)
    _devices(draft)
    _reward(draft)
    _images(draft)


def _choices(draft: Draft) -> None:
    take_rewards_of_gdpo(draft)
    take_kl_loss(draft)
    backend = f"{ROLLOUT}.trace.backend"
    if draft.take(backend) == "mlflow":
        draft.set(f"{TRAINER}.traces", ["mlflow"], backend)
    elif draft.take(backend) is not None:
        draft.leave_out(backend, "traces go to mlflow, or over OTLP (trainer_common.traces)")
    mode, path = draft.take("trainer.resume_mode"), draft.take("trainer.resume_from_path")
    if mode == "resume_path" and path:
        draft.set(f"{TRAINER}.resume", str(path), "trainer.resume_from_path")
    else:
        draft.copy("trainer.resume_mode", f"{TRAINER}.resume", RESUMES)


def _early_defaults(draft: Draft) -> None:
    """Names the defaults of verl that were others in early versions, for which a script may be."""
    coefficient = "algorithm.kl_ctrl.kl_coef"
    marks = list(filter(draft.has_key, EARLY_KEYS))
    # Later versions read it with use_kl_in_reward alone, a key that came with 0.3.
    if draft.has_key(coefficient) and draft.number(coefficient) != 0:
        marks.append(coefficient)
    if not marks or draft.has_key(KL_IN_REWARD):
        return
    same = [KL_IN_REWARD] if draft.take(f"{ACTOR}.use_kl_loss") else []
    names = [key for key in EARLY_DEFAULTS if not draft.has_key(key) and key not in same]
    if names:
        earlier = "; ".join(f"{key}: {EARLY_DEFAULTS[key]}" for key in names)
        draft.to_do(
            f"verl had other defaults before 0.4, and {marks[0]} suggests such a version: give "
            f"what yours has as key=value: {earlier}"
        )


def _clip(draft: Draft) -> None:
    """Converts the bounds of the ratio; one that is null is clip_ratio."""
    both, bounds = f"{ACTOR}.clip_ratio", [f"{ACTOR}.clip_ratio_{name}" for name in ("low", "high")]
    is_early = draft.has_key(both) and not any(map(draft.has_key, bounds))
    for key, name in zip(bounds, ("low", "high"), strict=True):
        is_null = draft.take(key) is None and not draft.unknown(key)
        target = f"{ALGORITHM}.clip_{name}"
        draft.copy(both if is_null or is_early else key, target, float)
    if is_early and draft.take(both) != draft.take(bounds[0]):
        draft.to_do(
            f"see whether {both} bounds the ratio, as before verl 0.3: later versions read "
            f"{both}_low and {both}_high, which are 0.2 where they are not written"
        )
    draft.ignore(both)


def _batches(draft: Draft) -> None:
    """Converts batch sizes: verl counts the prompts of a mini-batch, ajet counts mini-batches."""
    keys = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    tasks, batch = (draft.number(key) for key in keys)
    # verl's asynchronous trainer has no batch size: it waits for mini-batches.
    if not tasks and draft.take("async_training.require_batches"):
        required = "async_training.require_batches"  # mini-batches that one update waits for
        tasks = batch * (draft.number(required) or 1)
        draft.set(keys[0].replace("data", "ajet.data"), tasks, required, keys[1])
    updates = num_batches(tasks, batch)
    draft.set(f"{TRAINER}.mini_batch_num", updates, *keys)
    _warmup(draft, updates * (draft.number(f"{ACTOR}.ppo_epochs") or 1))
    # Earlier versions and Megatron have other names for it.
    names = ("lr_scheduler_type", "warmup_style", "lr_decay_style")
    schedules = [f"{ACTOR}.optim.{name}" for name in names]
    schedule = next(filter(draft.has_key, schedules), schedules[0])
    take_schedule(draft, schedule, "trainer.total_training_steps", f"{ACTOR}.optim.min_lr_ratio")
    least, rate = f"{ACTOR}.optim.min_lr", f"{ACTOR}.optim.lr"
    if draft.number(least) and draft.number(rate):
        ratio = draft.number(least) / draft.number(rate)
        draft.set(f"{TRAINER}.optim.min_lr_ratio", ratio, least, *draft.unknown(rate))
    limit = draft.number("data.val_max_samples")
    draft.set("ajet.data.val_max_tasks", limit if limit > 0 else None, "data.val_max_samples")
    _filter(draft)
    _run_length(draft)


def _filter(draft: Draft) -> None:
    """Converts dynamic sampling. Without a bound verl generates until the batch is full."""
    rounds_key = "algorithm.filter_groups.max_num_gen_batches"
    rounds, metric = draft.number(rounds_key), draft.take("algorithm.filter_groups.metric")
    if not draft.take("algorithm.filter_groups.enable"):
        return
    most = rounds if rounds > 0 else MOST_ROUNDS
    draft.set(f"{ALGORITHM}.dynamic_sampling.max_rounds", most, rounds_key)
    if not draft.unknown(rounds_key):
        ends = f"stops if {rounds} rollouts do not fill" if rounds > 0 else "goes on to fill"
        draft.to_do(f"verl {ends} a batch; ajet trains a smaller one after max_rounds")
    if metric not in (None, "reward", "seq_reward"):
        reason = "groups are left out where their rewards are equal"
        draft.refuse("algorithm.filter_groups.metric", reason)


def _run_length(draft: Draft) -> None:
    passes, steps = "trainer.total_epochs", "trainer.total_training_steps"
    if draft.has_key(passes) and draft.number(steps) > 0:
        draft.to_do(
            f"verl ends after {draft.number(passes)} passes over the rows, even before "
            f"{draft.number(steps)} steps; ajet after total_training_steps: give the smaller number"
        )
    kept = "trainer.max_actor_ckpt_to_keep"
    if draft.take(kept) is not None or draft.unknown(kept):
        draft.copy(kept, f"{TRAINER}.max_checkpoints_to_keep")
    elif draft.result.values.get(f"{TRAINER}.save_freq", -1) > 0:
        draft.leave_out(kept, "verl keeps all, ajet the newest of max_checkpoints_to_keep")


def _warmup(draft: Draft, updates: int) -> None:
    """Converts the warm-up: verl counts training steps, ajet counts optimizer steps."""
    keys = [f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio"]
    steps, ratio = (draft.number(key) for key in keys)
    batch = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    unknown = draft.unknown(*keys, *batch) if steps > 0 or ratio else draft.unknown(*keys)
    if steps > 0 or unknown:
        draft.set(f"{TRAINER}.optim.warmup_steps", steps * updates, keys[0], *unknown)
    elif ratio:
        total = draft.number("trainer.total_training_steps")
        unknown = draft.unknown("trainer.total_training_steps")
        if total or unknown:
            warm = int(ratio * total) * updates
            draft.set(f"{TRAINER}.optim.warmup_steps", warm, keys[1], *unknown)
        else:
            reason = "warmup_steps counts steps, and trainer.total_training_steps is not set"
            draft.refuse(keys[1], reason)


def _limits(draft: Draft) -> None:
    """Sets the model's context to what the data allows, unless the source sets it."""
    keys = ("data.max_prompt_length", "data.max_response_length")
    prompt, response = (draft.number(key) for key in keys)
    if draft.take(f"{ROLLOUT}.max_model_len") is None:
        draft.set("ajet.rollout.max_model_len", prompt + response, *keys)
    draft.set("ajet.rollout.max_response_length_in_one_turn", response, keys[1])


def _agent(draft: Draft) -> None:
    """Converts the agent. A row may name one; otherwise verl's default_agent_loop applies."""
    loop, tools = f"{ROLLOUT}.agent.default_agent_loop", f"{TURNS}.tool_config_path"
    name = draft.take(loop)
    paths = (tools, f"{TURNS}.interaction_config_path")
    files = [key for key in paths if draft.take(key) or draft.unknown(key)]
    if name is not None and name != "single_turn_agent":
        draft.set("ajet.rollout.user_workflow", name, loop)
    elif files and draft.take(f"{TURNS}.enable"):
        draft.set("ajet.rollout.user_workflow", "tool_agent", f"{TURNS}.enable")
    if not draft.has_key(TURNS):
        return
    draft.copy_all(TOOLS)
    # Without a bound a verl agent makes calls until the reply is full, each of a token at least.
    turns = f"{TURNS}.max_assistant_turns"
    calls = draft.number(turns) or draft.number("data.max_response_length")
    draft.set("ajet.rollout.multi_turn.max_steps", max(calls, DEFAULT_CALLS), turns)
    length = draft.number(f"{TURNS}.max_tool_response_length")
    if tools not in files:
        return
    # verl counts characters, ajet counts tokens.
    tokens = max(1, length // CHARACTERS_OF_A_TOKEN)
    name = "ajet.rollout.multi_turn.max_tool_response_length"
    draft.set(name, tokens, f"{TURNS}.max_tool_response_length")
    draft.to_do(
        f"{name} counts tokens, verl's characters ({length}): it was divided by "
        f"{CHARACTERS_OF_A_TOKEN}"
    )


def _environments(draft: Draft) -> None:
    """Converts groups of episodes in environments, which verl-agent adds to verl."""
    if not draft.has_key(GROUP) and draft.take(ESTIMATOR) != "gigpo":
        return
    # It has no groups where the number is not positive; verl's own is 1 there.
    group = draft.number(GROUP)
    if group > 0 or draft.unknown(GROUP):
        draft.set("ajet.rollout.num_repeat", group, GROUP)
    draft.copy(STEPS, "ajet.rollout.multi_turn.max_steps", int)
    draft.to_do(
        "verl-agent trains each turn as a separate sample: ppo_mini_batch_size counts turns "
        f"there (set {TRAINER}.mini_batch_num), and max_prompt_length and max_response_length "
        "bound one turn"
    )
    if draft.take(PENALTY[0]) is not False:
        written = draft.take(PENALTY[1])
        penalty = DEFAULT_PENALTY if written is None else written
        draft.to_do(
            f"verl-agent takes {penalty} from the reward of a turn whose action is invalid: your "
            "agent or judge does it here"
        )
    draft.ignore(*PENALTY)


def _critic(draft: Draft) -> None:
    if draft.unknown("algorithm.adv_estimator"):
        draft.ignore("critic", "trainer.critic_warmup")
        return
    if draft.take("algorithm.adv_estimator") != "gae":
        for key in ("critic", "trainer.critic_warmup"):
            if draft.take(key):
                draft.leave_out(key, "adv_estimator has no critic")
        return
    draft.copy_all(CRITIC)
    # verl's critic takes the actor's values of what is not set for it.
    passes, means = (
        next(filter(draft.has_key, (f"critic.{name}", f"{ACTOR}.{name}")), f"critic.{name}")
        for name in ("ppo_epochs", "loss_agg_mode")
    )
    draft.copy(passes, f"{TRAINER}.critic.ppo_epochs")
    draft.ignore("critic.loss_agg_mode")
    if draft.take(means) not in (None, "token-mean"):
        draft.refuse(means, "the critic's loss is a mean of tokens; verl's follows the actor's")
    clips = ("critic.optim.clip_grad", "critic.grad_clip")
    take_moved(draft, *clips, f"{TRAINER}.critic.grad_clip")
    batch = draft.number("critic.ppo_mini_batch_size") or draft.number(
        f"{ACTOR}.ppo_mini_batch_size"
    )
    tasks = draft.number("data.train_batch_size")
    updates = num_batches(tasks, batch)
    unknown = draft.unknown("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    draft.set(f"{TRAINER}.critic.mini_batch_num", updates, "critic.ppo_mini_batch_size", *unknown)


def _asynchrony(draft: Draft) -> None:
    """Converts the trainers that generate while they train."""
    turns = "--backbone trinity generates and trains at the same time; others take turns"
    keys = ("async_training.trigger_parameter_sync_step", "async_training.staleness_threshold")
    if draft.take("one_step_off_policy"):
        draft.set("trinity.max_staleness", 1, "one_step_off_policy")
        draft.to_do(turns)
    if draft.take(keys[0]) is None:
        return
    interval, threshold = (draft.number(key) for key in keys)
    interval = max(1, int(interval))
    staleness = staleness_of_threshold(threshold, interval)
    draft.set("trinity.synchronizer.sync_interval", interval, keys[0])
    draft.set("trinity.max_staleness", staleness, *keys)
    for tests in ("rollout.test_freq", "trainer.test_freq"):  # the first is the earlier name
        every = draft.number(tests) if draft.has_key(tests) else 0
        if every > 0:  # both count synchronizations
            draft.set(f"{TRAINER}.test_freq", every * interval, tests, keys[0])
    partial = Choices({True: "continue", False: "finish"}, "true or false")
    draft.copy("async_training.partial_rollout", "trinity.partial_rollout", partial)
    draft.to_do(turns)


def _devices(draft: Draft) -> None:
    """verl's trainer shares its GPUs with the engines, unless `rollout.nnodes` gives them others.

    trainer 1 x 4, rollout 1 x 4      one node of 8 GPUs: verl's pools may share a node
    trainer 2 x 8, rollout 1 x 8      three nodes of 8
    """
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node")
    engine_keys = ("rollout.nnodes", "rollout.n_gpus_per_node")
    if not all(draft.has_key(key) or draft.take(key) for key in engine_keys):
        draft.copy(keys[0], f"{TRAINER}.nnodes")
        draft.copy(keys[1], f"{TRAINER}.n_gpus_per_node")
        return
    nodes, gpus = draft.number(keys[0]) or 1, draft.number(keys[1]) or GPUS_OF_A_NODE
    engine_nodes, engine_gpus = (draft.number(key) for key in engine_keys)
    parallel = f"{ROLLOUT}.tensor_model_parallel_size"
    size = draft.number(parallel) or 1
    pools = draft.unknown(*keys, *engine_keys)
    if pools:  # both counts are left blank below
        pass
    elif nodes == engine_nodes and gpus + engine_gpus <= GPUS_OF_A_NODE:
        gpus += engine_gpus
    elif gpus == engine_gpus:
        nodes += engine_nodes
    else:
        reason = f"nodes of {gpus} and of {engine_gpus} GPUs: all have as many here"
        draft.leave_out(engine_keys[0], reason)
        return
    draft.set(f"{TRAINER}.nnodes", nodes, keys[0], engine_keys[0], *pools)
    draft.set(f"{TRAINER}.n_gpus_per_node", gpus, keys[1], engine_keys[1], *pools)
    engines = max(1, engine_nodes * engine_gpus // size)
    draft.set("ajet.rollout.n_vllm_engine", engines, *engine_keys, *draft.unknown(parallel))


def _reward(draft: Draft) -> None:
    """Converts the reward: verl scores by the row's data_source, or by the user's function."""
    for section in REWARD_FUNCTIONS:
        path, name = draft.take(f"{section}.path"), draft.take(f"{section}.name")
        arguments = draft.section(f"{section}.reward_kwargs")
        if path:
            function = {"function": f"{path}->{name or 'compute_score'}"}
            kwargs = {"reward_kwargs": dict(arguments)} if arguments else {}
            draft.result.sections["custom_reward_function"] = function | kwargs
            draft.set(JUDGE, "ajet.compat.verl_reward->RewardFunctionJudge", f"{section}.path")
            return
    origin = "reward_model.reward_manager"
    draft.result.values[JUDGE] = "math"
    draft.result.origins[JUDGE] = f"{origin}: by data_source in verl"
    draft.to_do(
        "verl scores a row by its data_source: judge_protocol: math is for GSM8K and MATH; for "
        "other data choose a judge at ajet.task_judge.judge_protocol"
    )


def _images(draft: Draft) -> None:
    """Converts the settings of images. verl shows them to every model that sees them, and trains
    its vision tower too, unless it is frozen or has no adapters."""
    excluded, frozen = f"{MODEL}.exclude_modules", f"{ACTOR}.freeze_vision_tower"
    is_excluded = is_tower(draft.take(excluded))
    if draft.take(excluded) and not is_excluded:
        draft.refuse(excluded, "target_modules names the layers")
    is_frozen = bool(draft.take(frozen) or draft.unknown(frozen))
    rank, megatron_rank = (draft.number(f"{MODEL}.{name}") for name in ("lora_rank", "lora.rank"))
    if rank:
        is_frozen |= is_excluded
    elif megatron_rank:
        is_frozen |= draft.take(f"{MODEL}.lora.freeze_vision_model") is not False
    if not sees_images(draft, f"{MODEL}.path"):
        return
    if not is_frozen:
        take_tower(draft, frozen, has_adapters=bool(rank or megatron_rank))
    if (column := draft.take("data.image_key")) not in (None, *IMAGE_COLUMNS):
        draft.refuse("data.image_key", f"rename the column {column}: it is images here, or image")
    for key in ("data.video_key", "data.audio_key"):
        if draft.has_key(key):
            draft.leave_out(key, "a row with videos or sound is refused")
    if draft.take("data.mm_processor_kwargs"):
        draft.refuse("data.mm_processor_kwargs", "images become tokens as the checkpoint says")
    draft.copy(f"{ROLLOUT}.limit_images", MAX_IMAGES)
    draft.set(ENABLED, True, "data.image_key")
