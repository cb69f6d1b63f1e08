"""The parts of a run that use a key have it, through the real assembly, and every key is read."""

import ast
import functools
import io
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from ajet import Task, WorkflowTask, assembly
from ajet.agents.frame_recorder import frame_recorder_for
from ajet.backbones.debug.debugging import debug_episodes
from ajet.backbones.disaggregated.async_run import open_buffer
from ajet.core.buffer.priority import PRIORITIES
from ajet.core.config.section import leaves
from ajet.core.errors import RunFailed
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ContextOverflow, SamplingParams
from ajet.core.judge.judge import BaseJudge, judge_client
from ajet.core.model.load import LoadedModel
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import StepGroups
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.training_run import TrainingRun
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.engines.step_graph import cuda_graph_of
from tests.agents.agent_runs import Zero
from tests.cli.chat_server import ChatServer, message
from tests.config_reach.test_settings import C, R, T, V, config_of
from tests.core.record.record_fixtures import episode, group_of
from tests.core.update.update_fixtures import tiny_model
from tests.env_server import StubService
from tests.fakes import ScriptedEndpoint, chat_tokenizer

READER, ENV, JUDGE = "ajet.task_reader", "ajet.environment", "ajet.task_judge"
TOKENIZER = chat_tokenizer("qwen2_5")


# --- the model, its engine and its runners -------------------------------------------------------


def test_a_calls_adapter_is_named_by_its_agent_its_tag_or_its_task():
    def named(by):
        given = {f"{T}.lora.rank": 4, f"{T}.lora.adapters": ["a", "b"], f"{T}.lora.adapter_by": by}
        choice = AdapterChoice.from_config(config_of(given))
        assert choice is not None
        task = choice.for_task(Task("t", "q", metadata={"user": "a"}))
        return task.for_call("a", "b", trainable=True), task.for_call("x", "x", trainable=False)

    assert named("agent_name") == ("a", "")  # an agent that is not trained has the base
    assert named("target_tag") == ("b", "")
    assert named("metadata.user") == ("a", "a")


@functools.cache
def loaded():
    return LoadedModel(tiny_model(), TOKENIZER, "tiny")


def engine_of(**given):
    config = config_of({f"{R}.{name}": value for name, value in given.items()})
    return assembly.make_engine(config, loaded(), ChatTemplate(TOKENIZER))


def test_the_model_is_the_one_that_is_named_with_the_template_that_is_given(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!{{ mark }}")
    given = {"ajet.model.path": "embedded:math", "ajet.model.dtype": "float64"}
    own = {"ajet.model.chat_template": str(tmp_path / "own.jinja")}
    own["ajet.model.chat_template_kwargs"] = {"mark": "?"}
    found = assembly.load_policy_model(config_of(given | own))
    assert (found.name, found.model.dtype) == ("embedded:math", torch.float64)
    assert assembly.make_template(found).render([{"role": "user", "content": "a"}]) == "a!?"


async def test_the_engine_serves_as_much_context_as_the_config_says():
    engine = engine_of(max_model_len=6)
    sampling = SamplingParams(temperature=0.0, max_tokens=9)
    engine.enter("e")
    done = await engine.generate([1, 2, 3, 4], sampling, "e/0")
    assert len(done.token_ids) == 2  # 4 of the prompt, 6 in all
    with pytest.raises(ContextOverflow):
        await engine.generate([1, 2, 3, 4, 5, 6], sampling, "e/1")
    engine.leave("e")
    await engine.close()


def test_the_engine_records_no_step_where_graphs_are_off():
    assert engine_of()._make_graph is cuda_graph_of
    assert engine_of(cuda_graphs=False)._make_graph is None


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_engine_computes_as_many_sequences_at_once_as_episodes_may_run(deterministic):
    engine = engine_of(max_env_worker=7, deterministic=deterministic)
    assert engine._batches[""]._max_num_seqs == 7
    assert engine._deterministic is deterministic


def runner_of(**given):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, request: "hi")
    template = ChatTemplate(TOKENIZER)
    config = config_of(given)
    return endpoint, assembly.make_runner(config, endpoint, template, judge=Zero())


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("train", (0.7, 0.6, 5, 9)), ("eval", (0.3, 0.5, 4, 9)), ("baseline", (0.0, 1.0, -1, 9))],
)
async def test_the_model_is_asked_with_the_sampling_of_the_mode(mode, expected):
    train = {f"{R}.temperature": 0.7, f"{R}.top_p": 0.6, f"{R}.top_k": 5}
    validation = {f"{V}.temperature": 0.3, f"{V}.top_p": 0.5, f"{V}.top_k": 4}
    given = train | validation | {f"{R}.max_response_length_in_one_turn": 9}
    endpoint, runner = runner_of(**given)
    await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode=mode, num_repeat=1))
    (asked,) = endpoint.sampling.values()
    assert (asked.temperature, asked.top_p, asked.top_k, asked.max_tokens) == expected


