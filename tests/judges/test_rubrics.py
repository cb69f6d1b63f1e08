"""Criteria are given or made once, kept in the run folder, and honoured as configured."""

import asyncio
import itertools
import json

import pytest

from ajet import Task, WorkflowOutput, WorkflowTask
from ajet.core.config import AjetConfig
from ajet.core.errors import ChatError, CheckpointError, ConfigError, DataError
from ajet.core.judge import make_judge
from tests.cli.chat_server import ChatServer, message


class Model:
    """Makes criteria that tell how often it was asked, merges them, and scores by their number."""

    def __init__(self):
        self.made, self.merged, self.graded = [], [], []
        self._numbers = itertools.count(1)  # requests are answered in threads

    def __call__(self, body):
        prompt = body["messages"][0]["content"]
        if prompt.startswith("What stands") and "Merge them" in prompt:
            self.merged.append(prompt)
            return 200, message(json.dumps({"criteria": ["Truth: it is right.", "Style: short."]}))
        if "Write a rubric" in prompt:
            self.made.append(prompt)
            number = int(prompt.split("to a task: ")[1].split()[0])
            which = next(self._numbers)
            made = [f"c{which}.{n}" for n in range(1, number + 1)]
            return 200, message(json.dumps({"criteria": made}))
        self.graded.append(prompt)
        count = sum(line[:2] in ("1.", "2.", "3.", "4.") for line in prompt.splitlines())
        scores = [n / 10 for n in range(1, count + 1)]
        if "several answers" in prompt:
            scores = [0.5] * prompt.count("</answer-")
        return 200, message(json.dumps({"scores": scores}))


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def server(model):
    with ChatServer(model) as server:
        yield server


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    rows = [{"query": f"q{n}", "answer": f"a{n}"} for n in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "run"


def judge_of(server, run, **rubrics):
    judge = {
        "judge_type": "rubrics_auto_grader",
        "model_name": "m",
        "rubrics_auto_grader": rubrics,
        "client": {"base_url": server.url, "max_retries": 0, "cache_path": None},
    }
    reader = {
        "type": "jsonl_dataset_file",
        "jsonl_dataset_file": {"training": {"file_path": str(run.parent / "tasks.jsonl")}},
    }
    ajet = {"task_judge": judge, "task_reader": reader, "experiment_dir": str(run)}
    return make_judge(AjetConfig.model_validate({"ajet": ajet}))


async def judged(judge, question="q", output=None, **row):
    task = Task("t", question, metadata=row)
    output = output or WorkflowOutput(metadata={"final_answer": "x"})
    return await judge.compute_reward(WorkflowTask(task, "e", "g-0", 0, 0, "train", 0), output)


async def test_given_criteria_are_weighed_and_nothing_is_made(server, run, model):
    given = ["short", {"text": "right", "weight": 3}]
    output = WorkflowOutput(metadata={"final_answer": "x"})
    reward, is_success = await judged(judge_of(server, run, rubrics=given), output=output)
    assert (reward, is_success) == (pytest.approx((0.1 + 3 * 0.2) / 4), False)
    assert "1. short\n2. right (weight 3)" in model.graded[0]
    assert output.log_metrics == {
        "rubrics_grader/criterion_1": 0.1,
        "rubrics_grader/criterion_2": 0.2,
    }
    assert model.made == [] and list(run.iterdir()) == []


async def test_each_question_gets_criteria_once_however_many_ask(server, run, model):
    judge = judge_of(server, run, query_specific_generate_number=2, language="zh")
    await asyncio.gather(*(judged(judge, "q1") for _ in range(3)), judged(judge, "q2"))
    assert len(model.made) == 2
    assert all("2 criteria" in prompt and "Write in Chinese" in prompt for prompt in model.made)
    output = WorkflowOutput(metadata={"final_answer": "x"})
    await judged(judge, "q1", output)
    assert output.log_metrics == {}  # criteria differ by question: there is no mean to log


async def test_a_resumed_run_judges_by_the_criteria_that_it_kept(server, run, model):
    await judged(judge_of(server, run), "q1", answer="one")
    await judged(judge_of(server, run), "q1", answer="one")
    assert len(model.made) == 1 and "one" in model.made[0]
    assert "c1.1" in model.graded[1]
    (line,) = (run / "auto_grader_questions.jsonl").read_text().splitlines()
    assert json.loads(line)["question"] == "q1"
    await judged(judge_of(server, run), "q1", answer="uno")  # another reference
    assert len(model.made) == 2


@pytest.mark.parametrize("shared", [{}, {"enable_categorization": True, "num_examples": 2}])
async def test_judges_of_several_workers_share_criteria_that_are_made_once(
    server, run, model, shared
):
    """One process's locks keep another file of its own out too, so this holds for processes."""
    judges = [judge_of(server, run, query_specific_generate_number=2, **shared) for _ in range(3)]
    await asyncio.gather(*(judged(judge, q) for judge in judges for q in ("q1", "q2")))
    await asyncio.gather(*(judged(judge, q) for judge in judges for q in ("q1", "q3")))
    assert len(model.made) == (2 if shared else 3) and len(model.merged) == bool(shared)
    rubrics = {prompt.partition("1. ")[2].partition("\n")[0] for prompt in model.graded}
    assert len(rubrics) == (1 if shared else 3)
    assert list(run.glob(".*")) == []  # no locks are left


async def test_a_waiting_judge_generates_the_criteria_if_the_first_one_failed(server, run, model):
    judges = [judge_of(server, run), judge_of(server, run)]
    refusals = [(400, {"error": {"message": "no"}})]
    server.reply = lambda body: refusals.pop() if refusals else model(body)
    results = await asyncio.gather(*(judged(j, "q1") for j in judges), return_exceptions=True)
    assert [type(each) for each in results if isinstance(each, Exception)] == [ChatError]
    assert len(model.made) == 1


async def test_a_line_that_a_kill_cut_is_made_again(server, run, model):
    judge = judge_of(server, run)
    await judged(judge, "q1")
    await judged(judge, "q2")
    path = run / "auto_grader_questions.jsonl"
    path.write_text(path.read_text()[:-20])
    again = judge_of(server, run)
    await judged(again, "q1")
    await judged(again, "q2")
    assert len(model.made) == 3
    assert [json.loads(line)["question"] for line in path.read_text().splitlines()] == ["q1", "q2"]
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(CheckpointError, match=r"questions\.jsonl cannot be read: KeyError"):
        judge_of(server, run)


async def test_a_merged_rubric_is_made_from_drawn_tasks_and_holds_for_all(server, run, model):
    merged = {"enable_categorization": True, "categories_number": 3, "num_examples": 4}
    judge = judge_of(server, run, **merged)
    await asyncio.gather(*(judged(judge, f"q{n}") for n in range(3)))
    assert (len(model.made), len(model.merged)) == (4, 1)
    assert "at most 3" in model.merged[0] and "c4.1" in model.merged[0]
    shown = [int(prompt.split("\nq")[1].split("\n")[0]) for prompt in model.made]
    assert len(set(shown)) == 4 and sorted(shown) != [0, 1, 2, 3]
    kept = json.loads((run / "auto_grader.json").read_text())
    assert [c["text"] for c in kept["criteria"]] == ["Truth: it is right.", "Style: short."]
    assert kept["made_with"]["grader_name"] == "rubrics_grader"
    kept["criteria"][0] = {"text": "mended by hand", "weight": 2}
    (run / "auto_grader.json").write_text(json.dumps(kept))
    await judged(judge_of(server, run, **merged), "q7")
    assert "1. mended by hand (weight 2)" in model.graded[-1]
    assert len(model.made) == 4


async def test_criteria_made_with_other_settings_are_refused(server, run):
    await judged(judge_of(server, run))
    with pytest.raises(ConfigError, match=r"was made with another language: move it away"):
        judge_of(server, run, language="zh")
    (run / "auto_grader.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"auto_grader\.json cannot be read: JSONDecodeErr"):
        judge_of(server, run)


async def test_graded_examples_are_shown_with_their_grades(server, run, model):
    file = run.parent / "graded.jsonl"
    ranked = [{"answer": "good", "rank": 1}, {"answer": "bad", "rank": 2}]
    rows = [{"query": "g1", "answer": "fine", "score": 8}, {"query": "g2", "candidates": ranked}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    graded = {"dataset_file": {"training": {"file_path": str(file)}}}
    await judged(judge_of(server, run, **graded))
    # Both are asked at the same time: which request comes first is chance.
    scored, ranked = sorted(model.made, key=lambda prompt: "with score 8:" not in prompt)
    assert "An answer with score 8:" in scored and "fine" in scored
    assert "An answer of rank 2:" in ranked and "bad" in ranked
    order = [model.made.index(prompt) + 1 for prompt in (scored, ranked)]
    assert "1. c{}.1\n2. c{}.1".format(*order) in model.graded[0] and model.merged == []


@pytest.mark.parametrize("row", [{"answer": "a"}, {"candidates": []}, {"candidates": [{"a": 1}]}])
async def test_an_example_without_grades_is_a_mistake_in_the_data(row, server, run):
    file = run.parent / "graded.jsonl"
    file.write_text(json.dumps({"query": "g", **row}) + "\n")
    judge = judge_of(server, run, dataset_file={"training": {"file_path": str(file)}})
    with pytest.raises(DataError, match="graded example graded-0: "):
        await judged(judge)


async def test_a_failure_in_making_criteria_is_not_kept(server, run, model):
    server.reply = lambda body: (200, message("Sure!"))
    judge = judge_of(server, run, enable_categorization=True, num_examples=2)
    with pytest.raises(ChatError, match="it has no JSON object with criteria"):
        await judged(judge)
    server.reply = model
    assert await judged(judge) == (pytest.approx(0.15), False)


async def test_listwise_shows_the_rubric_and_all_answers(server, run, model):
    judge = judge_of(server, run, grader_mode="listwise", rubrics=["short"], success_threshold=0.5)
    tasks = [WorkflowTask(Task("t", "q"), f"e{n}", "g-0", n, 0, "train", 0) for n in range(3)]
    outputs = [WorkflowOutput(metadata={"final_answer": f"x{n}"}) for n in range(3)]
    assert await judge.compute_group_rewards(tasks, outputs) == [(0.5, True)] * 3
    assert "1. short" in model.graded[0] and model.graded[0].count("</answer-") == 3


async def test_without_a_run_folder_nothing_is_written(server, run, model):
    absent = run.parent / "absent"
    judge = judge_of(server, absent)
    await judged(judge)
    await judged(judge)
    assert len(model.made) == 1 and not absent.exists()
