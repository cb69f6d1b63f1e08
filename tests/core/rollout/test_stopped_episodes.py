"""An episode that a person stops: what the rest of the run sees, now and after a resume."""

import asyncio
import json
import time
from contextlib import ExitStack

import pytest
import torch

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.core.rollout.stops import StopRequests, held_request
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.core.rollout.tiny_model import tiny_engine
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{i}", f"question {i}") for i in range(2)]
HUNG = "000001-train-0000-01"


class Flow(Workflow):
    """Three calls; a tool of one episode hangs after its second one."""

    hangs = True

    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        for turn in range(3):
            messages.append(await model_tuner.chat(messages))
            messages.append({"role": "user", "content": "go on"})
            if workflow_task.episode_id.startswith(HUNG) and turn == 1 and self.hangs:
                await asyncio.sleep(3600)
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


class Answers(Flow):
    """The same agent on another day: its tool answers."""

    hangs = False


def requests_of(folder):
    return StopRequests(folder / "stops", folder / "stopped.jsonl")


async def rollout(folder, endpoint, workflow=Flow, asks=None, **limits):
    """All groups. Each time `asks()` names an episode, a person stops it."""
    limits = {"max_response_length_in_one_turn": 6, **limits}
    runner = episode_runner(workflow, endpoint, TOKENIZER, **limits)
    runner.watch.attach(requests_of(folder), "run", None)
    work = runner.rollout(RolloutRequest(TASKS, step=1, mode="train", num_repeat=3))
    task = asyncio.create_task(work)
    with ExitStack() as askers:
        while not task.done():
            await asyncio.wait({task}, timeout=0.02)
            name = asks(runner) if asks is not None else None
            if name is not None:
                askers.enter_context(held_request(folder / "stops" / name))
            runner.watch.look()
    return task.result()


def hangs(runner):
    """The episode that hangs, once it does."""
    calls = runner.executor.calls()
    found = [name for name in calls if name.startswith(HUNG)]
    waiting = runner.admission.waves.waiting() if runner.admission.waves else None
    return found[0] if found and waiting is not None and waiting.missing == (found[0],) else None


def content(groups):
    members = [t for group in groups for t in group.trajectories]
    return [
        (t.episode_id, str(t.status), t.reward, [x.completion for x in t.turns]) for t in members
    ]


async def with_engine(folder, **options):
    engine = tiny_engine(TOKENIZER, 8)
    try:
        return await asyncio.wait_for(rollout(folder, engine, **options), 60)
    finally:
        await engine.close()


async def test_a_stopped_episode_has_failed_with_its_reason_and_the_others_go_on(tmp_path):
    torch.set_num_threads(1)
    groups = await with_engine(tmp_path, asks=hangs)
    stopped = groups[0].trajectories[1]
    assert (stopped.status, stopped.error) == ("stopped", "stopped by a person (ajet inspect stop)")
    assert (len(stopped.turns), stopped.reward) == (2, None)
    others = [t for g in groups for t in g.trajectories if t is not stopped]
    assert [t.status for t in others] == ["ok"] * 5
    row = json.loads((tmp_path / "stopped.jsonl").read_text())
    assert (row["episode_id"], row["num_calls"], row["status"]) == (HUNG, 2, "stopped")
    assert list((tmp_path / "stops").iterdir()) == []


@pytest.mark.parametrize("workflow", [Flow, Answers])
async def test_a_run_that_resumes_ends_it_at_the_same_call_and_samples_the_same(tmp_path, workflow):
    torch.set_num_threads(1)
    first = await with_engine(tmp_path, asks=hangs)
    again = await with_engine(tmp_path, workflow=workflow)  # nobody asks: it is in the record
    assert content(again) == content(first)
    assert len((tmp_path / "stopped.jsonl").read_text().splitlines()) == 1


async def test_under_the_policy_retry_a_stopped_episode_is_not_run_again(tmp_path):
    torch.set_num_threads(1)
    groups = await with_engine(tmp_path, asks=hangs, failure_policy="retry", max_retries=2)
    assert groups[0].trajectories[1].status is EpisodeStatus.STOPPED
    assert groups[0].trajectories[1].earlier_attempts == ()


async def test_a_call_of_the_model_that_is_under_way_is_waited_for(tmp_path):
    class Slow(ScriptedEndpoint):
        """Its first answer to one episode waits for the test."""

        def __init__(self):
            super().__init__(TOKENIZER, lambda *_: "yes")
            self.answer = asyncio.Event()

        async def generate(self, prompt_ids, sampling, request_id):
            if request_id == f"{HUNG}/0000":
                await self.answer.wait()
            return await super().generate(prompt_ids, sampling, request_id)

    endpoint, asked = Slow(), []

    def asks(runner):
        if not asked and runner.executor.calls().get(HUNG):
            asked.append(HUNG)
            return HUNG
        if (tmp_path / "stops" / f"{HUNG}.taken").exists():
            endpoint.answer.set()
        return None

    groups = await asyncio.wait_for(rollout(tmp_path, endpoint, Answers, asks), 30)
    stopped = groups[0].trajectories[1]
    assert (stopped.status, len(stopped.turns)) == ("stopped", 1)


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_request_counts_while_its_asker_waits_whatever_the_date_does(
    tmp_path, monkeypatch, jump_s
):
    requests, now = requests_of(tmp_path), time.time
    with held_request(tmp_path / "stops" / HUNG):
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        assert requests.pending() == [HUNG]
    assert requests.pending() == []  # who asked is gone and has not taken it back: it was killed


def test_a_new_attempt_of_the_run_begins_without_requests(tmp_path):
    stops = tmp_path / "stops"
    with held_request(stops / HUNG):
        (stops / f"{HUNG}.taken").touch()
        (stops / f"{HUNG}.4711").touch()
        assert requests_of(tmp_path).pending() == []
        assert list(stops.iterdir()) == []


async def test_what_a_killed_command_left_does_not_stop_the_episode_when_it_begins(tmp_path):
    class Waits(ScriptedEndpoint):
        """Its answers wait for the test."""

        may_answer = asyncio.Event()

        async def generate(self, prompt_ids, sampling, request_id):
            await self.may_answer.wait()
            return await super().generate(prompt_ids, sampling, request_id)

    endpoint = Waits(TOKENIZER, lambda *_: "yes")

    def asks(runner):
        if (tmp_path / "stops" / HUNG).exists():  # the watch has looked since
            endpoint.may_answer.set()
        elif runner.executor.calls().get(HUNG):
            (tmp_path / "stops").mkdir()
            (tmp_path / "stops" / HUNG).touch()

    groups = await asyncio.wait_for(rollout(tmp_path, endpoint, Answers, asks), 30)
    assert groups[0].trajectories[1].status == "ok"


async def test_a_damaged_row_of_the_record_is_left_out_and_said(tmp_path, warnings):
    (tmp_path / "stopped.jsonl").write_bytes(
        b'{"episode_id": "000001-train-0000-01", "num_calls": 2, "status": "stopped", '
        b'"reason": "r"}\n\xff\n[]\n{"episode_id"'
    )
    assert list(requests_of(tmp_path).decided) == [HUNG]
    assert len(warnings) == 3