def test_a_runner_has_the_configs_limits_and_seed():
    given = {f"{R}.multi_turn.max_steps": 3, f"{R}.max_env_worker": 2, "ajet.seed": 5}
    _, runner = runner_of(**given)
    config = config_of(given)
    assert runner.limits == runner.executor.limits == RolloutLimits.from_config(config)
    assert (runner.limits.max_steps, runner.admission.free_slots, runner.run_seed) == (3, 2, 5)


def test_torch_has_the_configs_threads():
    for threads in (1, 2):
        assembly.prepare_torch(config_of({f"{T}.torch_threads": threads}))
        assert torch.get_num_threads() == threads
    assembly.prepare_torch(config_of({}))
    assert torch.get_num_threads() == 2
    assembly.prepare_torch(config_of({}), share=1)
    assert torch.get_num_threads() == 1
    assembly.prepare_torch(config_of({f"{T}.torch_threads": 2}), share=1)
    assert torch.get_num_threads() == 2


async def test_the_gateway_has_the_configs_port_and_others_count_up_from_it(
    unused_tcp_port_factory,
):
    port = unused_tcp_port_factory()
    given = {"ajet.interchange_server.interchange_server_port": port}
    gateways = [assembly.make_gateway(config_of(given), offset) for offset in (0, 3)]
    assert [gateway.port for gateway in gateways] == [port, port + 3]
    assert assembly.make_gateway(config_of({})).port is None


# --- the run: steps, validation, checkpoints, what is logged -------------------------------------


class Validator:
    """Keeps what it is asked to roll out."""

    watch = SimpleNamespace(attach=lambda requests, run_folder, on_waiting: None)

    def __init__(self):
        self.asked = []

    async def rollout(self, request, on_episode=None):
        self.asked.append((request.step, request.num_repeat, len(request.tasks), request.decoding))
        return [group_of(episode(step=request.step, mode="eval"))]


DUMMY = {f"{READER}.type": "random_dummy", f"{T}.total_training_steps": 6}


async def train(tmp_path, update=None, **given):
    """The loop of a run, with everything but episodes and the update, whose metrics are `update`;
    what was validated, saved."""
    config = config_of(DUMMY | given)
    validator, saved = Validator(), []

    async def save(step, state, copies):
        return write(step)

    async def write(step):
        saved.append(step)

    with RunFolder.open(tmp_path / "run") as folder:
        run = TrainingRun(
            config,
            folder,
            assembly.read_tasks(config),
            save=save,
            saves_in_background=False,
            interrupt=Interrupt(),
            console=Console(file=io.StringIO()),
        )
        with run:
            await run.validate_if_due(validator)
            for step in run.steps_left():
                rollout = StepGroups([group_of(episode(step=step))], [], 1.0)
                empty = SimpleNamespace(advantages={}, samples=[], tokens=TrainedTokens())
                run.record_step(step, rollout, empty, dict(update or {}))
                await run.validate_if_due(validator)
                await run.save_if_due()
    return validator.asked, saved


async def test_a_gap_between_sampler_and_trainer_is_said_or_stops_the_run(tmp_path, warnings):
    gap = {"update/sampler_kl": 0.08}
    key = f"{T}.sampler_gap"
    await train(tmp_path / "a", gap, **{f"{key}.max_kl": 0.09})
    assert not any("drifted apart" in line for line in warnings)
    await train(tmp_path / "b", gap)
    assert sum("drifted apart" in line for line in warnings) == 1  # of six steps
    with pytest.raises(RunFailed, match=r"stopped after step 1 .*max_kl"):
        await train(tmp_path / "c", gap, **{f"{key}.action": "stop"})


@pytest.mark.parametrize(
    ("before", "frequency", "steps"),
    [
        (False, 4, [4]),
        (False, 0, []),
        (True, 4, [0, 4, 6]),  # and at the end, to compare with the beginning
        (True, 0, [0, 6]),
        (False, 2, [2, 4, 6]),
        (None, 4, [0, 4, 6]),
        (None, 0, []),
    ],
)
async def test_a_run_validates_when_the_config_says(tmp_path, before, frequency, steps):
    given = {f"{T}.val_before_train": before, f"{T}.test_freq": frequency, f"{T}.val_pass_n": 3}
    given |= {f"{T}.val_second_decoding": False, "ajet.data.val_max_tasks": 5}
    validated, _ = await train(tmp_path, **given)
    assert validated == [(step, 3, 5, None) for step in steps]


