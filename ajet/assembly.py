"""Makes the parts of a run from its config. This module only wires: settings are translated next to
the class that reads them (`UpdateSettings.from_config`, `RolloutLimits.from_config`, …). Every
backbone calls these functions, so that a setting has the same meaning on all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.images.store import ImageFile, ImageStore
from ajet.core.inference.endpoint import ChatEndpoint, ModelEndpoint, SamplingParams
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import BaseJudge
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.attempt import OnError
from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.run.batch_plan import validation_sample
from ajet.core.run.run_tasks import RunTasks
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.base_recorder import CallObserver
from ajet.core.trajectory.hint import hint_for
from ajet.core.workflow.registry import WorkflowFactory
from ajet.environments.env_service.host import environment_host

if TYPE_CHECKING:
    from torch import nn

    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.learning.adapter_learners import AdapterLearners
    from ajet.core.learning.learner import Learner
    from ajet.core.learning.teacher import Scorer, Teacher
    from ajet.core.model.load import LoadedModel
    from ajet.core.ranks.ranks import Ranks
    from ajet.core.update.critic import Critic
    from ajet.core.update.policy import Policy
    from ajet.core.workflow.gateway.gateway import Gateway
    from ajet.engines.in_process import InProcessEngine, OnTokens
    from ajet.engines.in_process_replica import InProcessReplica


def load_policy_model(
    config: AjetConfig,
    path: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    with_weights: bool = True,
    images: ImageStore | None = None,
) -> LoadedModel:
    """Loads the config's model. `path`, `dtype` and `device` replace the config's; `images` are
    those that another model of the run sees."""
    from ajet.core.model.load import load_model, resolve_device

    section = config.ajet.model
    device = device or section.device
    if images is None and section.images.enabled:
        images = ImageStore(section.images.limits)
    return load_model(
        path or section.path or "",
        dtype=dtype or dtype_on(config, gpu=resolve_device(device).type == "cuda"),
        device=device,
        chat_template=section.chat_template,
        chat_template_kwargs=section.chat_template_kwargs,
        with_weights=with_weights,
        images=images,
        train_tower=section.images.train_tower,
    )


def run_images(config: AjetConfig, folder: RunFolder) -> ImageStore | None:
    """Returns the images of a run whose processes share its folder."""
    if not config.ajet.model.images.enabled:
        return None
    return ImageStore(config.ajet.model.images.limits, ImageFile(folder.images_db))


def save_processor_of(config: AjetConfig, folder: Path) -> None:
    """Copies the files of the model's image processor into a run's tokenizer folder."""
    from ajet.core.model.load import find_source
    from ajet.core.model.multimodal import save_processor

    source = find_source(config.ajet.model.path or "")
    save_processor(source.name_or_path, folder, source.options)


def load_learning_model(
    config: AjetConfig,
    ranks: Ranks | None = None,
    path: str | None = None,
    images: ImageStore | None = None,
) -> LoadedModel:
    from ajet.core.ranks.settings import trains_on_gpu

    if ranks is None or ranks.compute_dtype is None:
        return load_policy_model(config, path, images=images)
    # A model to shard is loaded in CPU memory, in the GPU's type: no GPU must hold all of it. Only
    # rank 0 reads weights; the others get their shards from it (core/ranks/sharding.py).
    dtype = dtype_on(config, gpu=trains_on_gpu(config.ajet.model.device))
    is_first = ranks.rank == 0
    return load_policy_model(
        config, path, dtype=dtype, device="cpu", with_weights=is_first, images=images
    )


def make_template(loaded: LoadedModel) -> ChatTemplate:
    """Returns the tokenizer's chat template, with the end tokens of the model's generation
    config."""
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.model.vision import vision_of
    from ajet.tool_parsers import detect_family

    end = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = [end] if isinstance(end, int) else list(end or ())
    vision = vision_of(loaded.model)
    template = ChatTemplate(loaded.tokenizer, ends, vision and vision.processor)
    if "tools" in template.text and detect_family(template) is None:
        logger.warning(
            "no parser for the chat template's form of tool calls: they stay text, unless "
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
    """Makes the in-process engine over a loaded model. `deterministic` replaces the config's; if it
    and `gathers` are false, a request to an idle engine does not wait for others. `on_tokens` is
    called after each token with what a request has sampled. `adapters` are the models of several
    adapters; by default each is the loaded model, like an untrained adapter."""
    from ajet.engines.in_process import InProcessEngine
    from ajet.engines.step_graph import cuda_graph_of

    return InProcessEngine(
        loaded.model,
        stop_token_ids=template.stop_token_ids,
        max_num_seqs=config.ajet.rollout.max_env_worker,
        max_model_len=config.ajet.rollout.max_model_len,
        deterministic=config.ajet.rollout.deterministic if deterministic is None else deterministic,
        decode=template.text_of,
        grammars=template.grammars,
        on_tokens=on_tokens,
        gathers=gathers,
        adapters=adapters or dict.fromkeys(config.ajet.trainer_common.lora.adapters, loaded.model),
        make_graph=cuda_graph_of if config.ajet.rollout.cuda_graphs else None,
        records_routes=config.ajet.rollout.routing_replay,
    )


def make_replica(
    config: AjetConfig, name: str, images: ImageStore | None = None
) -> InProcessReplica:
    """Makes a replica in this process: the in-process engine over a newly loaded model, which sees
    `images`."""
    from ajet.core.update.many_adapters import AdapterModels
    from ajet.core.update.settings import UpdateSettings
    from ajet.engines.in_process_replica import InProcessReplica
    from ajet.engines.step_graph import cuda_graph_of

    loaded = load_policy_model(config, images=images)
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
        grammars=template.grammars,
        adapters=None if adapters is None else adapters.models,
        adapter_weights=None if adapters is None else adapters.weights(),
        make_graph=cuda_graph_of if config.ajet.rollout.cuda_graphs else None,
        records_routes=config.ajet.rollout.routing_replay,
        kept_versions=config.kept_versions,
    )


def prepare_torch(config: AjetConfig, share: int | None = None) -> None:
    """Sets torch's number of CPU threads to the config's, else to `share`, and flushes subnormal
    numbers to 0. Must be called before other threads start, which inherit the flushing.

    A run resumed with another number of threads is not bit-identical.
    """
    import torch

    # A subnormal attention weight costs a processor a hundred cycles (docs/adr/0101).
    torch.set_flush_denormal(True)
    threads = config.ajet.trainer_common.torch_threads or share
    if threads is not None:
        torch.set_num_threads(threads)


def user_files(config: AjetConfig, workflows: WorkflowFactory) -> list[Path]:
    """Returns the files of the user's workflow, agents, judge and tools that the config names. Of
    tools it is their code: the files that list them may contain keys, and a run stores these
    files."""
    from ajet.tools.toolbox import find_file

    judge = judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)
    classes = [workflows.default] if judge is None else [workflows.default, judge]
    theirs = [c for c in classes if not c.__module__.startswith("ajet.")]
    turns = config.ajet.rollout.multi_turn
    listings = [path for path in (turns.tool_config_path, turns.interaction_config_path) if path]
    return [
        *(Path(inspect.getfile(code)) for code in [*theirs, *workflows.modules]),
        *(find_file(path, config.base_dirs, "ajet.rollout.multi_turn") for path in listings),
    ]


def load_workflows(config: AjetConfig, tasks: Iterable[Task] = ()) -> WorkflowFactory:
    """Imports the user's workflow and agents, which a run does once in each process. Raises
    ConfigError if an agent of these tasks refuses the config."""
    workflows = WorkflowFactory.from_config(config)
    for agent in workflows.classes_for(tasks):
        agent.check_config(config)
    return workflows


def read_tasks(config: AjetConfig) -> RunTasks:
    """Reads the tasks of a run. Raises ConfigError now for what would fail in every episode: an
    agent that refuses the config, a task without a field of the teacher's hint or an adapter."""
    reader = make_reader(config)
    training, available = reader.get_training_tasks(), reader.get_validation_tasks()
    held_out = validation_sample(available, config)
    workflows = load_workflows(config, [*training, *held_out])
    tasks = RunTasks.of(config, workflows, training, held_out, len(available))
    if (hint := RolloutLimits.from_config(config).hint) is not None:
        for task in tasks.training:
            hint_for(hint, task)
    if (adapters := AdapterChoice.from_config(config)) is not None:
        for task in [*tasks.training, *tasks.held_out]:
            adapters.for_task(task)
    return tasks


