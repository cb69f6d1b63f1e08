"""Makes the parts of a run from its config. This module only wires: each setting is translated
beside the class that it is for (`UpdateSettings.from_config`, `RolloutLimits.from_config`, …).

    config.ajet.model              -> LoadedModel, ChatTemplate, InProcessEngine
    config.ajet.trainer_common     -> Learner: policy, critic, reference
    config.ajet.rollout, .judge    -> GroupRunner

Every backbone calls these functions, so that a setting means the same on all of them. It is the
only module that knows both core and the packages beside it. Not covered: where the parts run (the
backbones' own affair), and reading YAML (core/config).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.agents.tools.listing import find_file
from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import ChatEndpoint, ModelEndpoint, SamplingParams
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import BaseJudge
from ajet.core.rollout.attempt import OnError
from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.run.run_tasks import RunTasks
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.base_recorder import CallObserver
from ajet.core.trajectory.hint import hint_for
from ajet.core.workflow.registry import WorkflowFactory, import_agent_modules
from ajet.tools.env_service.host import environment_host

if TYPE_CHECKING:
    from torch import nn

    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.engines.in_process import InProcessEngine, OnTokens
    from ajet.core.inference.engines.step_graph import MakeGraph
    from ajet.core.inference.replicas.in_process import InProcessReplica
    from ajet.core.learning.adapter_learners import AdapterLearners
    from ajet.core.learning.learner import Learner
    from ajet.core.learning.teacher import Scorer, Teacher
    from ajet.core.model.load import LoadedModel
    from ajet.core.update.critic import Critic
    from ajet.core.update.policy import Policy
    from ajet.core.update.ranks import Ranks
    from ajet.core.workflow.gateway.gateway import Gateway


def load_policy_model(
    config: AjetConfig,
    path: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    with_weights: bool = True,
) -> LoadedModel:
    """Loads the model that the config names, or the one at `path`, with the config's other
    settings. `dtype` and `device` replace the config's."""
    from ajet.core.model.load import load_model, resolve_device

    section = config.ajet.model
    device = device or section.device
    return load_model(
        path or section.path or "",
        dtype=dtype or dtype_on(config, gpu=resolve_device(device).type == "cuda"),
        device=device,
        chat_template=section.chat_template,
        with_weights=with_weights,
    )


def load_learning_model(
    config: AjetConfig, ranks: Ranks | None = None, path: str | None = None
) -> LoadedModel:
    """Loads the model for a learner over `ranks`. A model that is going to be sharded is loaded in
    CPU memory, in the type that it would have on the GPU, so that no GPU ever holds it completely.
    Rank 0 alone reads its weights; the others get their shards from it (core/update/sharding.py).
    """
    from ajet.core.update.settings import trains_on_gpu

    if ranks is None or ranks.compute_dtype is None:
        return load_policy_model(config, path)
    dtype = dtype_on(config, gpu=trains_on_gpu(config))
    return load_policy_model(config, path, dtype=dtype, device="cpu", with_weights=ranks.rank == 0)


def make_template(loaded: LoadedModel) -> ChatTemplate:
    """Returns the tokenizer's chat template, which also knows the model's own end tokens."""
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.tool_parsers import detect_family

    end = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = [end] if isinstance(end, int) else list(end or ())
    template = ChatTemplate(loaded.tokenizer, ends)
    if "tools" in template.text and detect_family(template) is None:
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
    gathers: bool = True,
    on_tokens: OnTokens | None = None,
    adapters: Mapping[str, nn.Module] | None = None,
) -> InProcessEngine:
    """Makes the in-process engine over a loaded model; `deterministic` replaces the config's.
    Without it, and without `gathers`, a request to an idle engine waits for no other.
    `on_tokens` is called with what each request has sampled, after each token. `adapters` are the
    models of several adapters; where none are given, each is the loaded model, as an adapter that
    has not learnt anything is."""
    from ajet.core.inference.engines.in_process import InProcessEngine

    return InProcessEngine(
        loaded.model,
        stop_token_ids=template.stop_token_ids,
        max_num_seqs=config.ajet.rollout.max_env_worker,
        max_model_len=config.ajet.rollout.max_model_len,
        deterministic=config.ajet.rollout.deterministic if deterministic is None else deterministic,
        decode=template.text_of,
        on_tokens=on_tokens,
        gathers=gathers,
        adapters=adapters or dict.fromkeys(config.ajet.trainer_common.lora.adapters, loaded.model),
        make_graph=_make_graph(config),
    )


def _make_graph(config: AjetConfig) -> MakeGraph | None:
    """Returns what makes the graphs of an engine's decode steps; None if the config wants none."""
    from ajet.core.inference.engines.step_graph import cuda_graph_of

    return cuda_graph_of if config.ajet.rollout.cuda_graphs else None


