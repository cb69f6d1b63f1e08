"""Run folders sent to a receiver over OTLP, into a stand-in of MLflow, and into a file."""

import json
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError, TraceError
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.trace_follower import TraceFollower
from ajet.core.user_code.activity import TimedCall
from ajet.read.episode_reader import EpisodeReader
from ajet.read.traces.export import TraceExport, _complete
from tests.core.record.record_fixtures import advantages_of, episode, group_of, sample_of, two_turns
from tests.read.traces.receiver import attributes, receiving

TOOL = {"id": "call_0", "type": "function", "function": {"name": "python", "arguments": "{}"}}


@pytest.fixture
def folder(tmp_path):
    """A run folder with two episodes of step 1."""
    with RunFolder.open(tmp_path / "run") as folder:
        folder.save_config(AjetConfig.model_validate({"ajet": {"experiment_name": "lake"}}))
        RunOrigin(None, None, str(tmp_path), "2026-01-01", []).write(folder.origin_json)
        rows = [{"step": 1, "time": 1013.0, "rollout/seconds": 13.0}]
        rows += [{"step": step, "time": 2000.0 + step} for step in range(2, 20)]
        folder.metrics_jsonl.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        add(folder, 1)
        yield folder


def add(folder, step):
    """Records two more episodes."""
    first, second = two_turns()
    first = replace(first, reply=first.reply | {"tool_calls": [TOOL]})
    made = [
        replace(
            episode(step=step, member=member, turns=(first, second)),
            began_unix_s=1000.0,
            calls=(TimedCall("tool python", 10.5, 10.75),),
        )
        for member in range(2)
    ]
    advantages = {each.episode_id: advantages_of(each, 0.5) for each in made}
    with EpisodeStore(folder.episodes_db) as store:
        store.write(step, [group_of(*made)], advantages, [sample_of(each) for each in made])


def names(step):
    return [f"{step:06d}-train-0000-{member:02d}" for member in range(2)]


@contextmanager
def sending(folder, address):
    export = TraceExport(folder.path)
    target = export.target("otlp", address)
    yield export, target
    target.close()


def test_otlp_has_a_trace_for_each_episode_in_the_words_of_the_conventions(folder):
    with receiving() as receiver, sending(folder, receiver.address) as (export, target):
        assert export.send(target) == 2
    assert receiver.requests == ["/v1/traces"] and receiver.episodes == names(1)
    root, first, tool, _ = receiver.spans[:4]
    assert {span.trace_id for span in receiver.spans[:4]} == {root.trace_id}
    assert first.parent_span_id == tool.parent_span_id == root.span_id
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (1010 * 10**9, 1010500000000)
    said = attributes(first)
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "You are an agent."}]},
        {"role": "user", "parts": [{"type": "text", "content": "6 times 7?"}]},
    ]
    assert json.loads(said["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "print(6*7)"},
                {"type": "tool_call", "id": "call_0", "name": "python", "arguments": "{}"},
            ],
            "finish_reason": "stop",
        }
    ]
    assert attributes(tool)["gen_ai.tool.call.result"] == "42"


def test_one_step_or_one_episode_is_sent_alone(folder):
    add(folder, 2)
    with receiving() as receiver, sending(folder, receiver.address) as (export, target):
        export.send(target, step=2)
        export.send(target, episodes=["000001-train-0000-01"])
    assert receiver.episodes == [*names(2), "000001-train-0000-01"]


def test_a_follower_goes_on_where_the_last_one_ended(folder):
    over = Interrupt()
    over.requested = True
    with receiving() as receiver:
        for step in (2, 3):
            with sending(folder, receiver.address) as (export, target):
                export.follow(target, over)
            add(folder, step)
    assert receiver.episodes == [*names(1), *names(2)]


def test_a_follower_sends_again_what_a_resumed_run_wrote_again(folder):
    over = Interrupt()
    over.requested = True
    with receiving() as receiver:
        add(folder, 2)
        with sending(folder, receiver.address) as (export, target):
            export.follow(target, over)
        with EpisodeStore(folder.episodes_db) as store:
            store.truncate_from(2)
        with sending(folder, receiver.address) as (export, target):
            assert export.follow(target, over) == 0
            add(folder, 2)
            assert export.follow(target, over) == 2
    assert receiver.episodes == [*names(1), *names(2), *names(2)]


def test_what_a_resumed_run_cut_off_between_two_reads_is_left_out(folder):
    add(folder, 2)
    with EpisodeReader(folder.episodes_db) as reader:
        rows = reader.newer_than(0)
        with EpisodeStore(folder.episodes_db) as store:
            store.truncate_from(2)
        assert [each.row.episode_id for each in _complete(reader, rows)] == names(1)


