"""Episodes in clients' hands: begun once, ended once, and over when their client is gone."""

import asyncio
import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from ajet import BaseJudge, GroupJudge, Task, WorkflowOutput, WorkflowTask
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.trajectory.trajectory import EpisodeStatus, SelectionName
from ajet.serve.exchange.exchange import BeginRequest, EpisodeExchange, Outcome
from ajet.serve.exchange.gateway import SwarmGateway
from ajet.serve.exchange.runs import ServedRuns
from ajet.serve.exchange.workflow import ClientOwned
from tests.serve.exchange.served import API, KEY, TASKS, MemoryJournal, served


class Answers(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        is_right = workflow_output.metadata["said"] == workflow_task.task.metadata["answer"]
        return float(is_right), is_right


async def test_a_step_is_full_when_clients_have_ended_its_episodes():
    async with served() as server:
        step = server.rollout()
        rewards = [0.0, 1.0, 0.25, 0.5, 1.0, 0.0]
        played = await asyncio.gather(*(server.play(reward) for reward in rewards))
        groups = await step
    assert [group.group_id for group in groups] == [f"000000-train-000{n}" for n in range(3)]
    by_id = {claim["episode_id"]: outcome["reward"] for claim, outcome in played}
    assert {t.episode_id: t.reward for g in groups for t in g.trajectories} == by_id
    for t in (t for g in groups for t in g.trajectories):
        assert t.status is EpisodeStatus.OK
        assert [turn.messages[0]["content"] for turn in t.turns] == [
            t.workflow_task.task.main_query
        ]


async def test_a_client_is_told_what_it_needs():
    async with served(exchange=EpisodeExchange(episode_timeout_s=50.0, heartbeat_s=7.0)) as server:
        server.rollout()
        claim = await server.begin(agents=["solver", "critic"], task_id="t1")
        assert (await server.chat(claim, agent="critic")).status_code == 200
    assert claim["task"] == {
        "task_id": "t1",
        "main_query": "question 1",
        "init_messages": [],
        "metadata": {"answer": "1"},
    }
    assert (claim["episode_id"], claim["group_id"]) == ("000000-train-0001-00", "000000-train-0001")
    assert (claim["mode"], claim["step"], claim["rollout_index"]) == ("train", 0, 0)
    assert list(claim["api_keys"]) == ["solver", "critic"]
    assert (claim["timeout_s"], claim["heartbeat_s"]) == (50.0, 7.0)
    assert claim["base_url"] == f"{server.url}/v1"


async def test_members_of_a_group_have_one_seed_and_an_agent_its_name():
    async with served() as server:
        step = server.rollout(TASKS[:1])
        claims = [await server.begin(agents=["solver"]) for _ in range(2)]
        for claim in claims:
            await server.chat(claim)
            await server.end(claim)
        [group] = await step
    assert claims[0]["seed"] == claims[1]["seed"]
    assert {turn.agent_name for t in group.trajectories for turn in t.turns} == {"solver"}


async def test_without_a_reward_the_judge_gives_it():
    async with served(judge=Answers()) as server:
        server.rollout()
        claim = await server.begin(task_id="t2")
        right = await server.end(claim, None, metadata={"said": "2"})
        claim = await server.begin(task_id="t2")
        wrong = await server.end(claim, None, metadata={"said": "3"})
    assert (right.json()["reward"], right.json()["is_success"]) == (1.0, True)
    assert (wrong.json()["reward"], wrong.json()["is_success"]) == (0.0, False)


async def test_an_end_is_acknowledged_after_the_episode_is_stored():
    order = []
    journal = MemoryJournal(lambda trajectory: order.append("stored"))
    async with served(journal=journal) as server:
        server.rollout()
        answer = await server.end(await server.begin())
        order.append("acknowledged")
    assert answer.status_code == 200
    assert order[:2] == ["stored", "acknowledged"]


async def test_a_repeated_end_has_the_same_answer_and_no_effect():
    async with served() as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        claim = await server.begin()
        answers = [await server.end(claim, reward) for reward in (0.5, 0.75)]
        both = await asyncio.gather(server.end(claim, 1.0), server.end(claim, 0.0))
        [group] = await step
    assert {answer.text for answer in [*answers, *both]} == {answers[0].text}
    assert group.trajectories[0].reward == 0.5


async def test_a_repeated_begin_gets_the_same_episode():
    async with served(exchange=EpisodeExchange(episode_timeout_s=60.0)) as server:
        server.rollout()
        first = await server.begin(request_id="r1")
        again = await server.begin(request_id="r1")
        other = await server.begin(request_id="r2")
    assert again == first and first["deadline_unix_s"] is not None
    assert other["episode_id"] != first["episode_id"]


async def test_an_episode_past_its_deadline_is_over_and_its_late_end_is_told_why():
    async with served(episode_timeout_s=0.2) as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        await asyncio.sleep(0.4)  # nobody has begun it: its deadline has not either
        claim = await server.begin()
        [group] = await step
        late = await server.end(claim)
        chat = await server.chat(claim)
    assert group.trajectories[0].status is EpisodeStatus.TIMEOUT
    assert group.trajectories[0].reward is None
    assert (late.status_code, chat.status_code) == (410, 401)
    assert "not finished within 0.2 s" in late.json()["error"]["message"]


async def test_a_silent_client_loses_its_episode_which_is_offered_again():
    now_s = [0.0]
    exchange = EpisodeExchange(heartbeat_s=0.2, clock=lambda: now_s[0])
    async with served(exchange=exchange, failure_policy="retry") as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        gone = await server.begin()
        assert (await server.chat(gone)).status_code == 200
        now_s[0] += 1.0
        claim, outcome = await server.play(0.5)
        [group] = await step
        late = await server.end(gone)
    [trajectory] = group.trajectories
    assert (claim["episode_id"], outcome["status"]) == ("000000-train-0000-00-r1", "ok")
    assert [t.status for t in trajectory.attempts] == [EpisodeStatus.ENV_ERROR, EpisodeStatus.OK]
    assert trajectory.reward == 0.5
    assert late.status_code == 410
    assert "silent for 0.2 s" in late.json()["error"]["message"]


async def test_heartbeats_and_calls_of_the_model_keep_an_episode():
    now_s = [0.0]
    exchange = EpisodeExchange(heartbeat_s=10.0, clock=lambda: now_s[0])
    async with served(exchange=exchange) as server:
        server.rollout()
        by_heartbeat, by_call, silent = [await server.begin() for _ in range(3)]
        for _ in range(2):
            now_s[0] += 9.0
            beat = await server.post(f"/episodes/{by_heartbeat['id']}/heartbeat")
            assert beat.status_code == 200
            assert (await server.chat(by_call)).status_code == 200
        left = {c.claim_id: exchange.patience_s(c) for c in exchange._open.values()}
    assert left[by_heartbeat["id"]] == left[by_call["id"]] == 10.0
    assert left[silent["id"]] == -8.0


async def test_a_client_that_gives_up_is_answered_at_once_and_the_policy_decides():
    async with served(failure_policy="retry") as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        claim = await server.begin()
        answer = await server.post(f"/episodes/{claim['id']}/abort", {"reason": "no disk"})
        assert (answer.status_code, answer.json()) == (200, {"status": "aborted"})
        await server.play()
        [group] = await step
        end = await server.end(claim)
    [failed, _] = group.trajectories[0].attempts
    assert failed.status is EpisodeStatus.AGENT_ERROR
    assert "its client gave it up: no disk" in failed.error
    assert (end.status_code, end.json()["status"]) == (200, "retried")


async def test_an_end_that_fails_is_answered_before_another_client_has_run_the_retry():
    async with served(failure_policy="retry") as server:
        server.rollout(TASKS[:1], num_repeat=1)
        claim = await server.begin()
        answer = await server.post(f"/episodes/{claim['id']}/end", {"reward": 1e300})
    assert (answer.status_code, answer.json()["status"]) == (200, "retried")


async def test_a_judge_of_groups_is_not_waited_for_by_a_client_that_runs_them_in_turn():
    class Best(GroupJudge):
        def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            said = [output.metadata["said"] for output in workflow_outputs]
            return [(float(each == max(said)), each == max(said)) for each in said]

    exchange = EpisodeExchange(waits_for_group=True)
    async with served(judge=Best(), exchange=exchange) as server:
        step = server.rollout(TASKS[:1])
        first = await server.begin()
        pending = await server.end(first, None, metadata={"said": 1}, wait_s=0)
        second = await server.begin()
        best = await server.end(second, None, metadata={"said": 2})
        again = await server.end(first, None)
        await step
    assert (pending.status_code, pending.json()["awaits"]) == (202, "group")
    assert (best.json()["reward"], again.json()["reward"]) == (1.0, 0.0)


async def test_clients_bring_their_own_tasks_and_one_task_makes_a_group():
    exchange = EpisodeExchange(tasks="client")
    async with served(judge=Answers(), exchange=exchange) as server:
        step = server.rollout(TASKS[:2])
        for task_id in ("a", "b", "b", "a"):
            task = {"task_id": task_id, "main_query": f"my {task_id}", "metadata": {"answer": "x"}}
            claim = await server.begin(task=task)
            assert claim["task"]["main_query"] == f"my {task_id}"
            outcome = await server.end(claim, None, metadata={"said": "x"})
            assert outcome.json()["reward"] == 1.0
        groups = await step
    ids = [[t.workflow_task.task_id for t in group.trajectories] for group in groups]
    assert ids == [["a", "a"], ["b", "b"]]


async def test_whose_tasks_a_run_has_is_the_configs_choice():
    own = {"task": {"task_id": "a"}}
    async with served() as server:
        assert (await server.post("/episodes", own)).status_code == 400
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        assert (await server.post("/episodes", {})).status_code == 400


async def test_tasks_and_status_show_what_is_offered():
    async with served(max_env_worker=5) as server:
        server.rollout()
        claim = await server.begin(task_id="t0")
        await server.end(await server.begin(task_id="t0"))
        tasks, status = (await server.get("/tasks"))["tasks"], await server.get("/status")
    assert [(t["task"]["task_id"], t["num_offered"]) for t in tasks] == [("t1", 2), ("t2", 2)]
    assert (status["num_offered"], status["num_claimed"]) == (4, 1)
    assert (status["num_ended"], status["state"]) == ({"ok": 1}, "running")
    assert claim["id"] not in json.dumps([tasks, status])


async def test_a_paused_server_hands_nothing_out_and_keeps_what_is_open():
    async with served() as server:
        server.rollout()
        claim = await server.begin()
        assert (await server.post("/pause")).json()["state"] == "paused"
        assert (await server.post("/episodes", {"wait_s": 0})).status_code == 503
        waiting = asyncio.create_task(server.begin())
        assert (await server.end(claim)).status_code == 200
        await server.post("/resume")
        assert (await waiting)["episode_id"] != claim["episode_id"]


async def test_an_episode_that_was_stored_before_a_kill_is_not_asked_for_again():
    journal = MemoryJournal()
    async with served(journal=journal) as server:
        server.rollout(TASKS[:1])
        claim, outcome = await server.play(0.5)
        open_then = await server.begin()
    async with served(journal=journal) as server:
        step = server.rollout(TASKS[:1])
        other, _ = await server.play(0.75)
        again, stale = await server.end(claim), await server.end(open_then)
        [group] = await step
    assert {other["episode_id"], claim["episode_id"]} == {t.episode_id for t in group.trajectories}
    assert sorted(t.reward for t in group.trajectories) == [0.5, 0.75]
    assert (again.status_code, again.json()) == (200, outcome)
    assert stale.status_code == 410


def call_once(is_judging, url, claim):
    """Calls the model, from a thread, once the judge has been called."""
    assert is_judging.wait(60)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {claim['api_key']}"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)


async def test_calls_are_answered_while_a_plain_judge_works_and_verdicts_are_given_in_turn():
    is_judging, may_end, asked, most_at_once = threading.Event(), threading.Event(), [], 0

    class Works(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            nonlocal most_at_once
            asked.append(workflow_output.metadata["number"])
            most_at_once = max(most_at_once, len(asked) - asked.count(None))
            is_judging.set()
            assert may_end.wait(60)
            asked[asked.index(workflow_output.metadata["number"])] = None
            return workflow_output.metadata["number"] / 2

    async with served(judge=Works()) as server:
        step = server.rollout(TASKS[:1], num_repeat=3)
        first, second, third = [await server.begin() for _ in range(3)]
        verdicts = [
            asyncio.create_task(server.end(claim, None, metadata={"number": number}))
            for number, claim in ((1, first), (2, second))
        ]
        answer = await asyncio.to_thread(call_once, is_judging, server.url, third)
        assert answer.status_code == 200 and not any(each.done() for each in verdicts)
        may_end.set()
        rewards = [(await each).json()["reward"] for each in verdicts]
        await server.end(third, 0.25)
        [group] = await step
    assert rewards == [0.5, 1.0] and most_at_once == 1
    assert [t.reward for t in group.trajectories] == [0.5, 1.0, 0.25]


async def test_an_asynchronous_judge_that_blocks_delays_calls_and_costs_no_episode():
    is_judging = threading.Event()

    class Blocks(BaseJudge):
        async def compute_reward(self, workflow_task, workflow_output):
            is_judging.set()
            time.sleep(0.5)
            return 1.0, True

    async with served(judge=Blocks()) as server:
        server.gateway._stall_s = 0.1
        step = server.rollout(TASKS[:1])
        first, second = await server.begin(), await server.begin()
        asking = asyncio.create_task(asyncio.to_thread(call_once, is_judging, server.url, second))
        await server.end(first, None)
        assert (await asking).status_code == 200
        assert (await server.end(second, 0.5)).json()["status"] == "ok"
        [group] = await step
    assert [len(t.turns) for t in group.trajectories] == [0, 1]


async def test_a_plain_judge_that_fails_in_its_thread_fails_its_episode_alone():
    class Fails(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            return next(iter(workflow_output.metadata["rewards"]))

    async with served(judge=Fails()) as server:
        step = server.rollout(TASKS[:1])
        for rewards in ([], [0.5]):
            await server.end(await server.begin(), None, metadata={"rewards": rewards})
        [group] = await step
    assert [t.status.value for t in group.trajectories] == ["judge_error", "ok"]
    assert "StopIteration" in group.trajectories[0].error


def test_an_end_that_is_not_judged_when_the_run_begins_again_is_answered():
    exchange = EpisodeExchange()
    asked = exchange.begin(BeginRequest())
    with exchange.offer(WorkflowTask(TASKS[0], "e1", "000001-train-0000", 0, 1, "train", 0)):
        outcome = exchange.end(asked.result().claim_id, WorkflowOutput(reward=1.0))
    exchange.begin_attempt()
    error = "the run resumes from its last checkpoint, and offers it again"
    assert outcome.result(0) == Outcome("e1", "retried", error=error, state="retried")


async def test_an_outcome_says_why_its_episode_is_not_trained():
    async with served() as server:
        server.exchange.left_out_reason = lambda t: f"{t.turns[0].completion.policy_version} is old"
        server.rollout(TASKS[:1])
        claim, outcome = await server.play()
        assert (outcome["status"], outcome["left_out"]) == ("ok", "0 is old")
        assert (await server.end(claim)).json() == outcome


async def test_an_episode_is_followed_until_it_is_trained_or_is_not_going_to_be():
    async with served() as server:
        step = server.rollout(TASKS[:2])
        claims = [await server.begin() for _ in range(4)]

        async def state(number, **query):
            path = f"{API}/episodes/{claims[number]['id']}"
            headers = {"authorization": f"Bearer {KEY}"}
            found = (await server.http.get(path, params=query, headers=headers)).json()
            return found["state"], found["trained_step"], found["left_out"]

        assert await state(0) == ("running", None, None)
        waiting = asyncio.create_task(state(0, wait_s=60))
        ends = [(await server.end(claim)).json() for claim in claims]
        assert {end["state"] for end in ends} == {"waiting"}
        trained, stale = await step
        server.exchange.step_trained(3, [trained, stale.leave_out(SelectionName.STALE, "too old")])
        assert await waiting == ("trained", 3, None)
        assert await state(2) == ("not_trained", None, "too old")
        again = (await server.end(claims[0])).json()
        assert again == ends[0] | {"state": "trained", "trained_step": 3}

        server.exchange.rewind(2)
        assert await state(1) == ("waiting", None, None)
        ended = asyncio.create_task(state(1, wait_s=60))
        while not server.exchange._settling:
            await asyncio.sleep(0.01)
        server.exchange.close("the run has ended")
        assert await ended == ("not_trained", None, "the run has ended before its step")


async def test_an_episode_of_a_validation_is_not_trained_and_a_lost_one_is_over():
    async with served() as server:
        server.rollout(TASKS[:1], mode="eval")
        _, outcome = await server.play(mode="eval")
        assert (outcome["state"], outcome["left_out"][:20]) == (
            "not_trained",
            "it measures the mode",
        )
        open_one = await server.begin(mode="eval")
        server.runner.stop()
        path = f"{API}/episodes/{open_one['id']}?wait_s=30"
        answer = await server.http.get(path, headers={"authorization": f"Bearer {KEY}"})
        assert answer.status_code == 410
        bad = await server.http.get(
            f"{API}/episodes/x?wait_s=x", headers={"authorization": f"Bearer {KEY}"}
        )
        assert bad.status_code == 400


async def test_the_end_of_a_run_is_told_to_those_that_wait():
    async with served() as server:
        waiting = asyncio.create_task(server.post("/episodes"))
        while not (await server.get("/status"))["num_waiting_clients"]:
            await asyncio.sleep(0.01)
        server.exchange.close("the run has ended")
        answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "run_over")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/episodes", {"wait_s": -1}, 400),
        ("/episodes", {"wait_s": "long"}, 400),
        ("/episodes", {"agents": []}, 400),
        ("/episodes", {"agents": [1]}, 400),
        ("/episodes", {"agents": ["x" * 201]}, 400),
        ("/episodes", {"agents": ["x"] * 65}, 400),
        ("/episodes", {"mode": "test"}, 400),
        ("/episodes", {"task_id": "x" * 1001}, 400),
        ("/episodes", {"unknown": 1}, 400),
        ("/episodes", [], 400),
        ("/episodes/none/end", {"reward": 1}, 410),
        ("/episodes/none/end", {"reward": "1"}, 400),
        ("/episodes/none/end", {"metadata": []}, 400),
        ("/episodes/none/abort", {"reason": 1}, 400),
        ("/episodes/none/heartbeat", {}, 410),
        ("/nothing", {}, 404),
    ],
)
async def test_a_hostile_request_is_answered_with_a_status(path, body, status):
    async with served() as server:
        answer = await server.post(path, body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "result",
    [
        {"reward": float("nan")},
        {"reward": 10**400},
        {"reward": 1.0, "metrics": {"a": "b"}},
        {"reward": 1.0, "metrics": {str(n): 1.0 for n in range(2000)}},
        {"reward": None},
    ],
)
async def test_a_value_that_cannot_be_trained_on_fails_its_episode_alone(result):
    async with served() as server:
        step = server.rollout(TASKS[:1])
        claim = await server.begin()
        headers = {"authorization": f"Bearer {KEY}"}
        path = f"/ajet/v1/episodes/{claim['id']}/end"
        answer = await server.http.post(path, content=json.dumps(result), headers=headers)
        await server.play()
        [group] = await step
    assert answer.status_code == 200
    assert answer.json()["status"] in ("agent_error", "judge_error")
    assert [t.status.value for t in group.trajectories] == [answer.json()["status"], "ok"]


