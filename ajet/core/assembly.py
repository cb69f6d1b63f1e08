"""From the config tree to the parts of a run: each setting is translated here, once.

    config.ajet.rollout, .data     -> RolloutLimits, SamplingParams      what an episode may use
    config.ajet.trainer_common     -> UpdateSettings                     what an update does
    config.ajet.model              -> LoadedModel, ChatTemplate          the policy and its words

Every backbone calls these, so that a setting means the same on all of them. Not covered: where
the parts run (the backbone's own affair), and reading YAML (config/).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loguru import logger

from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.importing import construct, load_module, load_object
from ajet.core.inference.endpoint import ChatEndpoint, ModelEndpoint, SamplingParams
from ajet.core.judge import JUDGES, judge_class, judge_spec
from ajet.core.judge.judge import BaseJudge
from ajet.core.record.origin import RunOrigin
from ajet.core.rollout.batch import BatchSettings
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.runner import EpisodeRunner, OnError
from ajet.core.task.env_service import environment_host
from ajet.core.trajectory.malformed import MalformedPolicy
from ajet.core.trajectory.trajectory import LeftOut
from ajet.core.workflow.registry import (
    DEFAULT_AGENT,
    WorkflowChooser,
    registered,
    unknown_agent,
    workflow_for,
)
from ajet.core.workflow.tools.listing import find_file
from ajet.core.workflow.workflow import Mode

if TYPE_CHECKING:
    import torch

    from ajet.core.advantage import EstimatorSettings
    from ajet.core.advantage.kl_control import KLControl
    from ajet.core.buffer.journal import Journal
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.engines.in_process import InProcessEngine
    from ajet.core.inference.replicas.in_process import InProcessReplica
    from ajet.core.learning.learner import Learner
    from ajet.core.model.load import LoadedModel
    from ajet.core.update.critic import Critic
    from ajet.core.update.ranks import Ranks
    from ajet.core.update.settings import (
        CorrectionLevel,
        CriticSettings,
        ParamDtype,
        ShardingSettings,
        UpdateSettings,
    )
    from ajet.core.weight_sync.folder import WeightFolder
    from ajet.core.workflow.gateway.gateway import Gateway


DECIDES_EPISODES = ("model", "seed", "data", "task_reader", "task_judge", "environment", "rollout")
"""Sections of the config: an episode played under others is not that of this run."""


def load_policy_model(
    config: AjetConfig,
    path: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> LoadedModel:
    """The model that the config names, or the one at `path`, with the config's other settings.
    `dtype` and `device` go before them."""
    from ajet.core.model.load import load_model

    section = config.ajet.model
    return load_model(
        path or section.path or "",
        dtype=dtype or section.dtype,
        device=device or section.device,
        chat_template=section.chat_template,
    )


def load_learning_model(
    config: AjetConfig, ranks: Ranks | None = None, path: str | None = None
) -> LoadedModel:
    """The same for a learner over `ranks`: what is going to be sharded is loaded in CPU memory, in
    the type that it would have on the GPU, and no GPU ever holds it whole."""
    if ranks is None or ranks.compute_dtype is None:
        return load_policy_model(config, path)
    asked = config.ajet.model.dtype
    dtype = "bfloat16" if asked == "auto" and _trains_on_gpu(config) else asked
    return load_policy_model(config, path, dtype=dtype, device="cpu")


def make_template(loaded: LoadedModel) -> ChatTemplate:
    """The tokenizer's chat template, which also knows the model's own end tokens."""
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.tool_parsers import family_of

    end = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = [end] if isinstance(end, int) else list(end or ())
    template = ChatTemplate(loaded.tokenizer, ends)
    if "tools" in template.text and family_of(template) is None:
        logger.warning(
            "no parser is known for the chat template's form of tool calls: they stay text, unless "
            "ajet.rollout.tool_parser names one"
        )
    return template


def make_engine(
    config: AjetConfig,
    loaded: LoadedModel,
    template: ChatTemplate,
    *,
    deterministic: bool | None = None,
) -> InProcessEngine:
    """The in-process engine over a loaded model; `deterministic` replaces the config's."""
    from ajet.core.inference.engines.in_process import InProcessEngine

    return InProcessEngine(
        loaded.model,
        stop_token_ids=template.stop_token_ids,
        max_num_seqs=config.ajet.rollout.max_env_worker,
        max_model_len=config.ajet.rollout.max_model_len,
        deterministic=config.ajet.rollout.deterministic if deterministic is None else deterministic,
        decode=template.text_of,
    )


