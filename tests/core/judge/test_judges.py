"""What counts as the right answer."""

import time

import pytest

from ajet import BaseJudge, Task, WorkflowOutput, WorkflowTask
from ajet.core.judge import make_judge
from ajet.core.judge.answer import boxed, reference_answer
from ajet.core.judge.exact_match import ExactMatchJudge
from ajet.core.judge.math import MathJudge, is_equal_answer
from ajet.core.judge.math_process import MathProcess
from tutorial.example_math_agent.math_answer_as_judge import MathAnswerAsJudge


def score(judge, said, row):
    task = Task("t", "q", metadata=row)
    workflow_task = WorkflowTask(task, "0-0", "0", 0, 0, "train", 0)
    return judge.compute_reward(workflow_task, WorkflowOutput(metadata={"final_answer": said}))


def test_the_last_complete_box_counts_with_its_braces_matched():
    assert boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert boxed(r"\boxed{3} and then \boxed{4") == "3"
    assert boxed(r"\boxed {5}") == "5"
    assert boxed("no box") is None
    assert boxed(str([{"type": "text", "text": r"so \boxed{\frac{1}{2}}"}])) == r"\frac{1}{2}"


@pytest.mark.parametrize(
    ("said", "reference", "equal"),
    [
        (r"\boxed{42}", "42", True),
        (r"\boxed{ 042 }", "42", True),
        (r"\boxed{+7}", "7", True),
        (r"\boxed{-7}", "7", False),
        (r"\boxed{43}", "42", False),
        (r"\boxed{1,234}", "1234", True),
        (r"\boxed{1234}", "1,234", True),
        (r"\boxed{12.0}", "12", True),
        (r"\boxed{12.5}", "12", False),
        (r"\boxed{\$12}", "12", True),
        (r"\boxed{$12}", "12", True),
        (r"\boxed{12\%}", "12", True),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{2x+1}", "1+2x", True),
        (r"\boxed{}", "42", False),
        (r"\boxed{forty}", "42", False),
        ("42", "42", True),
        ("$1,234.", "1234", True),
        ("The answer is 42", "42", False),
        ("", "42", False),
        (str([{"type": "text", "text": "so\n\\boxed{7}"}]), "7", True),
        (str([{"type": "text", "text": r"\boxed{\frac{3}{4}}"}]), "0.75", True),
        (r"\boxed{" + "9" * 5000 + "}", "9" * 5000, True),
        (r"\boxed{" + "(" * 600 + "}", "1", False),
    ],
)
def test_the_math_judge_knows_equal_numbers(said, reference, equal):
    assert is_equal_answer(said, reference) is equal


def test_an_answer_that_takes_for_ever_is_wrong_and_the_next_one_is_judged():
    process = MathProcess(timeout_s=1)
    assert process.is_equal("1000", "1,000") is True
    started = time.perf_counter()
    assert process.is_equal("10", "9^{9^{9^{9}}}+1") is False
    assert time.perf_counter() - started < 30
    assert process.is_equal("1000", "1,000") is True
    process.close()


def test_two_plain_integers_need_no_sympy():
    started = time.perf_counter()
    for number in range(256):
        assert is_equal_answer(rf"so it is \boxed{{{number}}}", str(number))
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize("judge", [MathJudge(), MathAnswerAsJudge(), ExactMatchJudge()])
def test_gsm8ks_answer_is_what_follows_the_hashes(judge):
    row = {"question": "?", "answer": "9 + 9 = <<9+9=18>>18\n#### 18"}
    assert score(judge, r"It is \boxed{18}.", row) == (1.0, True)
    assert score(judge, r"It is \boxed{17}.", row) == (0.0, False)


def test_references_are_found_in_verls_and_maths_columns():
    assert reference_answer(Task("t", "q", metadata={"reward_model": {"ground_truth": "5"}})) == "5"
    assert reference_answer(Task("t", "q", metadata={"solution": r"so \boxed{x^2}"})) == "x^2"
    with pytest.raises(KeyError, match="task t has no 'answer'"):
        reference_answer(Task("t", "q", metadata={"question": "?"}))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("  New   york.", True),
        (r"\boxed{new york}", True),
        ("york", False),
        ("New York City", False),
    ],
)
def test_exact_match_ignores_case_and_spaces_only(said, right):
    assert score(ExactMatchJudge(), said, {"answer": "New York"}) == (float(right), right)


def test_an_output_without_final_answer_says_so():
    task = WorkflowTask(Task("t", "q", metadata={"answer": "1"}), "0-0", "0", 0, 0, "train", 0)
    with pytest.raises(KeyError, match=r"no metadata\['final_answer'\]"):
        MathJudge().compute_reward(task, WorkflowOutput(metadata={"result": 1}))


def test_judges_are_made_by_name_and_null_is_none():
    assert isinstance(make_judge("math"), MathJudge)
    assert isinstance(make_judge("exact_match", config={"a": 1}), ExactMatchJudge)
    assert make_judge(None) is None
    assert issubclass(MathAnswerAsJudge, BaseJudge)
