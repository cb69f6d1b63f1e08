"""The suite of several turns: the loop, the services' answers, and the package's own verdicts."""

import ast
import json
import random

import pytest

from ajet.core.errors import DataError, RunFailed
from ajet.core.rollout.request import RolloutRequest
from ajet.suites.bfcl_multi_turn import (
    MAX_STEPS,
    MultiTurnAgent,
    MultiTurnJudge,
    Services,
    read_tasks,
    right_turns,
    service_classes,
)
from tests.agents.agent_runs import call, config_in
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.suites.bfcl_package import write_multi_turn_data


@pytest.fixture
def light(bfcl_package):
    """The one task of a package with one service: dim to 2, nothing, read."""
    write_multi_turn_data(bfcl_package / "data")
    [task] = read_tasks(None)
    return task


async def played(task, replies, tmp_path, family="qwen2_5", **limits):
    tokenizer, left = chat_tokenizer(family), list(replies)
    endpoint = ScriptedEndpoint(tokenizer, lambda prompt, request_id: left.pop(0))
    config = config_in(tmp_path)
    runner = episode_runner(
        MultiTurnAgent, endpoint, tokenizer, MultiTurnJudge(config), config=config, **limits
    )
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


async def test_turns_follow_each_other_and_the_services_answer(light, tmp_path):
    dim, read = call("dim", name="desk", level=2), call("read")
    found = await played(light, [dim, "Done.", "You're welcome.", read, "It is 2."], tmp_path)
    assert (found.reward, found.is_success) == (1.0, True)
    assert found.output.metadata["problem"] is None
    assert found.output.metadata["turns"] == [
        [[{"dim": {"name": "desk", "level": 2}}]],
        [],
        [[{"read": {}}]],
    ]
    last = chat_tokenizer("qwen2_5").decode(found.turns[-1].completion.prompt_ids)
    assert '{"level": 2}' in last and last.index("Dim to 2.") < last.index("Thanks.")


async def test_the_reward_is_the_share_of_turns_before_the_first_wrong_one(light, tmp_path):
    dim = call("dim", name="desk", level=2)
    unread = await played(light, [dim, "Done.", "Yes.", "Two, I think."], tmp_path)
    assert (unread.reward, unread.is_success) == (2 / 3, False)
    assert unread.output.metadata["problem"] == "multi_turn:empty_turn_model_response"
    bright = await played(
        light, [call("dim", name="desk", level=8), "Done.", "Yes.", call("read"), "8"], tmp_path
    )
    assert (bright.reward, bright.output.metadata["problem"]) == (
        0.0,
        "multi_turn:instance_state_mismatch",
    )


async def test_a_turn_has_a_limited_number_of_replies_with_calls(light, tmp_path):
    dim = call("dim", name="desk", level=2)
    endless = [dim, "Done.", "Yes.", *[call("read")] * (MAX_STEPS + 1)]
    found = await played(light, endless, tmp_path)
    assert len(found.turns) == len(endless)
    assert (found.reward, found.is_success) == (2 / 3, False)
    assert found.output.metadata["problem"] == "multi_turn:force_terminated"


def test_any_error_of_a_service_is_its_answer(light):
    services = Services(light.metadata, service_classes(light.metadata))
    assert services.call("dim", name="desk", level=3) == '{"level": 3}'
    assert services.call("read") == "3"
    assert services.call("read", 1).startswith("Error during execution: ")
    assert services.call("open") == "Error during execution: name 'open' is not defined"
    assert services.call("_load_scenario", {}).endswith("is not defined")
    assert services.call("remove") == "Error during execution: Function call remove is not allowed."
    assert light.metadata["initial_config"] == {"Light": {"level": 9}}


def test_services_keep_nothing_of_other_episodes_and_change_no_argument(light):
    row, given = light.metadata, ["a"]
    services = Services(row, service_classes(row))
    assert services.call("note", text="x") == '["x"]'
    assert Services(row, service_classes(row)).call("note", text="y") == '["y"]'
    assert services.call("note", text="z", to=given) == '["a", "z"]'
    assert given == ["a"]


def test_a_number_that_takes_hours_is_an_error(light):
    services = Services(light.metadata, service_classes(light.metadata))
    assert services.call("power", base=2, exponent=3) == "8"
    assert services.call("power", base=10, exponent=5000).startswith("Error during execution: ")
    found = services.call("power", base=9, exponent=12_000_000)
    assert found == "Error during execution: exponent is more than 10000"


