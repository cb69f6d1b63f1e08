"""Converts the YAML of a Trinity-RFT explorer or trainer, or of both. The parts of an algorithm
type are in trinity_algorithm.py, the tables in trinity_keys.py. `stages` and the file of
`trainer_config_path` are not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.convert.data_files import DATASET, FILES, READER
from ajet.convert.draft import (
    Choices,
    Draft,
    OmittedKey,
    num_batches,
    same_names,
    take_moved,
    take_schedule,
    take_thinking,
)
from ajet.convert.trinity_algorithm import take_algorithm, type_key
from ajet.convert.trinity_keys import ACTOR, ENGINE, EXPERIENCES, INPUT, KEYS, OPTIMIZER, TRAINER

MODES = Choices(same_names("both explore train bench serve colocate"), "no such mode")
LOGGERS = ("tensorboard", "wandb", "mlflow", "swanlab")
SELECTORS = {"sequential": False, "shuffle": True, "random": True}
ONE_CALL = (
    "simple_workflow", "async_simple_workflow", "math_workflow", "async_math_workflow",
    "math_boxed_workflow", "async_math_boxed_workflow",
)  # fmt: skip
"""Trinity-RFT's workflows that call the model once, as single_turn_agent does."""
LEAST_RATE = 0.01
"""Trinity-RFT's default of the share of the rate that a schedule ends at."""
MATH_REWARDS = ("math_reward", "math_boxed_reward", "accuracy_reward", "math_dapo_reward")
OF_EPISODES = ("explorer.", "algorithm.repeat_times", "buffer.batch_size", "synchronizer.")
"""Prefixes of the keys that only matter if episodes are played."""
TASKSET = ("name", "storage_type", "repeat_times", "path", "split", "subset_name")
SELECTOR = ("task_selector", "data_selector")
"""The key of the order of tasks, and its name since 0.6, which the earlier one overrides."""
READ = (*TASKSET, "format", "rollout_args", *SELECTOR)
FORMAT = ("prompt_key", "response_key", "system_prompt")
SAMPLED = ("temperature", "top_p", "top_k", "max_tokens", "n", "logprobs")
NAMED = ("default_workflow_type", "default_reward_fn_type")
UNREAD = {
    "workflow_args": "write them into your class",
    "reward_fn_args": "write them into your judge",
    "enable_progress_bar": "`ajet` shows a run's progress itself",
}
"""Settings of tasks without a counterpart, each with the reason."""


def take(draft: Draft) -> None:
    is_supervised = draft.take(type_key(draft)) == "sft"
    draft.copy_all(row for row in KEYS if not (is_supervised and row[0].startswith(OF_EPISODES)))
    take_algorithm(draft)
    take_moved(draft, f"{OPTIMIZER}.lr", f"{ACTOR}.optim.lr", f"{TRAINER}.optim.lr")
    clips = (f"{OPTIMIZER}.clip_grad", "trainer.grad_clip")
    take_moved(draft, *clips, f"{TRAINER}.optim.grad_clip")
    _run(draft, is_supervised)
    _steps(draft, is_supervised)
    _lengths(draft)
    _lora(draft)
    if is_supervised:
        _supervised(draft)
        return
    take_thinking(draft, f"{ENGINE}.enable_thinking")
    draft.set("ajet.data.val_max_tasks", None, f"{INPUT}.eval_tasksets")
    # How many episodes run at the same time, and what happens to failed ones.
    runners, engines = "explorer.runner_per_model", f"{ENGINE}.engine_num"
    old = "explorer.runner_num"
    count = draft.number(old) or draft.number(runners) * draft.number(engines)
    draft.set("ajet.rollout.max_env_worker", count, runners, engines, old)
    retries = draft.number("explorer.max_retry_times")
    if retries:
        draft.set("ajet.rollout.failure_policy", "retry", "explorer.max_retry_times")
        draft.set("ajet.rollout.max_retries", retries, "explorer.max_retry_times")
    _Taskset.training(draft).take()