@pytest.mark.parametrize(("temperature", "second"), [(0.0, ("sampled", 4)), (1.0, ("greedy", 1))])
async def test_a_run_validates_by_the_second_decoding_at_its_ends(tmp_path, temperature, second):
    given = {"ajet.rollout.val_kwargs.temperature": temperature, f"{T}.test_freq": 3}
    validated, _ = await train(tmp_path, **given, **{"ajet.data.val_max_tasks": 5})
    decoded = [(step, decoding, repeats) for step, repeats, _, decoding in validated if decoding]
    assert decoded == [(0, *second), (6, *second)]


@pytest.mark.parametrize(("frequency", "steps"), [(4, [4]), (2, [2, 4, 6]), (0, []), (-1, [])])
async def test_a_run_saves_when_the_config_says(tmp_path, frequency, steps):
    _, saved = await train(tmp_path, **{f"{T}.save_freq": frequency})
    assert saved == steps


# --- tasks and environments ----------------------------------------------------------------------


def test_tasks_are_the_splits_that_are_named(tmp_path):
    for split in ("train", "test", "extra", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"question": split}) + "\n")
    repo = f"{READER}.huggingface_dat_repo"
    given = {f"{repo}.dataset_path": str(tmp_path)}

    def questions(**splits):
        tasks = assembly.read_tasks(
            config_of(given | {f"{repo}.{k}": v for k, v in splits.items()})
        )
        return [task.main_query for task in (*tasks.training, *tasks.held_out)]

    assert questions() == ["train", "test"]
    assert questions(training_split="extra", validation_split="dev") == ["extra", "dev"]


def test_made_up_tasks_are_as_many_as_asked_for_and_are_drawn_by_the_seed():
    dummy = f"{READER}.random_dummy"
    given = DUMMY | {f"{dummy}.num_training": 9, f"{dummy}.num_validation": 3}

    def first(**more):
        tasks = assembly.read_tasks(config_of(given | {"ajet.data.train_batch_size": 9} | more))
        assert (len(tasks.training), len(tasks.held_out), tasks.total_steps) == (9, 3, 6)
        return list(tasks.cursor.next_batch(9))

    in_order = list(range(9))
    drawn = [first(**{"ajet.seed": seed}) for seed in (0, 1)]
    assert [sorted(each) for each in drawn] == [in_order, in_order]
    assert drawn[0] != drawn[1] and in_order not in drawn
    assert first(**{"ajet.data.shuffle": False}) == in_order


def test_the_first_held_out_episodes_are_drawn_where_the_config_says(tmp_path):
    def place(number, **given):
        who = WorkflowTask(Task("t", "q"), "e", f"g-{number:04d}", 0, 4, "eval", 1)
        asked = {f"{ENV}.{name}": value for name, value in given.items()}
        config = config_of({"ajet.experiment_dir": str(tmp_path)} | asked)
        recorder = frame_recorder_for(config, who)
        return recorder and recorder._gif.parent

    assert place(0) is None
    assert place(0, render_save_dir="frames") == tmp_path / "frames" / "step_000004"
    assert place(8, render_save_dir="frames") is None
    assert place(8, render_save_dir="frames", max_rendered_episodes=9) is not None


def test_debug_runs_so_many_tasks_at_a_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(FLOW)
    Path("peak").write_text("0")
    given = DUMMY | {"ajet.model.path": "embedded:math", f"{R}.user_workflow": "flow.py->Flow"}
    numbers = {"ajet.debug.debug_first_n_tasks": 5, "ajet.debug.debug_max_parallel": 3}
    found = debug_episodes(config_of(given | numbers), Console(file=io.StringIO()))
    assert (len(found), Path("peak").read_text()) == (5, "3")


FLOW = """
import asyncio
from pathlib import Path
from ajet import Workflow, WorkflowOutput

class Flow(Workflow):
    running = 0

    async def execute(self, workflow_task, model_tuner):
        Flow.running += 1
        Path("peak").write_text(str(max(Flow.running, int(Path("peak").read_text()))))
        await asyncio.sleep(0.02)
        Flow.running -= 1
        return WorkflowOutput(reward=0.0)
"""


