"""The parts of a run that use a key have it, through the real assembly; and no key is forgotten.

`@shows` says which keys a test is about. `ELSEWHERE` has keys whose effect takes a server or an
agent's whole episode, with the test that shows it and why it is there.
"""

import ast
import functools
import io
import json
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from loguru import logger
from pydantic import ValidationError
from rich.console import Console

from ajet import Task, WorkflowTask, assembly
from ajet.agents.frame_recorder import frame_recorder_for
from ajet.backbones.debug.debugging import debug_episodes
from ajet.backbones.debug.training import DebugTraining
from ajet.backbones.disaggregated.async_run import open_buffer
from ajet.core.buffer.priority import PRIORITIES
from ajet.core.config.section import leaves
from ajet.core.errors import ModelError, RunFailed
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ContextOverflow, SamplingParams
from ajet.core.inference.engines.step_graph import cuda_graph_of
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.judge.judge_client import judge_client, user_judge_client
from ajet.core.model.load import LoadedModel
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import StepGroups
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.training_run import TrainingRun
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.workflow.registry import WorkflowFactory
from tests.agents.agent_runs import Zero, call, config_in, run, texts
from tests.cli.chat_server import ChatServer, message
from tests.config_reach.test_settings import SETTINGS, C, R, T, V, config_of
from tests.core.record.record_fixtures import episode, group_of
from tests.core.update.update_fixtures import tiny_model
from tests.env_server import StubService
from tests.fakes import ScriptedEndpoint, chat_tokenizer

PARTS: dict[str, str] = {}
READER, ENV, JUDGE = "ajet.task_reader", "ajet.environment", "ajet.task_judge"
TOKENIZER = chat_tokenizer("qwen2_5")


def shows(*keys):
    """The test is about these keys."""

    def mark(test):
        PARTS.update(dict.fromkeys(keys, test.__name__))
        return test

    return mark


# --- the model, its engine and its runners -------------------------------------------------------


@shows(f"{T}.lora.adapter_by")
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


@shows("ajet.model.path", "ajet.model.chat_template")
def test_the_model_is_the_one_that_is_named_with_the_template_that_is_given(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    given = {"ajet.model.path": "embedded:math", "ajet.model.dtype": "float64"}
    own = {"ajet.model.chat_template": str(tmp_path / "own.jinja")}
    found = assembly.load_policy_model(config_of(given | own))
    assert (found.name, found.model.dtype) == ("embedded:math", torch.float64)
    assert assembly.make_template(found).text == "{{ messages[0].content }}!"


@shows("ajet.model.device")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_model_is_loaded_on_the_device_that_is_named():
    given = {"ajet.model.path": "embedded:math", "ajet.model.device": "cuda:7"}
    with pytest.raises(ModelError, match="cuda:7"):
        assembly.load_policy_model(config_of(given))


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


@shows(f"{R}.cuda_graphs")
def test_the_engine_records_no_step_where_graphs_are_off():
    assert engine_of()._make_graph is cuda_graph_of
    assert engine_of(cuda_graphs=False)._make_graph is None


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_engine_computes_as_many_sequences_at_once_as_episodes_may_run(deterministic):
    engine = engine_of(max_env_worker=7, deterministic=deterministic)
    assert engine._batches[""]._max_num_seqs == 7
    assert engine._deterministic is deterministic


async def test_the_engine_ends_a_reply_at_a_stop_string():
    engine = engine_of()
    plain = SamplingParams(temperature=0.0, max_tokens=8)
    engine.enter("e")
    text = TOKENIZER.decode((await engine.generate([1, 2, 3], plain, "e/0")).token_ids)
    stopped = SamplingParams(temperature=0.0, max_tokens=8, stop=(text[1],))
    assert len((await engine.generate([1, 2, 3], stopped, "e/1")).token_ids) < 8
    engine.leave("e")
    await engine.close()


def runner_of(mode, reply="hi", **given):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, request: reply)
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
    endpoint, runner = runner_of(mode, **given)
    await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode=mode, num_repeat=1))
    (asked,) = endpoint.sampling.values()
    assert (asked.temperature, asked.top_p, asked.top_k, asked.max_tokens) == expected


def test_a_runner_has_the_configs_limits_and_seed():
    given = {f"{R}.multi_turn.max_steps": 3, f"{R}.max_env_worker": 2, "ajet.seed": 5}
    _, runner = runner_of("train", **given)
    config = config_of(given)
    assert runner.limits == runner.executor.limits == RolloutLimits.from_config(config)
    assert (runner.limits.max_steps, runner.admission.free_slots, runner.run_seed) == (3, 2, 5)


@shows(f"{R}.user_workflow")
def test_an_episode_runs_the_workflow_that_is_named():
    kinds = {
        spec: WorkflowFactory.from_config(config_of({f"{R}.user_workflow": spec})).default
        for spec in (None, "tool_agent")
    }
    assert {spec: kind.__name__ for spec, kind in kinds.items()} == {
        None: "SingleTurnAgent",
        "tool_agent": "ToolAgent",
    }