def _run(draft: Draft, is_supervised: bool) -> None:
    mode = draft.take("mode")
    if not is_supervised:
        draft.set("ajet.backbone", "trinity", "mode")
        draft.copy("mode", "trinity.mode", MODES)
    root, names = draft.take("checkpoint_root_dir"), ("project", "group", "name")
    if root:
        folders = [str(root), *(str(draft.take(name)) for name in names if draft.take(name))]
        draft.set("ajet.experiment_dir", "/".join(folders), "checkpoint_root_dir", *names)
    monitor = draft.take("monitor.monitor_type")
    if monitor in LOGGERS:
        draft.set(f"{TRAINER}.logger", [monitor], "monitor.monitor_type")
    else:
        draft.leave_out("monitor.monitor_type", f"there are {', '.join(LOGGERS)}")
    if mode in ("explore", "train") and not is_supervised:
        draft.to_do(
            "explorer and trainer are two commands on one YAML here: --backbone trinity "
            "trinity.mode=explore, and the same with trinity.mode=train"
        )


def _steps(draft: Draft, is_supervised: bool) -> None:
    """Converts steps, batches and the schedule. A trainer step of Trinity-RFT is one optimizer step
    on `train_batch_size` experiences, of which a step here has several."""
    keys = ("buffer.train_batch_size", "buffer.batch_size", "algorithm.repeat_times")
    batch, tasks, repeats = (draft.number(key) for key in keys)
    episodes = tasks * repeats
    updates_per_step = num_batches(episodes, batch) if batch and not is_supervised else 1
    draft.set(f"{TRAINER}.mini_batch_num", updates_per_step, *keys)
    if batch > episodes and not is_supervised:
        draft.refuse(keys[0], f"a step of ajet trains on its own {episodes} episodes")
    save = draft.number("trainer.save_interval")
    every = max(1, round(save / updates_per_step)) if save else -1
    draft.set(f"{TRAINER}.save_freq", every, "trainer.save_interval", *draft.unknown(*keys))
    trained = "trainer.total_steps"
    num_steps = draft.number("buffer.total_steps")
    if draft.number(trained) or draft.unknown(trained):
        whole = num_batches(draft.number(trained), updates_per_step)
        if draft.number(trained) % updates_per_step:
            draft.to_do(
                f"{trained} is {draft.number(trained)}, and a step here has {updates_per_step} of "
                f"them: {whole} steps are a few more"
            )
        num_steps = min(whole, num_steps or whole)  # the part that ends first ends the run
        target = f"{TRAINER}.total_training_steps"
        draft.set(target, num_steps, trained, *draft.unknown(*keys))
    updates = updates_per_step * (draft.number(f"{ACTOR}.ppo_epochs") or 1)
    # Our warm-up counts optimizer steps, of which a step has `updates`.
    warm, ratio = f"{OPTIMIZER}.lr_warmup_steps", f"{OPTIMIZER}.lr_warmup_steps_ratio"
    if draft.number(warm) > 0:
        draft.set(f"{TRAINER}.optim.warmup_steps", draft.number(warm), warm)
    elif draft.number(ratio) and num_steps:
        steps = int(draft.number(ratio) * num_steps * updates)
        draft.set(f"{TRAINER}.optim.warmup_steps", steps, ratio)
    elif draft.number(ratio):
        draft.refuse(ratio, "warmup_steps counts steps, and total_steps is not set")
    schedules = (f"{OPTIMIZER}.warmup_style", f"{OPTIMIZER}.lr_scheduler_type")
    schedule = next((key for key in schedules if draft.has_key(key)), schedules[1])
    totals = ("trainer.total_steps", "buffer.total_steps")
    last = next((key for key in totals if draft.has_key(key)), totals[1])
    take_schedule(draft, schedule, last)
    ratio, ends = f"{OPTIMIZER}.min_lr_ratio", f"{TRAINER}.optim.min_lr_ratio"
    if draft.result.values.get(f"{TRAINER}.optim.lr_schedule", "constant") != "constant":
        least = draft.take(ratio)
        draft.set(ends, LEAST_RATE if least is None else float(least), ratio)
    draft.ignore(*schedules, ratio)