def make_critic(config: AjetConfig, loaded: LoadedModel, ranks: Ranks | None = None) -> Critic:
    """Makes the critic for a policy made of `loaded`. Its model is read again, so it starts from
    the weights on disk."""
    from ajet.core.model.vision import images_of
    from ajet.core.ranks.ranks import ONE_RANK
    from ajet.core.update.critic import Critic
    from ajet.core.update.settings import CriticSettings

    path = config.ajet.trainer_common.critic.path
    critic = load_learning_model(config, ranks, path, images_of(loaded.model))
    if critic.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"ajet.trainer_common.critic.path: the tokenizer of {path!r} has another vocabulary "
            "than the policy's; use a model with the same tokenizer, or null",
            code=Code.OTHER_TOKENIZER,
        )
    return Critic(critic.model, CriticSettings.from_config(config), ranks or ONE_RANK)


def make_teacher(
    config: AjetConfig, loaded: LoadedModel, policy: Policy, ranks: Ranks | None = None
) -> Teacher:
    """Makes the teacher for a policy made of `loaded`: a model in this process, one behind
    a server, or the policy itself."""
    from ajet.core.learning.teacher import Teacher
    from ajet.core.learning.teacher_server import ServerAddress, TeacherServer
    from ajet.core.model.vision import images_of
    from ajet.core.ranks.ranks import ONE_RANK
    from ajet.core.update.frozen_model import FrozenModel
    from ajet.core.update.settings import UpdateSettings, tokens_per_pass

    section, ranks = config.ajet.distillation, ranks or ONE_RANK

    def teacher(scorer: Scorer) -> Teacher:
        return Teacher(scorer, section.reward_weight, is_shown_hints=section.hint is not None)

    if section.own_weights:
        return teacher(policy)
    if section.base_url is not None:
        server = TeacherServer(ServerAddress.from_config(config), ranks)
        if ranks.rank == 0:  # asks the server whether its tokenizer and context fit
            server.check(loaded.tokenizer, config.ajet.rollout.max_model_len)
        return teacher(server)
    loaded_teacher = load_learning_model(config, ranks, section.path, images_of(loaded.model))
    if loaded_teacher.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"ajet.distillation.path: the tokenizer of {section.path!r} has another vocabulary "
            "than the policy's, whose tokens it scores: use a teacher with the same tokenizer",
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
    """Makes the policy with critic, reference and teacher, over `ranks` if there are several; for
    several adapters, a learner for each. Must be called before a checkpoint is loaded, since the
    reference is the policy at this moment."""
    from ajet.core.inference.grammar import Grammars
    from ajet.core.learning.adapter_learners import AdapterLearners
    from ajet.core.learning.credit import make_kl_controller
    from ajet.core.learning.learner import Learner, LearnerSettings
    from ajet.core.learning.preference import Preference
    from ajet.core.ranks.ranks import ONE_RANK
    from ajet.core.update.many_adapters import adapter_policies
    from ajet.core.update.own_loss import own_loss
    from ajet.core.update.policy import Policy
    from ajet.core.update.settings import UpdateSettings

    def make(policy: Policy) -> Learner:
        algorithm = config.ajet.trainer_common.algorithm
        needs_critic = algorithm.estimator.needs_critic
        critic = make_critic(config, loaded, ranks) if needs_critic else None
        teaches = config.ajet.kind == "distillation"
        teacher = make_teacher(config, loaded, policy, ranks) if teaches else None
        learning = LearnerSettings.from_config(config)
        kl = make_kl_controller(algorithm.kl_ctrl)
        prefers = config.ajet.kind == "preference"
        length = config.ajet.rollout.max_model_len
        preference = Preference(config.ajet.preference, policy, length) if prefers else None
        grammars = Grammars(loaded.tokenizer)
        return Learner(policy, critic, kl, learning, teacher, grammars, preference)

    settings = UpdateSettings.from_config(config)
    arguments = (loaded.model, settings, ranks or ONE_RANK, own_loss(config))
    if settings.lora is not None:
        _warn_of_tokens(loaded)
    if not config.has_several_adapters:
        return make(Policy(*arguments))
    policies = adapter_policies(*arguments)
    return AdapterLearners({name: make(policy) for name, policy in policies.items()})