def make_replica(config: AjetConfig, name: str) -> InProcessReplica:
    """An inference server of this process: the in-process engine over a model of its own."""
    from ajet.core.inference.replicas.in_process import InProcessReplica

    loaded = load_policy_model(config)
    template = make_template(loaded)
    return InProcessReplica(
        name,
        loaded.model,
        stop_token_ids=template.stop_token_ids,
        max_num_seqs=config.ajet.rollout.max_env_worker,
        max_model_len=config.ajet.rollout.max_model_len,
        decode=template.text_of,
    )


def set_threads(config: AjetConfig) -> None:
    """torch's CPU threads; a run that is resumed with another number is not bit-identical."""
    import torch

    if config.ajet.trainer_common.torch_threads is not None:
        torch.set_num_threads(config.ajet.trainer_common.torch_threads)


def user_files(config: AjetConfig) -> list[Path]:
    """The files of the user's workflow, agents, judge and tools, as far as the config names them.
    What lists the tools may hold keys: its code is kept with the run, itself it is not."""
    judge = judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)
    kinds = [kind for kind in (make_workflow(config).default, judge) if kind is not None]
    own = [each for each in kinds if not each.__module__.startswith("ajet.")]
    turns = config.ajet.rollout.multi_turn
    listings = [path for path in (turns.tool_config_path, turns.interaction_config_path) if path]
    return [
        *(Path(inspect.getfile(each)) for each in [*own, *agent_modules(config)]),
        *(find_file(path, config.base_dirs, "ajet.rollout.multi_turn") for path in listings),
    ]


def open_journal(config: AjetConfig, path: Path) -> Journal:
    """Of episodes played under this config and code: it forgets those of others."""
    from ajet.core.buffer.journal import Journal, fingerprint

    ajet = config.to_dict()["ajet"]
    sections = {name: ajet[name] for name in DECIDES_EPISODES}
    return Journal(path, fingerprint(sections, user_files(config)))


def run_origin(config: AjetConfig, template: ChatTemplate, begun: str) -> RunOrigin:
    """What the run folder keeps beside the config, for a later look at the run."""
    return RunOrigin(
        yaml=str(config.yaml_path) if config.yaml_path else None,
        project_dir=str(config.project_dir) if config.project_dir else None,
        current_folder=str(Path.cwd()),
        begun=begun,
        stop_token_ids=list(template.stop_token_ids),
    )


def sampling_params(config: AjetConfig, mode: Mode) -> SamplingParams:
    """How tokens are drawn in training, or in validation (null there means: as in training). A
    baseline is greedy."""
    rollout = config.ajet.rollout
    drawn = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
    if mode == "eval":
        validation = rollout.val_kwargs
        asked = {name: getattr(validation, name) for name in drawn}
        drawn |= {name: value for name, value in asked.items() if value is not None}
    if mode == "baseline":
        drawn = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
    return SamplingParams(
        temperature=float(drawn["temperature"]),
        top_p=float(drawn["top_p"]),
        top_k=int(drawn["top_k"]),
        max_tokens=rollout.max_response_length_in_one_turn,
    )