def _lengths(draft: Draft) -> None:
    """Converts the limits: prompt and response are those of one call, `max_model_len` bounds a
    whole conversation. The engine's limits take precedence over the model's."""
    limits = list[tuple[Any, str]]()
    for name in ("max_model_len", "max_prompt_tokens", "max_response_tokens"):
        keys = (f"{ENGINE}.{name}", f"model.{name}")
        key = next((key for key in keys if draft.take(key)), keys[1])
        limits.append((draft.number(key), key))
        draft.ignore(*keys)
    (whole, key), (prompt, prompt_key), (reply, reply_key) = limits
    # Without a limit for the conversation, one call must fit.
    if not whole and prompt and reply:
        whole, key = prompt + reply, reply_key
    if reply or whole:
        target = "ajet.rollout.max_response_length_in_one_turn"
        draft.set(target, reply or whole, reply_key if reply else key)
    bounds = ("ajet.data.max_response_length", "ajet.rollout.max_model_len")
    if not whole:
        advice = "Trinity-RFT takes the model's own limit: write how many tokens a conversation has"
        draft.leave_blank(*bounds, key=key, advice=advice)
        return
    draft.set("ajet.data.max_prompt_length", prompt or whole, prompt_key if prompt else key)
    for target in bounds:
        draft.set(target, whole, key)


def _lora(draft: Draft) -> None:
    configs = draft.take("model.lora_configs") or []
    if not configs:
        return
    first, key = configs[0], "model.lora_configs"
    draft.set(f"{TRAINER}.lora.rank", first.get("lora_rank", 32), key)
    draft.set(f"{TRAINER}.lora.alpha", float(first.get("lora_alpha", 32)), key)
    modules = first.get("target_modules", "all-linear")
    draft.set(f"{TRAINER}.lora.target_modules", modules, key)
    if len(configs) > 1 or first.get("path"):
        draft.refuse(key, "there is one adapter, initialized at random")
    if first.get("exclude_modules"):
        draft.refuse(key, "exclude_modules: target_modules names the layers")


