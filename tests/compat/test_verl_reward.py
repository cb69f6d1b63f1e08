"""A reward function of verl's is called as verl calls it, and what it returns is a verdict."""

import asyncio

import pytest

from ajet import Task, WorkflowOutput, WorkflowTask
from ajet.compat.verl_reward import RewardFunctionJudge
from ajet.core.config import load_config
from ajet.core.errors import ConfigError

FUNCTIONS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return float(solution_str == ground_truth) + bonus


def with_parts(data_source, solution_str, ground_truth, extra_info):
    is_right = solution_str == ground_truth
    return {"score": 0.1, "acc": is_right, "index": extra_info["index"], "note": "x"}


async def from_afar(**given):
    return given["data_source"] == "mine"


def without_score(**given):
    return {"acc": 1.0}
"""
ROW = {
    "data_source": "mine",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 7},
}


def judge_of(folder, section):
    (folder / "scores.py").write_text(FUNCTIONS)
    (folder / "run.yaml").write_text(
        "ajet:\n  model: {path: embedded:math}\n"
        "  task_judge: {judge_protocol: ajet.compat.verl_reward->RewardFunctionJudge}\n" + section
    )
    return RewardFunctionJudge(load_config(folder / "run.yaml"))


def verdict(folder, function, answer="42", more=""):
    section = f"custom_reward_function: {{function: scores.py->{function}{more}}}\n"
    task = Task(task_id="1", main_query="6 times 7?", metadata=ROW)
    workflow_task = WorkflowTask(task, "e", "g", 0, step=1, mode="train", seed=0)
    output = WorkflowOutput(metadata={"final_answer": answer})
    judge = judge_of(folder, section)
    return asyncio.run(judge.compute_reward(workflow_task, output)), output.log_metrics


def test_a_number_is_the_reward(tmp_path):
    assert verdict(tmp_path, "compute_score")[0] == 1.0
    assert verdict(tmp_path, "compute_score", answer="41")[0] == 0.0


def test_its_own_arguments_are_those_of_the_yaml(tmp_path):
    more = ", reward_kwargs: {bonus: 0.25}"
    assert verdict(tmp_path, "compute_score", more=more)[0] == 1.25


def test_a_dict_has_reward_success_and_numbers_to_log(tmp_path):
    assert verdict(tmp_path, "with_parts") == ((0.1, True), {"acc": 1.0, "index": 7.0})
    assert verdict(tmp_path, "with_parts", answer="41")[0] == (0.1, False)


def test_an_async_function_is_awaited(tmp_path):
    assert verdict(tmp_path, "from_afar")[0] is True


def test_a_dict_without_a_score_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"the function returned \['acc'\]: a dict has a 'score'"):
        verdict(tmp_path, "without_score")


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("", "custom_reward_function.function is missing: write it at the top level of the YAML"),
        ("custom_reward_function: {function: scores.py->scor}\n", "has no function 'scor'"),
    ],
)
def test_a_missing_reward_function_is_an_error_before_a_model_is_loaded(section, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        judge_of(tmp_path, section)