ASKS = """
from ajet import Workflow, WorkflowOutput

class Asks(Workflow):
    async def execute(self, workflow_task, model_tuner):
        tool = {"type": "function", "function": {"name": "stop", "parameters": {}}}
        reply = await model_tuner.chat([{"role": "user", "content": "q"}], [tool])
        return WorkflowOutput(metadata={"calls": len(reply.get("tool_calls") or [])})
"""


@shows(f"{R}.tool_parser")
@pytest.mark.parametrize(("name", "calls"), [("auto", 1), ("hermes", 1), ("mistral", 0)])
async def test_calls_are_read_in_the_form_that_is_named(tmp_path, name, calls):
    (tmp_path / "asks.py").write_text(ASKS)
    given = {f"{R}.user_workflow": f"{tmp_path}/asks.py->Asks", f"{R}.tool_parser": name}
    _, runner = runner_of("train", call("stop"), **given)
    request = RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=1)
    [group] = await runner.rollout(request)
    assert group.trajectories[0].output.metadata["calls"] == calls


@shows(f"{T}.torch_threads")
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


@shows("ajet.interchange_server.interchange_server_port")
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
    """The loop of a run, with everything but episodes and the update; what was validated, saved.
    `update` are the metrics of each step's."""
    config = config_of(DUMMY | given)
    validator, saved = Validator(), []

    async def save(step, state):
        saved.append(step)

    with RunFolder.open(tmp_path / "run") as folder:
        run = TrainingRun(
            config,
            folder,
            RunTasks.read(config),
            save=save,
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


@shows(f"{T}.sampler_gap.action", f"{T}.sampler_gap.max_kl")
async def test_a_gap_between_sampler_and_trainer_is_said_or_stops_the_run(tmp_path, warnings):
    gap = {"update/sampler_kl": 0.08}
    key = f"{T}.sampler_gap"
    await train(tmp_path / "a", gap, **{f"{key}.max_kl": 0.09})
    assert not any("drifted apart" in line for line in warnings)
    await train(tmp_path / "b", gap)
    assert sum("drifted apart" in line for line in warnings) == 1  # of six steps
    with pytest.raises(RunFailed, match=r"stopped after step 1 .*max_kl"):
        await train(tmp_path / "c", gap, **{f"{key}.action": "stop"})
    await train(tmp_path / "d", gap, **{f"{key}.action": "stop", f"{key}.max_kl": 0.09})


@shows(f"{T}.val_before_train", f"{T}.test_freq")
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


@shows(f"{T}.val_second_decoding")
@pytest.mark.parametrize(("temperature", "second"), [(0.0, ("sampled", 4)), (1.0, ("greedy", 1))])
async def test_a_run_validates_by_the_second_decoding_at_its_ends(tmp_path, temperature, second):
    given = {"ajet.rollout.val_kwargs.temperature": temperature, f"{T}.test_freq": 3}
    validated, _ = await train(tmp_path, **given, **{"ajet.data.val_max_tasks": 5})
    decoded = [(step, decoding, repeats) for step, repeats, _, decoding in validated if decoding]
    assert decoded == [(0, *second), (6, *second)]


@shows(f"{T}.save_freq")
@pytest.mark.parametrize(("frequency", "steps"), [(4, [4]), (2, [2, 4, 6]), (0, []), (-1, [])])
async def test_a_run_saves_when_the_config_says(tmp_path, frequency, steps):
    _, saved = await train(tmp_path, **{f"{T}.save_freq": frequency})
    assert saved == steps


@shows("ajet.context_tracker.log_tool_format_check", "ajet.context_tracker.detect_timeline_snap")
@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("log_tool_format_check", "step 1: 0 replies with a wrong call of a tool"),
        ("detect_timeline_snap", "step 1: 0 timelines broke off"),
    ],
)
async def test_a_run_logs_of_tokens_what_the_config_asks_for(tmp_path, key, line):
    heard = []
    sink = logger.add(lambda text: heard.append(text.strip()), format="{message}")
    await train(tmp_path / "asked", **{f"ajet.context_tracker.{key}": True})
    num_asked = heard.count(line)
    await train(tmp_path / "silent")
    logger.remove(sink)
    assert (num_asked, heard.count(line)) == (1, 1)


@shows(f"{T}.logger", "ajet.project_name")
async def test_metrics_go_to_the_loggers_that_are_named_under_the_projects_name(
    tmp_path, monkeypatch
):
    begun, wandb = [], ModuleType("wandb")
    sink = SimpleNamespace(log=lambda metrics, step: None, finish=lambda: None)
    wandb.init = lambda **options: begun.append(options) or sink
    wandb.login = lambda **options: True
    wandb.errors = SimpleNamespace(Error=RuntimeError)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    await train(tmp_path / "plain")
    assert begun == [] and list((tmp_path / "plain").rglob("events.out.tfevents*"))
    await train(tmp_path / "named", **{f"{T}.logger": ["wandb"], "ajet.project_name": "p"})
    assert [options["project"] for options in begun] == ["p"]
    assert not list((tmp_path / "named").rglob("events.out.tfevents*"))