async def test_texts_that_are_no_unicode_are_stored():
    exchange = EpisodeExchange(tasks="client")
    async with served(exchange=exchange) as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        task = {"task_id": "\ud800", "main_query": "\ud800", "metadata": {"a": "\ud800"}}
        claim = await server.begin(task=task, agents=["\ud800"])
        answer = await server.end(claim, metadata={"b": "\ud800"})
        [group] = await step
    assert answer.json()["status"] == "ok"
    json.dumps(group.trajectories[0].workflow_task.task.metadata, ensure_ascii=False).encode()


async def test_only_the_servers_key_begins_and_ends_episodes():
    async with served() as server:
        server.rollout()
        claim = await server.begin()
        for key in ("x", claim["api_key"], "ключ"):
            ended = await server.http.post(
                f"/ajet/v1/episodes/{claim['id']}/end",
                json={"reward": 1},
                headers={"authorization": f"Bearer {key}".encode()},
            )
            assert ended.status_code == 401
        assert (await server.chat(claim | {"api_key": KEY})).status_code == 401
        assert (await server.end(claim)).status_code == 200


async def test_web_sites_and_other_names_of_this_machine_are_refused():
    async with served() as server:
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "http://["},
            {"host": "evil.example:80"},
            {"host": "127.0.0.1:1@evil.example"},
        ):
            answer = await server.post("/pause", **headers)
            assert answer.status_code == 403
        page = await server.post("/resume", origin="http://localhost:3000")
        assert page.status_code == 200