def make_replica(config: AjetConfig, name: str) -> InProcessReplica:
    """Makes an inference server of this process: the in-process engine over a model of its own."""
    from ajet.core.inference.replicas.in_process import InProcessReplica
    from ajet.core.update.many_adapters import AdapterModels
    from ajet.core.update.settings import UpdateSettings

    loaded = load_policy_model(config)
    template = make_template(loaded)
    adapters = None
    if config.has_several_adapters:
        lora = UpdateSettings.from_config(config).lora
        assert lora is not None
        adapters = AdapterModels.over(loaded.model, lora)
    return InProcessReplica(
        name,
        loaded.model,
        stop_token_ids=template.stop_token_ids,
        max_num_seqs=config.ajet.rollout.max_env_worker,
        max_model_len=config.ajet.rollout.max_model_len,
        decode=template.text_of,
        adapters=None if adapters is None else adapters.models,
        adapter_weights=None if adapters is None else adapters.weights(),
        make_graph=_make_graph(config),
    )


def prepare_torch(config: AjetConfig, share: int | None = None) -> None:
    """Sets torch's CPU threads to those of the config, or to `share`, if either is given, and
    rounds subnormal numbers to 0. Call it before other threads start: they inherit the rounding.

    A run that is resumed with another number of threads is not bit-identical.
    """
    import torch

    # Attention weights below 1e-38 cost a processor a hundred cycles each (0101).
    torch.set_flush_denormal(True)
    threads = config.ajet.trainer_common.torch_threads or share
    if threads is not None:
        torch.set_num_threads(threads)


def user_files(config: AjetConfig) -> list[Path]:
    """Returns the files of the user's workflow, agents, judge and tools, as far as the config names
    them. The files that list tools may hold keys, so the run stores the tools' code and not the
    lists."""
    judge = judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)
    workflow = WorkflowFactory.from_config(config).default
    kinds = [user_class for user_class in (workflow, judge) if user_class is not None]
    user_classes = [user_class for user_class in kinds if not user_class.__module__.startswith("ajet.")]
    turns = config.ajet.rollout.multi_turn
    listings = [path for path in (turns.tool_config_path, turns.interaction_config_path) if path]
    return [
        *(Path(inspect.getfile(user_class)) for user_class in [*user_classes, *import_agent_modules(config)]),
        *(find_file(path, config.base_dirs, "ajet.rollout.multi_turn") for path in listings),
    ]


def read_tasks(config: AjetConfig) -> RunTasks:
    """Reads the tasks of a run. An agent that would refuse the config in every episode refuses it
    here; so is a task without a field that the teacher's hint names, or without an adapter."""
    tasks = RunTasks.read(config)
    if (hint := RolloutLimits.from_config(config).hint) is not None:
        for task in tasks.training:
            hint_for(hint, task)
    if (adapters := AdapterChoice.from_config(config)) is not None:
        for task in [*tasks.training, *tasks.held_out]:
            adapters.for_task(task)
    workflow = WorkflowFactory.from_config(config)
    for agent in workflow.classes_for([*tasks.training, *tasks.held_out]):
        agent.check_config(config)
    return tasks


def make_critic(config: AjetConfig, loaded: LoadedModel, ranks: Ranks | None = None) -> Critic:
    """Makes the critic beside the policy that was made of `loaded`. Its model is read again, so it
    starts from the weights on disk, whatever the policy's are by now."""
    from ajet.core.update.critic import Critic
    from ajet.core.update.ranks import ONE_RANK
    from ajet.core.update.settings import CriticSettings

    path = config.ajet.trainer_common.critic.path
    critic = load_learning_model(config, ranks, path)
    if critic.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"ajet.trainer_common.critic.path: the tokenizer of {path!r} has other tokens than the "
            "policy's; take a model with the same one, or null",
            code=Code.OTHER_TOKENIZER,
        )
    return Critic(critic.model, CriticSettings.from_config(config), ranks or ONE_RANK)


