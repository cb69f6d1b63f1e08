"""The rows of the GSM8K example."""

import json

from tutorial.example_gsm8k import data


def test_a_solution_loses_its_calculator_marks_and_its_answer_is_boxed():
    row = {
        "task_id": "gsm8k-train-0",
        "question": "How many clips?",
        "answer": "48/2 = <<48/2=24>>24 clips.\n48+24 = <<48+24=72>>72 in all.\n#### 1,072",
    }
    question, reply = data.as_chat(row)["messages"]
    assert question["content"].startswith("How many clips?\nReason step by step")
    assert reply == {
        "role": "assistant",
        "content": "48/2 = 24 clips.\n48+24 = 72 in all.\nThe answer is \\boxed{1,072}.",
    }


def test_no_training_problem_is_in_two_files(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "NUM_SUPERVISED", 3)
    for split, count in (("train", 5), ("test", 2)):
        rows = [{"question": f"{split} {n}", "answer": f"a\n#### {n}"} for n in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    counts = data.write(tmp_path / "out", tmp_path)
    assert counts == {"supervised": 3, "train": 2, "test": 2}
    ids = {}
    for name in counts:
        lines = (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
        ids[name] = {json.loads(line)["task_id"] for line in lines}
    assert ids["supervised"] | ids["train"] == {f"gsm8k-train-{n}" for n in range(5)}
    assert ids["test"] == {"gsm8k-test-0", "gsm8k-test-1"}