class _Taskset:
    """The training tasks of `explorer_input`, with the settings of their episodes. `key` is the
    name of their section in Trinity-RFT."""

    def __init__(self, draft: Draft, key: str, written: Mapping[str, Any]) -> None:
        self.draft, self.key, self.written = draft, key, written
        self.format: Mapping[str, Any] = written.get("format") or {}

    @classmethod
    def training(cls, draft: Draft) -> "_Taskset":
        single, several = f"{INPUT}.taskset", draft.take(f"{INPUT}.tasksets") or []
        if not several:
            return cls(draft, single, draft.section(single))
        if len(several) > 1:
            reason = "a run has one set of tasks: put their rows into one; the first is written"
            draft.refuse(f"{INPUT}.tasksets", reason)
        return cls(draft, f"{INPUT}.tasksets", several[0])

    def origin(self, name: str) -> str:
        """Returns the source's key of a setting; a list of sets is one key."""
        is_in_list = self.key.endswith("tasksets") and name.split(".")[0] in self.written
        return self.key if is_in_list else f"{self.key}.{name}"

    def take(self) -> None:
        held_out = self.draft.take(f"{INPUT}.eval_tasksets") or []
        self._files(held_out)
        self._order()
        self._format()
        self._agent()
        self._sampling(held_out)
        self._unread(self.key, self.written, READ, "no such setting of tasks")
        reason = "a row is read by its question and its answer"
        self._unread(f"{self.key}.format", self.format, FORMAT, reason)
        for at, tasks in enumerate(held_out[:1]):
            same = [*READ, *(name for name in tasks if tasks[name] == self.written.get(name))]
            key = f"{INPUT}.eval_tasksets.{at}"
            self._unread(key, tasks, same, "validation is played and judged as training is")
            if (tasks.get("format") or {}) != self.format:
                reason = "the validation rows are read as the training rows are"
                self.draft.leave_out(f"{key}.format", reason)

    def _unread(
        self, key: str, written: Mapping[str, Any], read: Sequence[str], reason: str
    ) -> None:
        for name, value in written.items():
            if name in read or name in NAMED or value in (None, {}, False, ""):
                continue
            omitted = OmittedKey(f"{key}.{name}", value, UNREAD.get(name, reason), "algorithm")
            self.draft.result.left_out.append(omitted)

    def _files(self, held_out: list[Mapping[str, Any]]) -> None:
        path, key = self.written.get("path"), self.origin("path")
        if self.written.get("storage_type") not in (None, "file"):
            reason = "tasks are files, or a data set of the Hub: name a reader at ajet.task_reader"
            self._refuse("storage_type", reason)
            self._refuse("path", reason)
            return
        if not path:
            self.draft.to_do("say where the tasks are: ajet.task_reader")
            return
        first = held_out[0] if held_out else {}
        name = self.written.get("subset_name")
        # Splits of one data set need one path; separate files need a path each.
        is_same = (first.get("path"), first.get("subset_name")) == (path, name)
        self.draft.set(f"{READER}.type", "dataset", key)
        self.draft.set(f"{DATASET}.training", _place(self.written), key, self.origin("subset_name"))
        if not _is_file(path):
            split = self.written.get("split") or "train"
            self.draft.set(f"{DATASET}.training_split", split, self.origin("split"))
        evaluated = f"{INPUT}.eval_tasksets"
        if first and (not is_same or _is_file(path)):
            self.draft.set(f"{DATASET}.validation", _place(first), evaluated)
        if not (first and _is_file(first.get("path"))):
            held_out_split = (first.get("split") or "train") if first else None
            self.draft.set(f"{DATASET}.validation_split", held_out_split, evaluated)
        if len(held_out) > 1:
            reason = "a run has one set of validation tasks: put their rows into one"
            self.draft.leave_out(f"{INPUT}.eval_tasksets", reason)

    def _order(self) -> None:
        name = next((name for name in SELECTOR if self.written.get(name)), SELECTOR[0])
        selector = self.written.get(name) or {}
        order = selector.get("selector_type") or "sequential"
        key = self.origin(name)
        if order in SELECTORS:
            self.draft.set("ajet.data.shuffle", SELECTORS[order], key)
        else:
            reason = "an order of your own is ajet.data.sampler"
            self._refuse(name, f"{order}: {reason}")
        if SELECTORS.get(order) and "seed" in selector:
            self.draft.set("ajet.seed", selector["seed"], key)

    def _format(self) -> None:
        question = self.format.get("prompt_key")
        if question not in (None, "question"):
            self.draft.set(f"{READER}.query_field", question, self.origin("format.prompt_key"))
        answer = self.format.get("response_key")
        if answer is not None and answer != "answer":
            self.draft.to_do(
                f"the judge math reads a row's answer: rename the field {answer!r} "
                f"({self.key}.format.response_key), or read it in a judge of yours"
            )
        prompt = self.format.get("system_prompt") or self.draft.take(f"{INPUT}.system_prompt")
        if prompt:
            target = "ajet.rollout.multi_turn.system_prompt"
            self.draft.set(target, prompt, self.origin("format.system_prompt"))

    def _agent(self) -> None:
        """Converts the workflow and the reward. A class of the user's keeps its name, which
        `ajet check` refuses until the user makes it file.py->Class."""
        workflow, key = self._named("default_workflow_type")
        reward, reward_key = self._named("default_reward_fn_type")
        eval_key = f"{INPUT}.default_eval_workflow_type"
        if self.draft.take(eval_key) not in (None, workflow):
            self.draft.leave_out(eval_key, "validation is played by the agent of training")
        judge = "ajet.task_judge.judge_protocol"
        if workflow is not None and workflow not in ONE_CALL:
            self.draft.set("ajet.rollout.user_workflow", workflow, key)
            self.draft.to_do(
                f"write the workflow {workflow!r} as a class with execute, and name it as "
                "file.py->Class at ajet.rollout.user_workflow (docs/coming_from/trinity.md)"
            )
        # Trinity-RFT's math workflows bring a reward if none is named.
        is_math = reward in MATH_REWARDS or (reward is None and "math" in str(workflow))
        if (is_math and workflow in (None, *ONE_CALL)) or reward in MATH_REWARDS:
            self.draft.set(judge, "math", reward_key if reward else key)
            if reward != "accuracy_reward":
                reason = (
                    "its reward for the form of a reply and its system prompt have no counterpart: "
                    "judge math scores the answer alone"
                )
                self.draft.refuse(reward_key if reward else key, reason)
        elif reward is not None:
            self.draft.set(judge, reward, reward_key)
            self.draft.to_do(
                f"write the reward {reward!r} as a BaseJudge, and name it as file.py->Class at "
                f"{judge}"
            )

    def _named(self, name: str) -> tuple[Any, str]:
        """Returns the value of this set of tasks or else of all sets, and its key."""
        key, shared = self.origin(name), f"{INPUT}.{name}"
        shared_value = self.draft.take(shared)
        value = self.written.get(name)
        return (value, key) if value is not None else (shared_value, shared)

    def _sampling(self, held_out: list[Mapping[str, Any]]) -> None:
        validation = _arguments(held_out[0]) if held_out else {}
        training = _arguments(self.written)
        for name, default in {"temperature": 1.0, "top_p": 1.0, "top_k": -1}.items():
            shared = self.draft.take(f"model.{name}")
            # A set's setting comes before the model's, and that before the default.
            base = default if shared is None else shared
            key = self.origin(f"rollout_args.{name}") if name in training else f"model.{name}"
            self.draft.set(f"ajet.rollout.{name}", training.get(name, base), key)
            target, value = f"ajet.rollout.val_kwargs.{name}", validation.get(name, base)
            self.draft.set(target, value, f"{INPUT}.eval_tasksets")
        if limit := training.get("max_tokens"):
            target = "ajet.rollout.max_response_length_in_one_turn"
            self.draft.set(target, limit, self.origin("rollout_args.max_tokens"))
        if training.get("n", 1) != 1 and not self.draft.has_key("algorithm.repeat_times"):
            self.draft.set("ajet.rollout.num_repeat", training["n"], self.origin("rollout_args.n"))
        for key, arguments in ((self.key, training), (f"{INPUT}.eval_tasksets.0", validation)):
            reason = "an episode has no such setting"
            self._unread(f"{key}.rollout_args", arguments, SAMPLED, reason)
        repeats = held_out[0].get("repeat_times", validation.get("n", 1)) if held_out else 1
        self.draft.set(f"{TRAINER}.val_pass_n", repeats, f"{INPUT}.eval_tasksets")

    def _refuse(self, name: str, reason: str) -> None:
        self.draft.refuse(f"{self.key}.{name}", reason)