# --- tools, judges, the buffer -------------------------------------------------------------------


def test_a_judges_model_is_asked_as_the_config_says(tmp_path):
    given = {f"{C}.cache_path": str(tmp_path / "r.sqlite"), f"{C}.requests_per_minute": 7}
    client = BaseJudge(config_of(given | {f"{JUDGE}.model_name": "own"})).client
    assert client.model == "own" and client._cache.path == tmp_path / "r.sqlite"
    assert client._rate._starts_s.maxlen == 7
    plain = judge_client(config_of({f"{C}.cache_path": None}), "m")
    assert (plain.model, plain._cache, plain._rate) == ("m", None, None)


def test_a_judges_replies_are_kept_in_the_run_folder_once_there_is_one(tmp_path):
    config = config_of({"ajet.experiment_dir": str(tmp_path / "run")})
    assert judge_client(config, "m")._cache is None
    (tmp_path / "run").mkdir()
    kept = judge_client(config, "m")._cache
    assert kept.path == tmp_path / "run" / "judge_replies.sqlite"


BUFFER = "trinity.buffer"


def test_the_buffer_is_that_of_the_config(tmp_path):
    given = {"priority": "spread", "max_reuse": 3, "capacity": 40}
    given |= {"url": f"sqlite:///{tmp_path}/own.db"}
    with RunFolder.open(tmp_path / "run") as folder:
        plain = open_buffer(config_of({}), folder)
        own = open_buffer(config_of({f"{BUFFER}.{k}": v for k, v in given.items()}), folder)
        assert (plain._priority, plain._max_reuse, plain._capacity) == (
            PRIORITIES["oldest"],
            1,
            None,
        )
        assert (own._priority, own._max_reuse, own._capacity) == (PRIORITIES["spread"], 3, 40)
        assert own._run == plain._run == folder.run_id()
        assert folder.buffer_db.is_file() and (tmp_path / "own.db").is_file()
        for buffer in (plain, own):
            buffer.close()


# --- models behind an address --------------------------------------------------------------------

GENERATION = f"{READER}.data_generation"
DOCUMENTS = f"{GENERATION}.document_reader"


def writes(body):
    questions = [{"question": f"What is {body['seed']}-{n}?", "answer": n} for n in range(5)]
    return 200, message(json.dumps(questions))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_as_many_requests_for_tasks_run_at_once_as_the_config_says(tmp_path, num_workers):
    (tmp_path / "a.txt").write_text("Alpha is first. Beta is next. Gamma is last.")
    running, peak, lock = [], [], threading.Lock()

    def slow(body):
        with lock:
            running.append(body)
            peak.append(len(running))
        time.sleep(0.05)
        with lock:
            running.pop()
        return writes(body)

    given = {f"{READER}.type": "data_generation", f"{GENERATION}.task_num": 15}
    given |= {f"{DOCUMENTS}.document_path": str(tmp_path / "a.txt"), f"{DOCUMENTS}.chunk_size": 16}
    given |= {f"{GENERATION}.cache_dir": str(tmp_path), f"{GENERATION}.num_workers": num_workers}
    given |= {f"{GENERATION}.deduplication_filter.enabled": False}
    with ChatServer(slow) as server:
        make_reader(config_of(given | {f"{GENERATION}.base_url": server.url})).get_training_tasks()
    assert max(peak) == num_workers


def test_the_service_is_asked_for_the_splits_that_are_named():
    def lists(verb, body):
        return 200, {"success": True, "data": [body["params"]["split"]]}

    with StubService(lists) as stub:
        service = f"{READER}.env_service"
        given = {f"{READER}.type": "env_service", f"{service}.env_url": stub.url}
        given |= {f"{service}.env_type": "e", f"{service}.training_split": "one"}
        tasks = assembly.read_tasks(config_of(given | {f"{service}.validation_split": "two"}))
    assert [task.task_id for task in (*tasks.training, *tasks.held_out)] == ["one", "two"]


# --- all keys ------------------------------------------------------------------------------------


@functools.cache
def attributes_read():
    """The names of all attributes that the package reads."""
    trees = [ast.parse(path.read_text("utf-8")) for path in Path("ajet").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}


@pytest.mark.parametrize("root", ["ajet", "verl", "trinity"])
def test_every_key_of_the_config_is_read(root):
    keys = leaves(getattr(config_of({}), root), root)
    unread = [key.path for key in keys if key.path.rpartition(".")[2] not in attributes_read()]
    assert unread in ([], [f"{JUDGE}.alien_llm_response_length"])  # a user's own judge reads it