def rollout_limits(config: AjetConfig) -> RolloutLimits:
    """What one episode, and all of them together, may use."""
    data, rollout = config.ajet.data, config.ajet.rollout
    return RolloutLimits(
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        max_model_len=rollout.max_model_len,
        max_response_length_in_one_turn=rollout.max_response_length_in_one_turn,
        max_steps=rollout.multi_turn.max_steps,
        force_disable_toolcalls=rollout.force_disable_toolcalls,
        max_env_worker=rollout.max_env_worker,
        episode_timeout_s=rollout.episode_timeout_s,
        failure_policy=rollout.failure_policy,
        max_retries=rollout.max_retries,
        max_failure_rate=rollout.max_failure_rate,
        check_drift=config.ajet.context_tracker.check_drift,
        malformed=MalformedPolicy(
            checks=tuple(rollout.compute_madness_checklist),
            ends_episode=rollout.agent_madness_termination,
            reward=rollout.agent_madness_reward,
        ),
    )


def batch_settings(config: AjetConfig) -> BatchSettings:
    """Which groups make the batch of a step."""
    rollout, algorithm = config.ajet.rollout, config.ajet.trainer_common.algorithm
    sampling = algorithm.dynamic_sampling
    needs_greedy = algorithm.adv_estimator == "remax"
    return BatchSettings(
        train_batch_size=config.ajet.data.train_batch_size,
        num_repeat=rollout.num_repeat,
        redundancy=rollout.group_size_redundancy,
        max_rounds=sampling.max_rounds if sampling.enable else 0,
        oversampling=rollout.submit_oversample_multiplier if rollout.enable_oversample else 1.0,
        mask_truncated=algorithm.overlong.mask_truncated,
        greedy=sampling_params(config, "baseline") if needs_greedy else None,
    )


def selections(config: AjetConfig) -> list[LeftOut]:
    """The selections that the config asks for: their metrics are there in every step."""
    rollout, algorithm = config.ajet.rollout, config.ajet.trainer_common.algorithm
    asked: dict[LeftOut, bool] = {
        "redundancy": rollout.group_size_redundancy > 0,
        "drop_group": rollout.failure_policy == "drop_group",
        "dynamic_sampling": algorithm.dynamic_sampling.enable,
        "oversampling": rollout.enable_oversample,
        "overlong": algorithm.overlong.mask_truncated,
    }
    return [name for name, is_asked in asked.items() if is_asked]


def update_settings(config: AjetConfig) -> UpdateSettings:
    """What one update does; the sampler's temperature is the policy's."""
    from ajet.core.update.settings import CorrectionSettings, LoraSettings, UpdateSettings

    trainer = config.ajet.trainer_common
    algorithm, optim, lora = trainer.algorithm, trainer.optim, trainer.lora
    targets = lora.target_modules
    return UpdateSettings(
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        weight_decay=optim.weight_decay,
        grad_clip=optim.grad_clip,
        warmup_steps=optim.warmup_steps,
        lr_schedule=optim.lr_schedule,
        total_steps=optimizer_steps(config),
        min_lr_ratio=optim.min_lr_ratio,
        policy_loss=algorithm.policy_loss,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip,
        sapo_tau_pos=algorithm.sapo_tau_pos,
        sapo_tau_neg=algorithm.sapo_tau_neg,
        temperature=config.ajet.rollout.temperature,
        kl_loss_coef=trainer.kl_loss_coef if trainer.use_kl_loss else 0.0,
        keep_reference=algorithm.use_kl_in_reward,
        kl_loss_type=trainer.kl_loss_type,
        entropy_coef=algorithm.entropy_coef,
        loss_agg_mode=algorithm.loss_agg_mode,
        loss_scale_factor=float(config.ajet.data.max_response_length),
        correction=CorrectionSettings(
            level=correction_level(config),
            mode=algorithm.rollout_correction.mode,
            upper=algorithm.rollout_correction.upper,
            lower=algorithm.rollout_correction.lower,
        ),
        ppo_epochs=trainer.ppo_epochs,
        mini_batch_num=trainer.mini_batch_num,
        max_tokens_per_micro_batch=tokens_per_pass(config),
        batch_layout=trainer.batch_layout,
        lora=None
        if not lora.rank
        else LoraSettings(
            rank=lora.rank,
            alpha=lora.alpha,
            targets=targets if isinstance(targets, str) else tuple(targets),
            seed=config.ajet.seed,
        ),
    )


