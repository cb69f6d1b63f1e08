"""Searches for better texts in a config, such as the system prompt, with the library gepa.

texts now ──► episodes of training tasks ──► judged ──► a few with answers and rewards
   ▲                                                        │
   └── kept if they earn more ◄── episodes ◄── new text ◄── reflection model
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from ajet import assembly
from ajet.backbones.evaluating import EvaluationPlan, LoadedSubject, Subject, load_subject
from ajet.core import seeding
from ajet.core.config import AjetConfig
from ajet.core.config.compose import read_yaml
from ajet.core.config.nested import with_values
from ajet.core.errors import ConfigError, KeysConflict, ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.openai_endpoint import KEY_VARIABLES, OpenAIEngine, api_key
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.atomic_file import write_output, write_text_atomically
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.engines.in_process import InProcessEngine
from ajet.read.reports.comparison_report import ComparisonReport, RecordedEvaluation
from ajet.read.reports.evaluation_report import EvaluationReport

DEFAULT_KEY = "ajet.rollout.multi_turn.system_prompt"
MAX_SHOWN = 4000
"""The length to which an episode's texts are cut for the reflection model, in characters."""
MAX_REFLECTION_TOKENS = 4096
KEYS = ("AJET_REFLECTION_API_KEY", *KEY_VARIABLES)
"""Environment variables that may hold the reflection model's key."""
Texts = dict[str, str]
Result = TypeVar("Result")
ReflectionModel = Callable[[str, int], Coroutine[Any, Any, str]]
"""Answers a prompt, sampled with a seed."""


@dataclass(frozen=True)
class SearchSettings:
    """`num_episodes` is the budget of the search on `num_tasks` training tasks; `num_held_out`
    held-out tasks are played `k` times each, before and after it."""

    keys: Sequence[str] = (DEFAULT_KEY,)
    num_tasks: int = 24
    num_episodes: int = 300
    num_held_out: int | None = None
    k: int | None = None
    batch: int = 3


@dataclass(frozen=True)
class SearchResult:
    """The texts before and after the search, their comparison on held-out tasks, and the folder
    with all episodes. `comparison` is None if no better texts were found."""

    before: Texts
    after: Texts
    candidates: list[dict[str, Any]]
    held_out: EvaluationReport
    comparison: ComparisonReport | None
    num_episodes: int
    folder: Path


def search_prompts(
    config: AjetConfig,
    subject: Subject,
    settings: SearchSettings,
    reflection: ReflectionModel | None = None,
    on_episode: Callable[[], None] = lambda: None,
) -> SearchResult:
    """Runs a search. Without a `reflection` model the evaluated model writes the new texts.

    Held-out tasks are played with the first texts and the best ones, and decide nothing. A task has
    the same seed with every text, so texts are compared under the same conditions. Episodes go into
    a separate run folder, each round of them as one step. A search cannot be resumed."""
    texts = {key: text_at(config, key) for key in settings.keys}
    training = EvaluationPlan.of(config, split="training", num_tasks=settings.num_tasks, k=1)
    held_out = EvaluationPlan.of(
        config, split="validation", num_tasks=settings.num_held_out, k=settings.k
    )
    served = load_subject(config, subject)
    folder = _new_folder(config.run_folder)
    folder.save_config(config)
    stops = served.template.stop_token_ids if served.template else []
    begun = datetime.now().isoformat(timespec="seconds")
    RunOrigin.from_config(config, stops, begun).write(folder.origin_json)
    if served.template is not None:
        served.template.tokenizer.save_pretrained(folder.tokenizer)
    with EpisodeStore(folder.episodes_db) as store:
        search = _Search(training, held_out, served, settings, store, reflection, on_episode)
        result = run_bounded(search.run(texts, folder))
    write_text_atomically(folder.path / "prompts.json", _as_json(result))
    return result