def make_teacher(
    config: AjetConfig, loaded: LoadedModel, policy: Policy, ranks: Ranks | None = None
) -> Teacher:
    """Makes the teacher beside the policy that was made of `loaded`: a model of this process, one
    behind a server, which is asked whether it fits, or the policy itself."""
    from ajet.core.learning.teacher import Teacher
    from ajet.core.learning.teacher_server import ServerAddress, TeacherServer
    from ajet.core.update.frozen_model import FrozenModel
    from ajet.core.update.ranks import ONE_RANK
    from ajet.core.update.settings import UpdateSettings, tokens_per_pass

    section, ranks = config.ajet.distillation, ranks or ONE_RANK

    def teacher(scorer: Scorer) -> Teacher:
        return Teacher(scorer, section.reward_weight, is_shown_hints=section.hint is not None)

    if section.own_weights:
        return teacher(policy)
    if section.base_url is not None:
        server = TeacherServer(ServerAddress.from_config(config), ranks)
        if ranks.rank == 0:
            server.check(loaded.tokenizer, config.ajet.rollout.max_model_len)
        return teacher(server)
    loaded_teacher = load_learning_model(config, ranks, section.path)
    if loaded_teacher.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"ajet.distillation.path: the tokenizer of {section.path!r} has other tokens than the "
            "policy's, whose tokens it is to score: take a teacher with the same tokenizer",
            code=Code.OTHER_TOKENIZER,
        )
    settings = UpdateSettings(
        temperature=config.ajet.rollout.temperature,
        max_tokens_per_micro_batch=tokens_per_pass(config),
        batch_layout=config.ajet.trainer_common.batch_layout,
    )
    return teacher(FrozenModel(loaded_teacher.model, settings, ranks))


def make_learner(
    config: AjetConfig, loaded: LoadedModel, ranks: Ranks | None = None
) -> Learner | AdapterLearners:
    """Makes the policy and the models that learn beside it, over `ranks` if there are several; a
    learner for each of several adapters. It must be called before a checkpoint is loaded: the
    reference is the policy as it is now."""
    from ajet.core.learning.adapter_learners import AdapterLearners
    from ajet.core.learning.credit import make_kl_controller
    from ajet.core.learning.learner import Learner, LearnerSettings
    from ajet.core.update.many_adapters import adapter_policies
    from ajet.core.update.own_loss import own_loss
    from ajet.core.update.policy import Policy
    from ajet.core.update.ranks import ONE_RANK
    from ajet.core.update.settings import UpdateSettings

    def learner_of(policy: Policy) -> Learner:
        needs_critic = config.ajet.trainer_common.algorithm.estimator.needs_critic
        critic = make_critic(config, loaded, ranks) if needs_critic else None
        teaches = config.ajet.kind == "distillation"
        teacher = make_teacher(config, loaded, policy, ranks) if teaches else None
        learning = LearnerSettings.from_config(config)
        return Learner(policy, critic, make_kl_controller(config), learning, teacher)

    arguments = (loaded.model, UpdateSettings.from_config(config), ranks or ONE_RANK, own_loss(config))
    if not config.has_several_adapters:
        return learner_of(Policy(*arguments))
    policies = adapter_policies(*arguments)
    return AdapterLearners({name: learner_of(policy) for name, policy in policies.items()})


def make_gateway(config: AjetConfig, offset: int = 0) -> Gateway:
    """Makes the HTTP address of the model for agents that ask for one. Each process that runs
    agents makes one, and closes it. A port that the config sets is that of the first; others count
    up from it."""
    from ajet.core.workflow.gateway.gateway import Gateway

    port = config.ajet.interchange_server.interchange_server_port
    return Gateway(None if port == "auto" else port + offset)


def make_runner(
    config: AjetConfig,
    endpoint: ModelEndpoint | ChatEndpoint,
    template: ChatTemplate | None,
    *,
    judge: BaseJudge | None,
    gateway: Gateway | None = None,
    debug: bool = False,
    limits: RolloutLimits | None = None,
    sampling: SamplingParams | None = None,
    on_error: OnError | None = None,
    observe: Callable[[WorkflowTask], CallObserver] | None = None,
    workflows: WorkflowFactory | None = None,
) -> GroupRunner:
    """Makes a runner of the config's episodes, of every mode, against any endpoint; a chat endpoint
    has no template. A run makes one judge and one gateway for all its runners. `limits`, `sampling`
    and `workflows` replace what the config says. `observe` is called with each episode that begins,
    and returns what is told of its calls."""
    from ajet.tool_parsers import parser_for

    workflows = workflows or WorkflowFactory.from_config(config)

    def of_mode(mode: Mode) -> EpisodeParts:
        drawn = sampling or SamplingParams.from_config(config, mode)
        if config.learns_from_rows(is_training=mode != "eval"):
            return EpisodeParts(WorkflowFactory.of_rows(), None, drawn)
        return EpisodeParts(workflows, judge, drawn)

    episodes = EpisodeRunner(
        endpoint=endpoint,
        template=template,
        parser=parser_for(template, config.ajet.rollout.tool_parser) if template else None,
        of_mode=of_mode,
        limits=limits or RolloutLimits.from_config(config),
        run_seed=config.ajet.seed,
        gateway=gateway,
        config=config,
        debug=debug,
        environments=environment_host(config),
        on_error=on_error,
        observe=observe,
        adapters=AdapterChoice.from_config(config),
    )
    return GroupRunner.from_episode_runner(episodes, judge)