def optimizer_steps(config: AjetConfig) -> int:
    """Of the whole run, where its steps are given; 0 where its epochs are."""
    trainer = config.ajet.trainer_common
    mini_batches = min(trainer.mini_batch_num, config.ajet.data.train_batch_size)
    return (trainer.total_training_steps or 0) * mini_batches * trainer.ppo_epochs


def correction_level(config: AjetConfig) -> CorrectionLevel:
    """Where nothing is said, and tokens may be stale, each token is weighted by the trainer's
    probability of it over the sampler's: a clip is then around the policy before the update, as it
    is without staleness, and not around one of some updates ago."""
    level = config.ajet.trainer_common.algorithm.rollout_correction.level
    if level is not None:
        return level
    is_stale = config.ajet.backbone == "trinity" and staleness_bound(config).max_staleness > 0
    return "token" if is_stale else "none"


def staleness_bound(config: AjetConfig) -> StalenessBound:
    """How old a token may be on backbone trinity, and how far ahead that lets the explorer be.

    A step of `fixed` or `explorer_driven` waits for a group that would else be too old; the other
    styles never wait: a slow group is left out. `fully_async` sends weights after every step.
    """
    trinity, size = config.trinity, batch_settings(config).first_round
    sync = trinity.synchronizer
    if trinity.mode == "colocate":
        return StalenessBound(0, size)
    interval, ahead = sync.sync_interval, trinity.steps_ahead
    if sync.sync_style == "fully_async":
        interval, ahead = 1, trinity.staleness if sync.sync_offset is None else ahead
    waits = sync.sync_style in ("fixed", "explorer_driven")
    return StalenessBound(trinity.staleness, size, interval, ahead * size, waits)


def critic_settings(config: AjetConfig) -> CriticSettings:
    """What one update of the critic does; its `warmup_steps` are the training loop's affair."""
    from ajet.core.update.settings import CriticSettings

    trainer = config.ajet.trainer_common
    critic, optim = trainer.critic, trainer.optim
    return CriticSettings(
        lr=critic.lr,
        betas=(optim.betas[0], optim.betas[1]),
        weight_decay=critic.weight_decay,
        grad_clip=critic.grad_clip,
        cliprange_value=critic.cliprange_value,
        ppo_epochs=critic.ppo_epochs,
        mini_batch_num=critic.mini_batch_num,
        max_tokens_per_micro_batch=tokens_per_pass(config),
        batch_layout=trainer.batch_layout,
    )


def tokens_per_pass(config: AjetConfig) -> int:
    """Of the ranks that share a sequence together: the backbone's own `max_token_len_per_gpu` for
    each of them, if it has one."""
    own = {
        "verl": config.verl.trainer.max_token_len_per_gpu,
        "trinity": config.trinity.trainer.max_token_len_per_gpu,
    }.get(config.ajet.backbone)
    trainer = config.ajet.trainer_common
    if own is None:
        return trainer.max_tokens_per_micro_batch
    return own * trainer.ulysses_sequence_parallel_size


def sharding_settings(config: AjetConfig) -> ShardingSettings:
    """How trainer ranks hold and compute the policy and the critic."""
    from ajet.core.update.settings import ShardingSettings

    trainer = config.ajet.trainer_common
    fsdp = trainer.fsdp_config
    return ShardingSettings(
        param_dtype=_param_dtype(config),
        reshard_after_forward=fsdp.reshard_after_forward,
        cpu_offload=fsdp.param_offload,
        activation_checkpointing=_trains_on_gpu(config)
        if fsdp.activation_checkpointing == "auto"
        else fsdp.activation_checkpointing,
        ulysses_sequence_parallel_size=trainer.ulysses_sequence_parallel_size,
    )


def _param_dtype(config: AjetConfig) -> ParamDtype:
    """`auto` is what a model on this machine is loaded in."""
    asked = config.ajet.trainer_common.fsdp_config.param_dtype
    return _trained_dtype(config) if asked == "auto" else asked