def _arguments(taskset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampling of a set of tasks; null is the model's."""
    written = taskset.get("rollout_args") or {}
    return {name: value for name, value in written.items() if value is not None}


def _is_file(path: Any) -> bool:
    return str(path).endswith(FILES)


def _place(taskset: Mapping[str, Any]) -> str:
    """Returns a file, a folder, or a data set of the Hub with its configuration."""
    path, name = taskset.get("path"), taskset.get("subset_name")
    return f"{path}/{name}" if name and not _is_file(path) else str(path)


def _supervised(draft: Draft) -> None:
    """Converts the rows of given replies, which are an experience buffer in Trinity-RFT."""
    sizes = ("buffer.train_batch_size", "buffer.batch_size")
    rows = draft.number(sizes[0]) or draft.number(sizes[1])
    draft.set("ajet.data.train_batch_size", rows, *sizes)
    path, key = draft.take(f"{EXPERIENCES}.path"), f"{EXPERIENCES}.path"
    name, form = draft.take(f"{EXPERIENCES}.subset_name"), f"{EXPERIENCES}.format"
    if not path:
        draft.to_do("say where the rows are: ajet.task_reader")
    else:
        draft.set(f"{READER}.type", "dataset", key)
        draft.set(f"{DATASET}.training", _place({"path": path, "subset_name": name}), key)
        split = draft.take(f"{EXPERIENCES}.split") or "train"
        draft.set(f"{DATASET}.training_split", split, f"{EXPERIENCES}.split")
        draft.set(f"{DATASET}.validation_split", None, key)
    written = draft.section(form)
    is_plain = written.get("prompt_type") == "plaintext"
    names = ("prompt_key", "response_key") if is_plain else ("messages_key",)
    field_names = ("prompt", "completion") if is_plain else ("messages",)
    fields = tuple(written.get(key, "messages" if key == "messages_key" else "") for key in names)
    if fields != field_names:
        names = f"{', '.join(fields)} to {', '.join(field_names)}"
        draft.to_do(f"rename the fields of the rows: {names}")