@shows(f"{T}.traces")
async def test_a_run_is_followed_by_a_sender_of_traces_that_is_asked_for(tmp_path):
    for name, wanted in (("plain", []), ("traced", ["otlp"])):
        await train(tmp_path / name, **{f"{T}.traces": wanted})
        logs = tmp_path / name / "run" / "logs"
        assert [log.name for log in logs.glob("traces_*.log")] == [
            f"traces_{w}.log" for w in wanted
        ]


@shows(f"{T}.max_checkpoints_to_keep", f"{T}.resume")
def test_a_training_keeps_so_many_checkpoints_and_goes_on_where_it_is_told(tmp_path):
    given = {"ajet.model.path": "embedded:math", f"{T}.use_kl_loss": False}

    def training(folder, **more):
        config = config_of(DUMMY | given | {f"{T}.max_checkpoints_to_keep": 3} | more)
        tasks = RunTasks.read(config)
        return DebugTraining(config, tasks, folder, Interrupt(), Console(file=io.StringIO()))

    with RunFolder.open(tmp_path / "run") as folder:
        first = training(folder)
        for step in (1, 2, 3, 4):
            first.run.state.step = step
            first.checkpoints.save(folder.checkpoints, step, first.run.state.as_json())
        kept = sorted(folder.checkpoints.glob("step_*"))
        assert [path.name[-1] for path in kept] == ["2", "3", "4"]
        assert training(folder).run.state.step == 4
        assert training(folder, **{f"{T}.resume": str(kept[0])}).run.state.step == 2
        assert training(folder, **{f"{T}.resume": "disable"}).run.state.step == 0


# --- tasks and environments ----------------------------------------------------------------------


def write(path, *questions, field="question"):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in questions))
    return str(path)


@shows(
    f"{READER}.type",
    f"{READER}.query_field",
    f"{READER}.jsonl_dataset_file.training.file_path",
    f"{READER}.jsonl_dataset_file.validation.file_path",
)
def test_tasks_are_read_from_the_files_that_are_named(tmp_path):
    given = {
        f"{READER}.type": "jsonl_dataset_file",
        f"{READER}.query_field": "asked",
        f"{READER}.jsonl_dataset_file.training.file_path": write(
            tmp_path / "a.jsonl", "a1", "a2", field="asked"
        ),
        f"{READER}.jsonl_dataset_file.validation.file_path": write(
            tmp_path / "b.jsonl", "b1", field="asked"
        ),
    }
    tasks = RunTasks.read(config_of(given))
    assert [task.main_query for task in tasks.training] == ["a1", "a2"]
    assert [task.main_query for task in tasks.held_out] == ["b1"]


@shows(
    f"{READER}.huggingface_dat_repo.dataset_path",
    f"{READER}.huggingface_dat_repo.training_split",
    f"{READER}.huggingface_dat_repo.validation_split",
)
def test_tasks_are_the_splits_that_are_named(tmp_path):
    for split in ("train", "test", "extra", "dev"):
        write(tmp_path / "data" / f"{split}.jsonl", split)
    repo = f"{READER}.huggingface_dat_repo"
    given = {f"{repo}.dataset_path": str(tmp_path / "data")}

    def questions(**splits):
        tasks = RunTasks.read(config_of(given | {f"{repo}.{k}": v for k, v in splits.items()}))
        return [task.main_query for task in (*tasks.training, *tasks.held_out)]

    assert questions() == ["train", "test"]
    assert questions(training_split="extra", validation_split="dev") == ["extra", "dev"]


@shows(
    f"{READER}.dataset.training",
    f"{READER}.dataset.validation",
    f"{READER}.dataset.training_split",
    f"{READER}.dataset.validation_split",
)
def test_tasks_are_read_from_the_places_that_are_named(tmp_path):
    for folder in ("a", "b"):
        for split in ("train", "test", "extra", "dev"):
            write(tmp_path / folder / f"{split}.jsonl", f"{folder}-{split}")
    places = {"training": str(tmp_path / "a"), "validation": str(tmp_path / "b")}

    def questions(**fields):
        given = {f"{READER}.dataset.{name}": value for name, value in fields.items()}
        tasks = RunTasks.read(config_of({f"{READER}.type": "dataset"} | given))
        return [task.main_query for task in (*tasks.training, *tasks.held_out)]

    assert questions(training=places["training"]) == ["a-train", "a-test"]
    assert questions(**places) == ["a-train", "b-test"]
    splits = {"training_split": "extra", "validation_split": "dev"}
    assert questions(**places, **splits) == ["a-extra", "b-dev"]