def _warn_of_tokens(loaded: LoadedModel) -> None:
    from ajet.core.update.lora import tokens_not_learnable

    if tokens := tokens_not_learnable(loaded.model, loaded.tokenizer):
        logger.warning(
            f"{' '.join(tokens)}: the model has the same weights for other tokens, and adapters do "
            "not change these, so it cannot learn to write them: train all weights "
            "(ajet.trainer_common.lora.rank=0), or let calls be written without them "
            "(ajet.rollout.tool_parser=json)"
        )


def make_gateway(config: AjetConfig, offset: int = 0) -> Gateway:
    """Makes the HTTP gateway for agents that ask for an address. Each process that runs agents
    makes and closes one; with a configured port, `offset` is added to it."""
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
    """Makes a runner of the config's episodes, in every mode, against any endpoint; a chat endpoint
    has no template. A run makes one judge and one gateway for all its runners. `limits`, `sampling`
    and `workflows` replace the config's. `observe` is called when an episode begins and returns the
    observer of its calls."""
    from ajet.tool_parsers import parser_for

    workflows = workflows or load_workflows(config)

    def parts_for(mode: Mode) -> EpisodeParts:
        params = sampling or SamplingParams.from_config(config, mode)
        if config.learns_from_rows(is_training=mode != "eval"):
            return EpisodeParts(WorkflowFactory.for_rows(), None, params)
        return EpisodeParts(workflows, judge, params)

    episodes = EpisodeRunner(
        endpoint=endpoint,
        template=template,
        parser=parser_for(template, config.ajet.rollout.tool_parser) if template else None,
        parts_for=parts_for,
        limits=limits or RolloutLimits.from_config(config),
        run_seed=config.ajet.seed,
        gateway=gateway,
        config=config,
        debug=debug,
        environments=environment_host(config.ajet.task_reader),
        on_error=on_error,
        observe=observe,
        adapters=AdapterChoice.from_config(config),
    )
    return GroupRunner.from_episode_runner(episodes, judge)