async def test_headers_of_a_proxy_are_not_trusted():
    async with served() as server:
        server.rollout(TASKS[:1])
        forwarded = {"x-forwarded-proto": "https", "x-forwarded-host": "elsewhere"}
        claim = (await server.post("/episodes", **forwarded)).json()
    assert claim["base_url"] == f"{server.url}/v1"


async def test_a_body_has_a_limit():
    async with served() as server:
        answer = await server.post("/episodes", {"task": {"task_id": "x" * (33 << 20)}})
    assert answer.status_code == 413


async def test_many_clients_have_episodes_at_the_same_time_and_none_fails():
    tasks = [Task(f"t{n}", f"question {n}") for n in range(25)]
    async with served(max_env_worker=100) as server:
        step = server.rollout(tasks, num_repeat=4)
        claims = await asyncio.gather(*(server.begin() for _ in range(100)))
        assert (await server.get("/status"))["num_claimed"] == 100
        for _ in range(2):
            calls = await asyncio.gather(*map(server.chat, claims))
            assert {call.status_code for call in calls} == {200}
        ends = await asyncio.gather(*map(server.end, claims))
        groups = await step
    assert [end.json()["status"] for end in ends] == ["ok"] * 100
    assert [len(t.turns) for group in groups for t in group.trajectories] == [2] * 100