@shows(
    f"{READER}.random_dummy.num_training",
    f"{READER}.random_dummy.num_validation",
    "ajet.data.shuffle",
)
def test_made_up_tasks_are_as_many_as_asked_for_and_are_drawn_by_the_seed():
    dummy = f"{READER}.random_dummy"
    given = DUMMY | {f"{dummy}.num_training": 9, f"{dummy}.num_validation": 3}

    def first(**more):
        tasks = RunTasks.read(config_of(given | {"ajet.data.train_batch_size": 9} | more))
        assert (len(tasks.training), len(tasks.held_out), tasks.total_steps) == (9, 3, 6)
        return list(tasks.cursor.next_batch(9))

    in_order = list(range(9))
    drawn = [first(**{"ajet.seed": seed}) for seed in (0, 1)]
    assert [sorted(each) for each in drawn] == [in_order, in_order]
    assert drawn[0] != drawn[1] and in_order not in drawn
    assert first(**{"ajet.data.shuffle": False}) == in_order


@shows(f"{ENV}.render_save_dir", f"{ENV}.max_rendered_episodes")
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


@shows("ajet.debug.debug_first_n_tasks", "ajet.debug.debug_max_parallel")
def test_debug_runs_so_many_tasks_at_a_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(FLOW)
    Path("peak").write_text("0")
    given = DUMMY | {"ajet.model.path": "embedded:math", f"{R}.user_workflow": "flow.py->Flow"}
    numbers = {"ajet.debug.debug_first_n_tasks": 5, "ajet.debug.debug_max_parallel": 3}
    found = debug_episodes(config_of(given | numbers), Console(file=io.StringIO()))
    assert (len(found), Path("peak").read_text()) == (5, "3")


@shows("ajet.debug.debug_max_reply_tokens")
def test_a_reply_has_so_many_tokens_in_debug(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = DUMMY | {"ajet.model.path": "embedded:math", "ajet.task_judge.judge_protocol": "math"}
    config = config_of(given | {"ajet.debug.debug_max_reply_tokens": 3})
    [episode, _] = debug_episodes(config, Console(file=io.StringIO()))
    assert len(episode.turns[0].completion.token_ids) == 3


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


@shows(f"{R}.multi_turn.tool_response_truncate_side")
@pytest.mark.parametrize(
    ("side", "shown"),
    [
        ("left", "aaaa…(56 characters cut)"),
        ("right", "(56 characters cut)…zzzz"),
        ("middle", "aa…(56 characters cut)…zz"),
    ],
)
async def test_what_stays_of_a_long_answer_is_the_side_that_is_named(tmp_path, side, shown):
    files = {
        "tools.py": "def long():\n    return 'a' * 30 + 'z' * 30\n",
        "tools.yaml": "tools:\n  - function: tools.py->long\n",
    }
    settings = {"max_tool_response_length": 4, "tool_response_truncate_side": side}
    config = config_in(tmp_path, files, tool_config_path="tools.yaml", **settings)
    assert texts(await run(config, call("long"), "ok")) == [shown]


@shows(f"{V}.do_sample")
def test_do_sample_must_agree_with_the_temperature():
    with pytest.raises(ValidationError, match=r"do_sample: False contradicts temperature: 0\.5"):
        config_of({f"{V}.do_sample": False, f"{V}.temperature": 0.5})
    assert config_of({f"{V}.do_sample": False, f"{V}.temperature": 0.0})


@shows(f"{C}.cache_path", f"{C}.requests_per_minute", f"{JUDGE}.alien_llm_model")
def test_a_judges_model_is_asked_as_the_config_says(tmp_path):
    given = {f"{C}.cache_path": str(tmp_path / "r.sqlite"), f"{C}.requests_per_minute": 7}
    client = user_judge_client(config_of(given | {f"{JUDGE}.alien_llm_model": "own"}))
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


@shows(*(f"{BUFFER}.{name}" for name in ("url", "priority", "max_reuse", "capacity")))
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

GENERATION, GRADER = f"{READER}.data_generation", f"{JUDGE}.rubrics_auto_grader"
DOCUMENTS = f"{GENERATION}.document_reader"
GRADING = {
    "query_field": "q",
    "answer_field": "said",
    "reference_field": "gold",
    "min_score": -1.0,
    "max_score": 9.0,
    "success_threshold": 0.75,
    "sampling": {"temperature": 0.5},
    "max_corrections": 7,
    "model_name": "own",
}
OF_LLM = GRADING | {"prompt": "{query} {answer}"}
OF_RUBRICS = GRADING | {
    "rubrics": [{"text": "short"}],
    "language": "zh",
    "query_specific_generate_number": 7,
    "enable_categorization": True,
    "categories_number": 7,
    "num_examples": 7,
    "grader_name": "own",
    "custom_evaluation_prompt": "{query} {answer}",
    "dataset_file.training.file_path": "graded.jsonl",
}
CHOOSE = {
    f"{JUDGE}.llm": {f"{JUDGE}.judge_protocol": "llm"},
    GRADER: {f"{JUDGE}.judge_type": "rubrics_auto_grader"},
}


@shows(*(f"{JUDGE}.llm.{name}" for name in OF_LLM), *(f"{GRADER}.{name}" for name in OF_RUBRICS))
@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        *((f"{JUDGE}.llm", name, value) for name, value in OF_LLM.items()),
        *((GRADER, name, value) for name, value in OF_RUBRICS.items()),
    ],
)
def test_a_judge_that_asks_a_model_has_its_own_section(section, name, value):
    named = {f"{section}.model_name": "m"}
    config = config_of(CHOOSE[section] | named | {f"{section}.{name}": value})
    judge = make_judge(config)
    grader = judge._grader
    expected = functools.reduce(getattr, section.split("."), config)
    assert grader._section is expected
    assert judge._rubrics._section is expected if section == GRADER else True
    assert grader.client.model == ("own" if name == "model_name" else "m")
    assert grader._sampling == (value if name == "sampling" else expected.sampling)
    is_prompt = name in ("prompt", "custom_evaluation_prompt")
    assert (grader._template == "{query} {answer}") is is_prompt