def _trained_dtype(config: AjetConfig) -> ParamDtype:
    if config.ajet.model.dtype == "float64":
        return "float64"
    return "bfloat16" if _trains_on_gpu(config) else "float32"


def _trains_on_gpu(config: AjetConfig) -> bool:
    import torch

    return config.ajet.model.device != "cpu" and torch.cuda.is_available()


def make_critic(config: AjetConfig, loaded: LoadedModel, ranks: Ranks | None = None) -> Critic:
    """The critic beside the policy that was made of `loaded`. Its model is read anew, so it starts
    from the weights on disk whatever has become of the policy's."""
    from ajet.core.update.critic import Critic
    from ajet.core.update.ranks import ONE_RANK

    path = config.ajet.trainer_common.critic.path
    own = load_learning_model(config, ranks, path)
    if own.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"ajet.trainer_common.critic.path: the tokenizer of {path!r} has other tokens than the "
            "policy's; take a model with the same one, or null"
        )
    return Critic(own.model, critic_settings(config), ranks or ONE_RANK)


def make_learner(config: AjetConfig, loaded: LoadedModel, ranks: Ranks | None = None) -> Learner:
    """The policy and what learns beside it, over `ranks` if there are several. Made before a
    checkpoint is loaded: the reference is the policy as it is now."""
    from ajet.core.learning.learner import Learner, LearnerSettings
    from ajet.core.update.policy import Policy
    from ajet.core.update.ranks import ONE_RANK

    trainer = config.ajet.trainer_common
    policy = Policy(loaded.model, update_settings(config), ranks or ONE_RANK)
    critic = None
    if trainer.algorithm.adv_estimator == "gae":
        critic = make_critic(config, loaded, ranks)
    settings = LearnerSettings(
        estimator=estimator_settings(config),
        kl_in_reward=trainer.algorithm.use_kl_in_reward,
        critic_warmup_steps=trainer.critic.warmup_steps,
    )
    return Learner(policy, critic, kl_control(config), settings)


def make_weight_folder(root: Path, loaded: LoadedModel) -> WeightFolder:
    """Where a trainer leaves its weights: each version is a model that a server can start from."""
    from ajet.core.model.save import model_files
    from ajet.core.weight_sync.folder import WeightFolder

    (root / "model").mkdir(parents=True, exist_ok=True)
    beside = []
    for name, content in model_files(loaded).items():
        if "/" not in name:  # further chat templates: no server asks for one
            beside.append(root / "model" / name)
            beside[-1].write_bytes(content)
    return WeightFolder(root, beside=beside, keep=1)


def device_of(config: AjetConfig) -> torch.device:
    """Where this process computes."""
    from ajet.core.model.load import device_named

    return device_named(config.ajet.model.device)


def join_ranks(config: AjetConfig, rank: int, size: int, *, host: str, port: int) -> Ranks:
    """The `size` processes that learn together, of which this is one; returns when all are there.
    One alone is a plain process where `fsdp_config` asks for nothing that such a one has not."""
    from ajet.core.update.ranks import ONE_RANK, TorchRanks, connect

    device, settings = device_of(config), sharding_settings(config)
    plain = device.type == "cpu" and settings.param_dtype == _trained_dtype(config)
    if size == 1 and plain and not settings.activation_checkpointing:
        return ONE_RANK
    connect(rank, size, host=host, port=port, device=device.type)
    return TorchRanks(settings, device)