async def test_two_models_learn_apart_from_an_episode_that_is_begun_at_two_servers():
    async with served() as pro, served() as con:
        steps = [pro.rollout(TASKS[:1], num_repeat=1), con.rollout(TASKS[:1], num_repeat=1)]
        sides = [await server.begin() for server in (pro, con)]
        assert (await pro.chat(sides[0], "for it?")).status_code == 200
        assert (await con.chat(sides[1], "against it?")).status_code == 200
        assert (await con.chat(sides[0])).status_code == 401
        await pro.end(sides[0], 1.0)
        await con.end(sides[1], 0.0)
        [[won], [lost]] = [await step for step in steps]
    assert (won.trajectories[0].reward, lost.trajectories[0].reward) == (1.0, 0.0)
    said = [group.trajectories[0].turns[0].messages[0]["content"] for group in (won, lost)]
    assert said == ["for it?", "against it?"]


def test_the_workflow_of_clients_says_that_it_needs_a_server():
    with pytest.raises(ConfigError, match="ajet serve --conf"):
        ClientOwned()


async def test_a_task_of_the_data_is_not_changed_by_a_clients():
    task = Task("t", "q")
    exchange = EpisodeExchange(tasks="client")
    async with served(exchange=exchange) as server:
        step = server.rollout([task], num_repeat=1)
        await server.play(task={"task_id": "mine"})
        [group] = await step
    assert (task.task_id, group.trajectories[0].workflow_task.task_id) == ("t", "mine")


def test_the_reference_has_every_route():
    page = (Path(__file__).parents[3] / "docs/episodes_over_http.md").read_text("utf-8")
    app = FastAPI()
    runs = ServedRuns(lambda text: (AjetConfig(), []))
    SwarmGateway(runs, KEY, "127.0.0.1", None).add_routes(app)
    served_paths = {
        f"{method} {route.path.replace('claim_id', 'id')}"
        for route in app.routes
        if route.path.startswith(API)
        for method in route.methods - {"HEAD"}
    }
    assert set(re.findall(r"^\| `((?:GET|POST) \S+)` \|", page, re.MULTILINE)) == served_paths