def writes(body):
    questions = [{"question": f"What is {body['seed']}-{n}?", "answer": n} for n in range(5)]
    return 200, message(json.dumps(questions))


@shows(
    *(f"{DOCUMENTS}.{name}" for name in ("document_path", "languages", "chunk_size", "split_by")),
    f"{DOCUMENTS}.cache_enabled",
    *(f"{GENERATION}.{name}" for name in ("task_num", "llm_model", "base_url", "cache_dir")),
    *(f"{GENERATION}.{name}" for name in ("llm_response_length", "sampling_params")),
)
def test_tasks_are_made_of_documents_as_the_config_says(tmp_path):
    (tmp_path / "a.txt").write_text("Alpha is first. Beta is next.\n\nGamma.")
    given = {f"{READER}.type": "data_generation"}
    given |= {
        f"{GENERATION}.{name}": value
        for name, value in {
            "task_num": 3,
            "llm_model": "own",
            "cache_dir": str(tmp_path / "made"),
            "llm_response_length": 77,
            "sampling_params": {"temperature": 0.5},
            "deduplication_filter.enabled": False,
            "document_reader.document_path": str(tmp_path / "a.txt"),
            "document_reader.languages": ["French"],
        }.items()
    }

    def asked(**documents):
        more = {f"{DOCUMENTS}.{name}": value for name, value in documents.items()}
        with ChatServer(writes) as server:
            config = config_of(given | more | {f"{GENERATION}.base_url": server.url})
            assert len(make_reader(config).get_training_tasks()) == 3
        return [body["messages"][1]["content"] for body in server.requests], server.requests[0]

    (told, *_), body = asked(cache_enabled=False)
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("own", 77, 0.5)
    assert "Alpha is first. Beta is next." in told and "language: French." in told
    assert not list((tmp_path / "made").glob("pieces-*"))
    (told, *_), _ = asked(chunk_size=16)
    assert "Alpha is first." in told and "Beta" not in told
    assert len(list((tmp_path / "made").glob("pieces-*"))) == 1
    (told, *_), _ = asked(chunk_size=30, split_by="paragraph")
    assert "Alpha is first. Beta is next." in told and "Gamma" not in told


@shows(
    f"{GENERATION}.query_reader.type",
    f"{GENERATION}.query_reader.jsonl_dataset_file.training.file_path",
    f"{GENERATION}.query_reader.jsonl_dataset_file.validation.file_path",
    f"{GENERATION}.query_reader.huggingface_dat_repo.dataset_path",
    f"{GENERATION}.query_reader.huggingface_dat_repo.training_split",
    f"{GENERATION}.query_reader.huggingface_dat_repo.validation_split",
)
def test_examples_are_read_by_a_reader_of_their_own(tmp_path):
    one, two = (write(tmp_path / "data" / f"{name}.jsonl", name) for name in ("one", "two"))
    files, repo = "jsonl_dataset_file", "huggingface_dat_repo"
    given = {f"{READER}.type": "data_generation"}

    def examples(kind, **query):
        section = f"{GENERATION}.query_reader"
        more = {f"{section}.{name.replace('__', '.')}": value for name, value in query.items()}
        reader = make_reader(config_of(given | more | {f"{section}.type": kind}))
        training = reader._examples.get_training_tasks()
        return [task.main_query for task in (*training, *reader.get_validation_tasks())]

    named = {f"{files}__training__file_path": one, f"{files}__validation__file_path": two}
    assert examples(files, **named) == ["one", "two"]
    splits = {f"{repo}__training_split": "two", f"{repo}__validation_split": "one"}
    assert examples(repo, **{f"{repo}__dataset_path": str(tmp_path / "data")}, **splits) == [
        "two",
        "one",
    ]


@shows(f"{GENERATION}.num_workers")
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