@dataclass
class _Search:
    """Plays episodes with candidate texts on one loaded model, and records them."""

    training: EvaluationPlan
    held_out: EvaluationPlan
    served: LoadedSubject
    settings: SearchSettings
    store: EpisodeStore
    reflection: ReflectionModel | None
    on_episode: Callable[[], None]
    steps: dict[str, list[int]] = field(default_factory=dict)  # JSON of texts -> their steps
    num_steps: int = 0
    num_played: int = 0

    async def run(self, texts: Texts, folder: RunFolder) -> SearchResult:
        try:
            before = await self._measure(texts)
            loop = asyncio.get_running_loop()
            best, candidates = await asyncio.to_thread(self._search, texts, folder, loop)
            comparison = None
            if best != texts:
                after = await self._measure(best)
                sides = replace(before, subject="before"), replace(after, subject="after")
                evaluations = [
                    RecordedEvaluation.of({"held-out tasks": report}) for report in sides
                ]
                comparison = ComparisonReport.of(*evaluations)
        finally:
            await self.served.engine.close()
        return SearchResult(
            texts, best, candidates, before, comparison, self.num_played, folder.path
        )

    async def _measure(self, texts: Texts) -> EvaluationReport:
        plan, started_s = self.held_out, time.monotonic()
        config = _with_texts(plan.config, texts)
        groups = await self.play(plan, config, plan.tasks, range(len(plan.tasks)), texts)
        return EvaluationReport.of(
            groups,
            subject=self.served.name,
            split=plan.split,
            sampling=SamplingParams.from_config(config, "eval"),
            seed=config.ajet.seed,
            seconds=time.monotonic() - started_s,
        )

    async def play(
        self,
        plan: EvaluationPlan,
        config: AjetConfig,
        tasks: Sequence[Task],
        numbers: Sequence[int],
        texts: Texts,
    ) -> list[Group]:
        """Plays tasks with the texts of `config`, as one step of the record. `numbers` are the
        tasks' positions in the plan, which determine their seeds."""
        limits = RolloutLimits.from_config(config)
        if plan is self.training:  # a text with which every episode fails is a bad one
            limits = replace(limits, max_failure_rate=1.0)
        step, self.num_steps = self.num_steps, self.num_steps + 1
        self.steps.setdefault(json.dumps(texts), []).append(step)
        request = RolloutRequest(tasks, step=step, mode="eval", num_repeat=plan.k, numbers=numbers)
        with closing(assembly.make_gateway(config)) as gateway:
            runner = assembly.make_runner(
                config,
                self.served.engine,
                self.served.template,
                judge=plan.judge,
                gateway=gateway,
                limits=limits,
                workflows=plan.workflows,
            )
            groups = await runner.rollout(request, on_episode=lambda _: self.on_episode())
        self.num_played += plan.k * len(tasks)
        self.store.write(step, groups)
        return groups

    def _search(
        self, texts: Texts, folder: RunFolder, loop: asyncio.AbstractEventLoop
    ) -> tuple[Texts, list[dict[str, Any]]]:
        """Runs gepa and returns the best texts and all that it kept. Blocks, so it needs a thread:
        gepa is synchronous, and the episodes it asks for run on `loop`."""
        from gepa.api import optimize

        numbers, calls = list(range(len(self.training.tasks))), count()
        model = self.reflection or own_reflection(self.served, self.training.config)
        run_seed = self.training.config.ajet.seed

        def reflect(prompt: str | list[dict[str, Any]]) -> str:
            assert isinstance(prompt, str)  # a list holds pictures, and no record of ours has any
            seed = seeding.derive(run_seed, "reflection", next(calls))
            return _wait(model(prompt, seed), loop)

        with (folder.logs / "prompts.log").open("w", encoding="utf-8") as log:
            logger: Any = SimpleNamespace(log=lambda message: log.write(f"{message}\n"))
            result = optimize(
                seed_candidate=texts,
                trainset=numbers,
                valset=numbers,
                adapter=_Adapter(self, loop),
                reflection_lm=reflect,
                max_metric_calls=self.settings.num_episodes,
                reflection_minibatch_size=min(self.settings.batch, len(numbers)),
                skip_perfect_score=False,
                cache_evaluation=True,
                logger=logger,
                seed=run_seed,
            )
        kept = [
            {
                "texts": candidate,
                "mean_reward": score,
                "steps": self.steps.get(json.dumps(candidate), []),
            }
            for candidate, score in zip(result.candidates, result.val_aggregate_scores, strict=True)
        ]
        # On a tie the earlier candidate wins, so texts change only for a higher reward.
        best = max(range(len(kept)), key=lambda index: (kept[index]["mean_reward"], -index))
        return dict(result.candidates[best]), kept