def test_a_reference_answer_is_not_run_as_python(light):
    services = Services(light.metadata, service_classes(light.metadata))
    assert services.call_written("dim('desk', level=4)") == '{"level": 4}'
    for text in ("__import__('os').system('true')", "dim"):
        with pytest.raises(DataError, match="is not a call of a function"):
            services.call_written(text)


def test_turns_without_their_answer_are_one_line(bfcl_package):
    write_multi_turn_data(bfcl_package / "data")
    file = bfcl_package / "data/possible_answer/BFCL_v4_multi_turn_base.json"
    row = json.loads(file.read_text())
    file.write_text(json.dumps({**row, "ground_truth": row["ground_truth"][:2]}) + "\n")
    with pytest.raises(DataError, match="question has 3 turns, possible_answer 2"):
        read_tasks(None)


def as_calls(rows):
    """The reference calls of each turn, as a model makes them in one reply."""
    turns = []
    for row in rows:
        calls = []
        for text in row:
            node = ast.parse(text, mode="eval").body
            values = [ast.literal_eval(value) for value in node.args]
            given = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
            calls.append((node.func.id, values, given))
        turns.append(calls)
    return turns


def with_names(task, turns):
    """The same with all arguments by name, as tool calls have them."""
    names = {each["name"]: [*each["parameters"]["properties"]] for each in task["function"]}
    return [
        [[{name: {**dict(zip(names[name], values, strict=False)), **given}}]
         for name, values, given in calls]
        for calls in turns
    ]  # fmt: skip


def mutated(turns, rng):
    """The calls with one change: a call less, twice, with another value, or in another turn."""
    turns = [[[dict(call) for call in step] for step in steps] for steps in turns]
    number = rng.choice([n for n, steps in enumerate(turns) if steps])
    steps, at = turns[number], rng.randrange(len(turns[number]))
    kind = rng.choice(["less", "twice", "value", "later"])
    if kind == "less":
        del steps[at]
    elif kind == "twice":
        steps.insert(at, steps[at])
    elif kind == "later":
        turns[-1].append(steps.pop(at))
    else:
        [(name, given)] = steps[at][0].items()
        if given:
            key = rng.choice(sorted(given))
            value = given[key]
            other = value + 1 if isinstance(value, int | float) else f"{value}x"
            steps[at] = [{name: {**given, key: other}}]
    return turns


def test_the_verdict_is_the_packages_own_on_references_and_500_changes(real_bfcl):
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    rng, verdicts = random.Random(0), {True: 0, False: 0}
    tasks = [task.metadata for task in read_tasks(None)]
    assert len(tasks) == 200

    def check(task, turns, number):
        written = [
            [
                [
                    f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
                    for call in step
                    for name, given in call.items()
                ]
                for step in steps
            ]
            for steps in turns
        ]
        official = multi_turn_checker(
            written, task["ground_truth"], task, "multi_turn_base", f"model{number}"
        )
        _, problem = right_turns(task, turns)
        assert problem == official.get("error_type"), (task["id"], turns)
        verdicts[problem is None] += 1

    references = [with_names(task, as_calls(task["ground_truth"])) for task in tasks]
    for number, (task, turns) in enumerate(zip(tasks, references, strict=True)):
        check(task, turns, number)
    assert verdicts == {True: 200, False: 0}
    for number in range(500):
        at = rng.randrange(200)
        check(tasks[at], mutated(references[at], rng), 200 + number)
    assert min(verdicts.values()) > 100


@pytest.mark.parametrize("number", [0, 90, 147])
async def test_reference_calls_win_through_the_agent(real_bfcl, tmp_path, number):
    """In the last two the services change what they are given."""
    task = read_tasks(None)[number]
    replies = []
    for steps in with_names(task.metadata, as_calls(task.metadata["ground_truth"])):
        for step in steps:
            replies += [call(name, **given) for each in step for name, given in each.items()]
        replies.append("Done.")
    long = {"max_prompt_length": 10**6, "max_response_length": 10**6, "max_model_len": 10**6}
    assert (await played(task, replies, tmp_path, **long)).is_success


async def test_a_template_without_tools_is_one_line(light, tmp_path):
    with pytest.raises(RunFailed, match="multi_turn_base offers functions as tools"):
        await played(light, ["Hi."], tmp_path, family="llama3")