def estimator_settings(config: AjetConfig) -> EstimatorSettings:
    """How rewards become advantages."""
    from ajet.core.advantage import AdvantageOptions, EstimatorSettings, RewardShaping

    algorithm = config.ajet.trainer_common.algorithm
    return EstimatorSettings(
        name=algorithm.adv_estimator,
        options=AdvantageOptions(
            normalize_std=algorithm.normalize_std,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            step_reward_gamma=algorithm.step_reward_gamma,
            episode_reward_weight=algorithm.episode_reward_weight,
            step_reward_weight=algorithm.step_reward_weight,
        ),
        shaping=RewardShaping(
            overlong_buffer=algorithm.overlong.buffer_len,
            overlong_factor=algorithm.overlong.penalty_factor,
            max_response_length=config.ajet.data.max_response_length,
            grouping=algorithm.reward_normalization.grouping,
            normalize_std=algorithm.reward_normalization.method == "mean_std",
            clip=algorithm.reward_clip,
        ),
        whiten=algorithm.whiten_advantages,
        clip=algorithm.advantage_clip,
    )


def kl_control(config: AjetConfig) -> KLControl:
    """The coefficient of the KL in the reward; its state belongs to the run's."""
    from ajet.core.advantage.kl_control import make_kl_control

    section = config.ajet.trainer_common.algorithm.kl_ctrl
    return make_kl_control(section.type, section.kl_coef, section.target_kl, section.horizon)


def agent_modules(config: AjetConfig) -> list[ModuleType]:
    """The modules that register the user's agents, imported."""
    where = "ajet.rollout.agent_modules"
    specs = config.ajet.rollout.agent_modules
    return [load_module(spec, base_dirs=config.base_dirs, where=where) for spec in specs]


def make_workflow(config: AjetConfig) -> WorkflowChooser:
    """The user's workflow, imported now: a mistake in it is found before a model is loaded."""
    agent_modules(config)
    where = "ajet.rollout.user_workflow"
    spec = config.ajet.rollout.user_workflow or DEFAULT_AGENT
    if (found := registered(spec)) is not None:
        return WorkflowChooser(found)
    if "->" not in spec:
        raise ConfigError(
            f"{where}: nothing is registered as {spec!r}; name a class as path/file.py->Class, "
            f"or an agent: {unknown_agent(spec)}"
        )
    kind = load_object(spec, base_dirs=config.base_dirs, kind=object, where=where)
    return WorkflowChooser(workflow_for(kind, f"{where}: {spec!r}"))


def make_judge(config: AjetConfig) -> BaseJudge | None:
    """The config's judge, None for the workflow's own reward. A run makes one, for every runner."""
    spec = judge_spec(config.ajet.task_judge)
    kind = judge_class(spec, config.base_dirs)
    if kind is None:
        return None
    if spec in JUDGES:
        return kind(config)
    return construct(kind, config, f"ajet.task_judge.judge_protocol: {spec!r}")


def make_gateway(config: AjetConfig, offset: int = 0) -> Gateway:
    """The model's HTTP address for agents that ask for one; each process that runs agents makes
    one, and closes it. A port that the config sets is that of the first; others count on."""
    from ajet.core.workflow.gateway.gateway import Gateway

    port = config.ajet.interchange_server.interchange_server_port
    return Gateway(None if port == "auto" else port + offset)


def make_runner(
    config: AjetConfig,
    endpoint: ModelEndpoint | ChatEndpoint,
    template: ChatTemplate | None,
    *,
    judge: BaseJudge | None,
    mode: Mode,
    gateway: Gateway | None = None,
    debug: bool = False,
    limits: RolloutLimits | None = None,
    on_error: OnError | None = None,
    is_part: bool = False,
) -> EpisodeRunner:
    """Runs the config's workflow against any endpoint; a chat endpoint has no template. `judge` and
    `gateway` are `make_judge`'s and `make_gateway`'s; `limits` replaces the config's; `is_part`
    where other processes run the rest of each step."""
    from ajet.core.inference.tool_parsers import parser_for

    return EpisodeRunner(
        endpoint=endpoint,
        template=template,
        parser=parser_for(template, config.ajet.rollout.tool_parser) if template else None,
        workflow=make_workflow(config),
        judge=judge,
        limits=limits or rollout_limits(config),
        sampling=sampling_params(config, mode),
        run_seed=config.ajet.seed,
        gateway=gateway,
        config=config,
        debug=debug,
        environments=environment_host(config),
        on_error=on_error,
        is_part=is_part,
    )