class _Adapter:
    """Plays episodes for gepa, which calls it from its thread."""

    propose_new_texts: Any = None  # gepa's hook for replacing its reflection prompt

    def __init__(self, search: _Search, loop: asyncio.AbstractEventLoop) -> None:
        self._search, self._loop = search, loop

    def evaluate(self, batch: list[int], candidate: Texts, capture_traces: bool = False) -> Any:
        """Plays the training tasks with these numbers. Texts that make the config invalid get
        reward 0."""
        from gepa.core.adapter import EvaluationBatch

        plan = self._search.training
        config = _with_texts(plan.config, candidate)
        numbers = list(dict.fromkeys(batch))  # gepa fills a batch up with tasks that are in it
        tasks = [plan.tasks[number] for number in numbers]
        try:
            for agent in plan.workflows.classes_for(tasks):
                agent.check_config(config)
        except ConfigError as error:
            records = [_refused(plan.tasks[number], error) for number in batch]
            return EvaluationBatch(records, [0.0] * len(batch), records)
        groups = _wait(self._search.play(plan, config, tasks, numbers, candidate), self._loop)
        of_number = dict(zip(numbers, (group.trajectories[0] for group in groups), strict=True))
        played = [of_number[number] for number in batch]
        records = [_record(trajectory) for trajectory in played]
        rewards = [_reward(trajectory) for trajectory in played]
        return EvaluationBatch(records, rewards, records)

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns the episodes that the reflection model sees for each text to change."""
        return {name: list(eval_batch.trajectories) for name in components_to_update}


def _wait(work: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


# ---------------------------------------------------------------- reflection


def endpoint_reflection(address: str, model: str, config: AjetConfig) -> ReflectionModel:
    """Returns the model of this name at an OpenAI-compatible address."""
    timeout_s = config.ajet.rollout.episode_timeout_s
    engine = OpenAIEngine(address, model=model, api_key=api_key(KEYS), timeout_s=timeout_s)
    return own_reflection(LoadedSubject(model, engine, None), config)


def own_reflection(served: LoadedSubject, config: AjetConfig) -> ReflectionModel:
    """Returns a loaded model, sampled as in training."""
    engine, template = served.engine, served.template
    sampling = SamplingParams.from_config(config, "train")

    async def reflect(prompt: str, seed: int) -> str:
        messages = [{"role": "user", "content": prompt}]
        if not isinstance(engine, InProcessEngine):
            limited = replace(sampling, max_tokens=MAX_REFLECTION_TOKENS, seed=seed)
            answer = await engine.chat(messages, None, limited, None)
            return str(answer.message.get("content") or "")
        assert template is not None
        ids = template.prompt_ids(messages)
        max_tokens = config.ajet.rollout.max_model_len - len(ids)
        if max_tokens < 1:
            raise ModelError(
                f"the model is to reflect on a prompt of {len(ids)} tokens, and "
                f"ajet.rollout.max_model_len is {config.ajet.rollout.max_model_len}: raise it, or "
                "give --reflection-endpoint and --reflection-model",
                code=Code.KEYS_CONFLICT,
            )
        limited = replace(
            sampling,
            max_tokens=min(max_tokens, MAX_REFLECTION_TOKENS),
            seed=seed,
            stop_token_ids=template.stop_token_ids,
        )
        name = f"reflection-{seed}"
        engine.enter(name)
        try:
            completion = await engine.generate(ids, limited, f"{name}/0000")
        finally:
            engine.leave(name)
        return template.decode(completion.token_ids)

    return reflect


def _record(trajectory: Trajectory) -> dict[str, str]:
    task, output = trajectory.workflow_task.task, trajectory.output
    metadata = output.metadata if output else {}
    last = trajectory.turns[-1] if trajectory.turns else None
    messages = [*last.messages, last.reply] if last else []
    lines = [f"{message.get('role')}: {message.get('content')}" for message in messages]
    answer = metadata.get("final_answer") or (last.reply.get("content") if last else "")
    verdict = [f"reward {_reward(trajectory):g}, {'a' if trajectory.is_success else 'no'} success"]
    verdict += [f"{name}: {value:g}" for name, value in trajectory.reward_breakdown.items()]
    verdict += [f"agent {name}: {value:g}" for name, value in trajectory.agent_rewards.items()]
    if (expected := task.metadata.get("answer")) is not None:
        verdict.append(f"expected: {expected}")
    if trajectory.error is not None or str(trajectory.outcome) != "ok":
        verdict.append(f"the episode ended as {trajectory.outcome}: {trajectory.error or ''}")
    return {
        "Task": _cut(task.main_query),
        "Conversation": _cut("\n".join(lines)),
        "Answer": _cut(str(answer)),
        "Feedback": _cut("\n".join(verdict)),
    }


def _refused(task: Task, error: ConfigError) -> dict[str, str]:
    return {"Task": _cut(task.main_query), "Feedback": f"the text cannot be used: {error}"}


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward if trajectory.is_valid and trajectory.reward is not None else 0.0


def _cut(text: str) -> str:
    """Cuts the middle out of a long text."""
    half = MAX_SHOWN // 2
    return text if len(text) <= MAX_SHOWN else f"{text[:half]}\n[…]\n{text[-half:]}"


# ---------------------------------------------------------------- texts of a config


def text_at(config: AjetConfig, key: str) -> str:
    """Returns the text at a config key, "" for null. Raises `ConfigError` for another key."""
    node: Any = config
    for name in key.split("."):
        fields: Mapping[str, Any] = {}
        if isinstance(node, BaseModel | dict):
            fields = dict(node)
        if name not in fields:
            names = ", ".join(map(str, fields)) or "nothing"
            raise ConfigError(
                f"--text {key}: the config has no {name!r} there; it has {names}",
                code=Code.UNKNOWN_KEY,
            )
        node = fields[name]
    if key.startswith("ajet.task_judge."):
        raise KeysConflict(
            f"--text {key}: the judge measures the texts, so its texts cannot be searched"
        )
    if node is not None and not isinstance(node, str):
        raise ConfigError(f"--text {key}: not a text", code=Code.UNKNOWN_KEY)
    return node or ""


def _with_texts(config: AjetConfig, texts: Texts) -> AjetConfig:
    """Returns the config with these texts. A text that was null and is still empty stays null."""
    changed = {key: text for key, text in texts.items() if text != text_at(config, key)}
    return with_values(config, changed)


# ---------------------------------------------------------------- results


def write_config(result: SearchResult, conf: Path, out: Path) -> None:
    content = read_yaml(conf)
    for key, text in result.after.items():
        node = content
        *sections, name = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = text
    head = f"# {conf.name} with the texts that `ajet optimize-prompt` found.\n"
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    write_output(out, head + body)


def _new_folder(run_folder: Path) -> RunFolder:
    """Makes a folder next to the run's; its name ends in a number if it is not the first."""
    first = Path(f"{run_folder}-prompts")
    paths = chain([first], (Path(f"{first}-{number}") for number in count(2)))
    return RunFolder.open(next(path for path in paths if not path.exists()))


def _as_json(result: SearchResult) -> str:
    plain = {
        "before": result.before,
        "after": result.after,
        "candidates": result.candidates,
        "num_episodes": result.num_episodes,
        "held_out_before": result.held_out.as_plain(),
    }
    if result.comparison is not None:
        plain["held_out"] = result.comparison.as_plain()
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