@shows(f"{READER}.env_service.training_split", f"{READER}.env_service.validation_split")
def test_the_service_is_asked_for_the_splits_that_are_named():
    def lists(verb, body):
        return 200, {"success": True, "data": [body["params"]["split"]]}

    with StubService(lists) as stub:
        service = f"{READER}.env_service"
        given = {f"{READER}.type": "env_service", f"{service}.env_url": stub.url}
        given |= {f"{service}.env_type": "e", f"{service}.training_split": "one"}
        tasks = RunTasks.read(config_of(given | {f"{service}.validation_split": "two"}))
    assert [task.task_id for task in (*tasks.training, *tasks.held_out)] == ["one", "two"]


@shows(f"{R}.router.max_tries")
@pytest.mark.ray
def test_an_endpoint_tries_as_many_engines_as_the_config_says(ray_session):
    from ajet.cluster.engines import Engines

    engines = Engines(config_of({"ajet.backbone": "verl", f"{R}.router.max_tries": 7}), [])
    assert engines.endpoint_factory()()._max_tries == 7
    engines.close()


# --- all keys ------------------------------------------------------------------------------------

TOOLS, USERS = "tests/agents/test_tool_agent.py", "tests/agents/test_tool_state.py"
TRACED, ALIKE = "tests/sources/test_tracing.py", "tests/sources/test_similarity.py"
ROWS = "tests/core/task/test_chat_rows.py"
GAMES = "tests/core/task/test_environment_reader.py"
PLAYED = "tests/agents/test_environment_agents.py"
COMPACTED = "tests/core/workflow/test_compaction.py"
TURNS, TRACING = f"{R}.multi_turn", f"{READER}.tracing"
UNLIKE = f"{GENERATION}.deduplication_filter"
ADAPTIVE, CURRICULUM = "tests/core/task/test_adaptive.py", "ajet.data.curriculum"
ALL_CUT = "test_replies_without_a_valid_call_end_the_episode_and_one_with_a_valid_call_starts_anew"