def test_a_receiver_that_refuses_is_tried_again_and_nothing_is_lost(folder, warnings):
    over = Interrupt()
    with receiving() as receiver, sending(folder, receiver.address) as (export, target):
        receiver.refuses = True
        thread = threading.Thread(target=export.follow, args=(target, over))
        thread.start()
        while not warnings:
            time.sleep(0.01)
        receiver.refuses = False
        over.requested = True
        thread.join()
        assert receiver.episodes == names(1)
        receiver.refuses = True
        add(folder, 2)
        with pytest.raises(TraceError, match="does not take spans: start a receiver there"):
            export.follow(target, over)


def test_damaged_progress_is_one_line(folder):
    (folder.logs / "traces.json").write_text("{")
    with (
        sending(folder, "http://127.0.0.1:1") as (export, target),
        pytest.raises(CheckpointError, match=r"traces\.json is damaged: .*; remove it"),
    ):
        export.follow(target, Interrupt())


class FakeMlflow(ModuleType):
    """Keeps the spans that are begun and ended, as the functions of MLflow that are used do."""

    MlflowException = ValueError

    def __init__(self):
        super().__init__("mlflow")
        self.begun, self.ended, self.uri, self.made = [], [], None, {}

    def set_tracking_uri(self, uri):
        self.uri = uri

    def get_experiment_by_name(self, name):
        return self.made.get(name)

    def create_experiment(self, name, artifact_location):
        self.made[name] = artifact_location

    def set_experiment(self, name):
        return SimpleNamespace(experiment_id="7")

    def start_span_no_context(self, name, **given):
        span = SimpleNamespace(name=name, **given)
        span.end = lambda **how: self.ended.append((name, how["status"], how["end_time_ns"]))
        self.begun.append(span)
        return span

    def flush_trace_async_logging(self, terminate=False):
        pass


def test_mlflow_has_the_spans_of_an_episode_below_it(folder, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    export = TraceExport(folder.path)
    target = export.target("mlflow", None)
    export.send(target, episodes=[names(1)[0]])
    target.close()
    assert fake.uri == f"sqlite:///{folder.logs / 'mlflow.db'}"
    assert list(fake.made.values()) == [(folder.logs / "mlflow").as_uri()]
    root, *calls = fake.begun
    assert [span.span_type for span in fake.begun] == ["AGENT", "CHAT_MODEL", "TOOL", "CHAT_MODEL"]
    assert root.parent_span is None and all(call.parent_span is root for call in calls)
    usage = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
    assert calls[0].attributes["mlflow.chat.tokenUsage"] == usage  # MLflow sums it over a trace
    assert root.experiment_id == "7" and root.tags["ajet.episode_id"] == names(1)[0]
    assert fake.ended[-1] == ("invoke_agent lake", "OK", 1012500000000)  # the episode ends last


def command(*arguments):
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def test_the_command_writes_a_file_for_perfetto(folder, tmp_path):
    file = tmp_path / "step.json"
    result = command(folder.path, "--perfetto", file, "--step", 1)
    assert result.exit_code == 0 and result.output.startswith(f"2 episodes: {file}")
    events = json.loads(file.read_text())["traceEvents"]
    assert sum(event.get("cat") == "episode" for event in events) == 2
    assert [event["dur"] for event in events if event.get("cat") == "phase"] == [13e6]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "error: say where traces go: --otlp default, --mlflow default, --perfetto FILE"),
        (["--otlp", "default", "--follow", "--step", "1"], "error: --follow sends all episodes"),
        (["--perfetto", "x.json", "--episode", "nobody"], "error: no episode 'nobody'"),
    ],
)
def test_a_command_that_cannot_be_done_is_one_line(folder, options, line):
    result = command(folder.path, *options)
    assert result.exit_code == 1 and result.output.startswith(line)
    assert len(result.output.splitlines()) == 1


def test_a_run_is_followed_by_a_process_that_ends_with_it(folder, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        follower = TraceFollower("otlp", folder)
        follower.check()
        add(folder, 2)
        follower.close()
        follower.close()
    assert receiver.episodes == [*names(1), *names(2)]


def test_a_follower_that_failed_is_reported_once_with_its_last_line(folder, warnings):
    folder.config_yaml.unlink()
    follower = TraceFollower("otlp", folder)
    follower._process.wait()
    follower.check()
    follower.check()
    follower.close()
    (said,) = warnings
    assert "traces are not sent to otlp any more: error: " in said
    assert said.endswith("`ajet inspect trace` sends what is recorded")
