"""What counts as the right answer."""

import asyncio
import inspect
import itertools
import time

import pytest

from ajet import Task, WorkflowOutput, WorkflowTask
from ajet.judges.answer import SCANNED_CHARACTERS, boxed, reference_answer
from ajet.judges.exact_match import ExactMatchJudge
from ajet.judges.math import MathJudge, is_equal_answer
from ajet.judges.math_process import MathProcess
from tutorial.example_math_agent.math_answer_as_judge import MathAnswerAsJudge


async def score(judge, said, row):
    task = Task("t", "q", metadata=row)
    workflow_task = WorkflowTask(task, "0-0", "0", 0, 0, "train", 0)
    answer = judge.compute_reward(workflow_task, WorkflowOutput(metadata={"final_answer": said}))
    return await answer if inspect.isawaitable(answer) else answer


def test_the_last_complete_box_counts_with_its_braces_matched():
    assert boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert boxed(r"\boxed{3} and then \boxed{4") == "3"
    assert boxed(r"\boxed {5}") == "5"
    assert boxed("no box") is None
    assert boxed(r"\boxed{1} } { \fbox{2}") == "2"
    assert boxed(r"\boxed{so \boxed{3}}") == "3"
    assert boxed(r"\boxed{4} and {\boxed{5") == "4"
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


HOSTILE = {
    "boxes": r"\boxed{" * 20_000,
    "boxes that close": r"\boxed{" * 20_000 + "}" * 20_000,
    "backslashes": "\\" * 200_000,
    "spaces": "1" + " " * 200_000 + "x",
    "spaces in front": " " * 200_000 + "x",
    "digits": "1" * 200_000 + "x",
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("judge", [MathJudge(), ExactMatchJudge()])
async def test_no_text_takes_long_to_read(judge, said):
    started = time.perf_counter()
    assert await score(judge, said, {"answer": "7"}) == (0.0, False)
    assert time.perf_counter() - started < 0.5


def test_a_box_counts_in_the_last_part_of_a_text_only():
    far, near = "." * SCANNED_CHARACTERS, "." * (SCANNED_CHARACTERS - 20)
    assert boxed(r"\boxed{7}" + far) is None
    assert boxed(r"\boxed{6}" + far + r"\boxed{7}" + near) == "7"


async def test_the_event_loop_goes_on_while_an_answer_takes_long():
    ticks, judge = [], MathJudge()
    judged = asyncio.ensure_future(score(judge, r"\boxed{9^{9^{9^{9}}}}", {"answer": "7"}))
    later = asyncio.ensure_future(score(judge, r"\boxed{\frac{14}{2}}", {"answer": "7"}))
    started = time.perf_counter()
    while not (judged.done() and later.done()):
        ticks.append(time.perf_counter())
        await asyncio.sleep(0.01)
    assert judged.result() == (0.0, False)
    assert later.result() == (1.0, True)
    assert time.perf_counter() - started < 20
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 0.5


async def test_an_answer_that_waits_is_not_asked_once_its_episode_has_ended():
    slow = asyncio.ensure_future(score(MathJudge(), r"\boxed{9^{9^{9^{9}}}}", {"answer": "7"}))
    await asyncio.sleep(0)
    waiting = [
        asyncio.ensure_future(score(MathJudge(), rf"\boxed{{{n}^{{9^{{9^9}}}}}}", {"answer": "7"}))
        for n in range(3, 9)
    ]
    await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()
    await slow
    started = time.perf_counter()
    assert await score(MathJudge(), r"\boxed{\frac{14}{2}}", {"answer": "7"}) == (1.0, True)
    assert time.perf_counter() - started < 4


async def test_two_plain_integers_need_no_thread():
    """Whatever suspends the coroutine would raise here: nobody drives it but `send`."""
    workflow_task = WorkflowTask(
        Task("t", "q", metadata={"answer": "7"}), "0-0", "0", 0, 0, "train", 0
    )
    output = WorkflowOutput(metadata={"final_answer": r"\boxed{7}"})
    with pytest.raises(StopIteration) as ended:
        MathJudge().compute_reward(workflow_task, output).send(None)
    assert ended.value.value == (1.0, True)


@pytest.mark.parametrize("judge", [MathJudge(), MathAnswerAsJudge(), ExactMatchJudge()])
async def test_gsm8ks_answer_is_what_follows_the_hashes(judge):
    row = {"question": "?", "answer": "9 + 9 = <<9+9=18>>18\n#### 18"}
    assert await score(judge, r"It is \boxed{18}.", row) == (1.0, True)
    assert await score(judge, r"It is \boxed{17}.", row) == (0.0, False)


def test_references_are_found_in_verls_and_maths_columns():
    assert reference_answer(Task("t", "q", metadata={"reward_model": {"ground_truth": "5"}})) == "5"
    assert reference_answer(Task("t", "q", metadata={"solution": r"so \boxed{x^2}"})) == "x^2"


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("  New   york.", True),
        (r"\boxed{new york}", True),
        ("york", False),
        ("New York City", False),
    ],
)
async def test_exact_match_ignores_case_and_spaces_only(said, right):
    assert await score(ExactMatchJudge(), said, {"answer": "New York"}) == (float(right), right)