HARNESS = "tests/harness/test_harness_workflow.py"
ROUNDS = "tests/online/test_rounds.py"
ELSEWHERE: dict[str, dict[str, list[str]]] = {
    "the server of episodes that clients run": {
        "tests/exchange/test_setup.py::test_the_server_has_the_configs_settings": [
            f"ajet.serve.{name}" for name in ("host", "port", "heartbeat_s", "tasks")
        ],
    },
    "a served model that learns in rounds": {
        test: [f"ajet.serve.learn.{key}" for key in keys]
        for test, keys in {
            f"{ROUNDS}::test_enough_feedback_makes_a_version_and_new_sessions_have_it": [
                "sessions_per_round"
            ],
            f"{ROUNDS}::test_the_config_says_whose_sessions_are_trained_and_how_old_they_may_be": [
                "excluded_clients",
                "max_staleness",
            ],
            f"{ROUNDS}::test_a_round_without_the_sessions_of_a_client_that_contradicts_is_made_again"
            "_with_the_same_bits": ["max_false_exclusion"],
            f"{ROUNDS}::test_a_session_has_the_newest_version_where_the_config_says_so_or_its_own_is"
            "_let_go": ["version_for", "num_versions"],
            f"{ROUNDS}::test_a_version_that_is_not_better_enough_is_never_served": [
                "min_difference"
            ],
            f"{ROUNDS}::test_a_round_says_what_its_decision_rests_on_and_who_gave_feedback": [
                "shadow_sessions"
            ],
            "tests/online/test_promotion.py"
            "::test_a_version_is_promoted_by_the_rule_of_the_config": ["promote", "max_shadow_kl"],
            "tests/online/test_served_sessions.py"
            "::test_the_users_next_message_is_feedback_on_what_was_said_before_it": [
                "next_message"
            ],
            f"{ROUNDS}::test_a_learners_process_runs_its_round_with_the_configs_niceness": [
                "niceness"
            ],
        }.items()
    },
    "command-line agents, which are programs of their own": {
        f"{HARNESS}::{test}": [f"ajet.{key}" for key in keys]
        for test, keys in {
            "test_a_sandbox_that_is_not_installed_is_refused_and_not_left_out": [
                "harness.sandbox",
                "harness.image",
            ],
            "test_a_program_is_started_by_its_path_with_further_arguments_before_the_prompt": [
                "harness.program",
                "harness.arguments",
            ],
            "test_a_program_is_given_the_tasks_files_and_its_calls_are_the_episode": [
                "harness.command",
                "task_judge.hidden_tests.command",
            ],
            "test_a_shown_folder_beside_the_yaml_can_be_read_and_not_written": [
                "harness.shown_folders"
            ],
            "test_the_folder_is_removed_once_it_is_judged_unless_it_is_to_be_kept": [
                "harness.episode_folders"
            ],
            "test_a_program_that_uses_more_than_a_limit_is_ended_and_judged_as_truncated": [
                f"harness.limits.{name}"
                for name in ("memory_mib", "num_processes", "cpu_s", "folder_mib")
            ],
            "test_tmp_and_single_files_have_a_size_and_the_rest_is_read_only": [
                "harness.limits.tmp_mib"
            ],
            "test_what_a_program_writes_is_kept_to_its_end_and_no_further": ["harness.max_output"],
            "test_the_changes_of_a_folder_are_kept_to_max_diff": ["harness.max_diff"],
            "test_a_hidden_test_that_does_not_end_within_timeout_s_has_not_passed": [
                "task_judge.hidden_tests.timeout_s"
            ],
        }.items()
    },
    "the runs of a config": {
        "tests/core/learning/test_teacher.py"
        "::test_the_config_names_the_teacher_and_the_weight_of_the_rewards": [
            "ajet.distillation.path",
            "ajet.distillation.reward_weight",
        ],
        "tests/core/learning/test_teacher.py::test_a_policy_teaches_itself_only_what_it_is_shown": [
            "ajet.distillation.own_weights",
            "ajet.distillation.hint",
        ],
        "tests/core/learning/test_teacher_server.py"
        "::test_a_server_with_the_same_tokens_is_taken_and_has_the_configs_settings": [
            f"ajet.distillation.{name}"
            for name in ("base_url", "model", "api", "timeout_s", "max_retries", "max_parallel")
        ],
        "tests/e2e/test_stages.py::test_each_stage_is_a_run_and_one_summary_has_them_all": [
            "ajet.stages"
        ],
    },
    "what rows become": {
        f"{ROWS}::test_the_validation_split_holds_rows_or_tasks": [
            "ajet.kind",
            "ajet.supervised.validation",
        ],
        f"{ROWS}::test_train_on_last_leaves_the_earlier_replies_as_context": [
            "ajet.supervised.train_on"
        ],
    },
    "algorithms of the user's own": {
        "tests/core/advantage/test_own_estimator.py"
        "::test_shaped_rewards_are_what_the_estimator_reads": [
            "ajet.trainer_common.algorithm.reward_shaping"
        ],
        "tests/core/task/test_own_sampler.py"
        "::test_tasks_are_taken_in_the_functions_order_of_each_epoch": ["ajet.data.sampler"],
    },
    "an order of tasks by their results, with a fake policy": {
        f"{ADAPTIVE}::test_a_task_without_signal_rests_longer_each_time_and_is_asked_again": [
            f"{CURRICULUM}.rest"
        ],
        f"{ADAPTIVE}::test_quotas_hold_over_the_run_whatever_the_results_are": [
            f"{CURRICULUM}.quotas",
            f"{CURRICULUM}.tag_field",
        ],
        f"{ADAPTIVE}::test_an_evaluation_of_the_training_tasks_is_where_it_starts_from": [
            f"{CURRICULUM}.results_path"
        ],
    },
    "an agent's episode, with the agent's own helpers": {
        f"{TOOLS}::test_a_call_is_run_and_only_sampled_tokens_are_trained": [
            f"{TURNS}.system_prompt"
        ],
        f"{TOOLS}::test_a_mistake_in_the_tools_file_is_found_before_a_launch": [
            f"{TURNS}.tool_config_path"
        ],
        f"{USERS}::test_the_simulated_user_answers_until_it_has_heard_enough": [
            f"{TURNS}.interaction_config_path"
        ],
        f"{TOOLS}::test_the_last_reply_allowed_may_answer_but_not_call": [
            f"{TURNS}.max_assistant_turns"
        ],
        f"{USERS}::test_the_conversation_with_the_user_has_limits": [f"{TURNS}.max_user_turns"],
        f"{TOOLS}::test_a_call_beyond_a_limit_is_not_run_and_says_so": [
            f"{TURNS}.max_parallel_calls",
            f"{TURNS}.max_tool_calls",
        ],
        f"{TOOLS}::test_fifty_megabytes_are_cut_to_the_limit_and_counted": [
            f"{TURNS}.max_tool_response_length"
        ],
        f"{TOOLS}::test_a_tool_that_fails_is_a_counted_answer_and_the_episode_goes_on": [
            f"{TURNS}.tool_timeout_s"
        ],
        f"{TOOLS}::{ALL_CUT}": [f"{TURNS}.max_consecutive_invalid_calls"],
        f"{COMPACTED}::test_without_enable_a_long_conversation_is_truncated": [
            f"{R}.compaction.enable"
        ],
        f"{COMPACTED}::test_at_compacts_earlier": [f"{R}.compaction.at"],
        f"{COMPACTED}::test_summaries_are_trained_once_on_the_branch_that_they_end": [
            f"{R}.compaction.prompt"
        ],
        f"{COMPACTED}::test_a_summary_is_cut_at_its_limit_and_the_episode_goes_on": [
            f"{R}.compaction.max_summary_tokens"
        ],
        f"{COMPACTED}::test_keep_last_messages_stay_word_for_word_beside_the_summary": [
            f"{R}.compaction.keep_last_messages"
        ],
        "tests/agents/test_agent_names.py::"
        "test_a_module_of_the_config_registers_agents_that_rows_name": [f"{R}.agent_modules"],
        "tests/core/workflow/test_agent_loop.py::"
        "test_the_file_of_agent_loop_config_path_names_loops_and_their_settings": [
            f"{R}.agent.agent_loop_config_path"
        ],
        "tests/core/record/test_step_warnings.py::"
        "test_each_wrong_call_is_logged_where_the_config_asks_for_detail": [
            "ajet.context_tracker.log_tool_format_error_detail"
        ],
    },
    "an environment and its agent, with helpers of their own": {
        f"{GAMES}::test_each_group_of_a_step_is_a_task_and_tags_take_turns": [f"{ENV}.custom_envs"],
        f"{GAMES}::test_groups_are_divided_as_the_partition_says": [
            f"{ENV}.train_env_manager.tags",
            f"{ENV}.train_env_manager.num_groups_partition",
        ],
        f"{GAMES}::test_validation_has_num_env_groups_tasks_and_may_have_none": [
            f"{ENV}.val_env_manager.tags",
            f"{ENV}.val_env_manager.num_groups_partition",
            f"{ENV}.val_env_manager.num_env_groups",
        ],
        f"{PLAYED}::test_the_penalty_is_that_of_the_modes_manager": [
            f"{ENV}.train_env_manager.format_penalty",
            f"{ENV}.val_env_manager.format_penalty",
        ],
        "tests/core/environment/test_bad_environments.py::"
        "test_a_worker_holds_as_many_environments_as_the_manager_says": [
            f"{ENV}.train_env_manager.max_env_num_per_worker",
            f"{ENV}.val_env_manager.max_env_num_per_worker",
        ],
    },
    "recorded conversations, or a service of embeddings": {
        f"{TRACED}::test_a_phoenix_server_gives_all_pages_of_all_projects_with_their_scores": [
            f"{TRACING}.base_url",
            f"{TRACING}.project",
        ],
        f"{TRACED}::test_the_tasks_are_written_as_lines_that_the_jsonl_reader_reads": [
            f"{TRACING}.train_output_path"
        ],
        f"{TRACED}::test_the_held_out_share_is_exact_and_follows_from_the_words": [
            f"{TRACING}.validation_fraction"
        ],
        f"{TRACED}::test_filters_apply_in_their_order_and_count_what_they_drop": [
            f"{TRACING}.filters"
        ],
        "tests/sources/test_data_generation.py::test_examples_are_shown_and_no_task_is_like_them": [
            f"{UNLIKE}.enabled",
            f"{UNLIKE}.params.similarity_threshold",
        ],
        f"{ALIKE}::test_with_a_model_the_cosine_counts_and_vectors_are_kept": [
            f"{UNLIKE}.params.{name}" for name in ("db_path", "model", "api_key", "base_url")
        ],
    },
    "a server that does not start": {
        "tests/cluster/test_engine_servers.py::"
        "test_a_server_that_never_gets_healthy_is_one_line_with_its_log": [
            f"{R}.server.start_timeout_s"
        ],
    },
    "a run folder that was used before": {
        "tests/core/run/test_run_start.py::"
        "test_accept_changes_goes_on_and_records_what_changed_and_where": [f"{T}.accept_changes"],
    },
    "a second model": {
        "tests/test_assembly_of_updates.py::test_a_critic_of_other_tokens_is_refused_in_one_line": [
            f"{T}.critic.path"
        ],
    },
    "what may be stored and shown": {
        "tests/core/config/test_redacted_config.py::"
        "test_the_user_says_what_is_no_secret_and_a_key_that_names_one_must_be_named_itself": [
            "ajet.not_secret"
        ],
    },
    "the user's own judge reads it from its config": {
        "tests/core/config/test_config_keys.py::"
        "test_an_honoured_key_is_in_the_tree_without_a_notice": [
            f"{JUDGE}.alien_llm_response_length"
        ],
    },
}
"""Keys whose effect is shown by a test that is there already: why -> that test -> the keys."""
BY_TEST = {test: keys for tests in ELSEWHERE.values() for test, keys in tests.items()}


def test_every_key_that_is_honoured_has_a_row_here():
    config = config_of({})
    roots = ("ajet", "verl", "trinity")
    found = [leaf for root in roots for leaf in leaves(getattr(config, root), root)]
    honoured = {leaf.path for leaf in found}
    held = [*SETTINGS, *PARTS, *(key for keys in BY_TEST.values() for key in keys)]
    assert honoured - set(held) == set(), "keys without a row"
    assert set(held) - honoured == set(), "rows of keys that the config does not honour"


@pytest.mark.parametrize("test", BY_TEST)
def test_what_is_shown_elsewhere_is_there_and_speaks_of_the_key(test):
    file, _, name = test.partition("::")
    text = Path(file).read_text("utf-8")
    found = {each.name for each in ast.parse(text).body if hasattr(each, "name")}
    assert name in found
    told = text + (Path("tests/agents/agent_runs.py").read_text("utf-8"))
    assert [key for key in BY_TEST[test] if key.rpartition(".")[2] not in told] == []


def test_every_row_changes_its_key():
    config = config_of({})
    for key, row in SETTINGS.items():
        default = functools.reduce(getattr, key.split("."), config)
        assert row.value != default, key
