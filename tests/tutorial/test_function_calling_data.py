"""The data of the function-calling tutorial: no leaks, and the answers that are given."""

import json

import pytest

from tutorial.example_function_calling.data import Known, first_answer, split, twins, write
from tutorial.example_function_calling.near_duplicates import clusters, similarity, word_pairs
from tutorial.example_function_calling.shuffled import shuffled


def row(name, text):
    return {"question": [{"role": "user", "content": text}], "function": [{"name": name}]}


def test_the_similarity_of_two_questions_by_hand():
    a, b = word_pairs("Find the area of 10 units"), word_pairs("the AREA of 6,000 units?")
    # (start find) (find the) | (the area) (area of) (of #) (# units) (units end) | (start the)
    assert len(a) == 7
    assert similarity(a, b) == 5 / 8
    assert similarity(a, a) == 1


def test_tasks_of_one_function_or_with_like_questions_stay_together():
    names = ["geometry.area", "Area", "bmi", "weather", "sum"]
    texts = [
        "How large is it?",
        "The area of a square of side 3 please",
        "My weight is 80 kg",
        "The area of a square of side 4 please",
        "",
    ]
    assert clusters(names, texts, 0.3) == [[0, 1, 3], [2], [4]]


def test_whole_clusters_are_held_out():
    rows = [row(f"f{n // 2}", 3 * chr(97 + n)) for n in range(20)]  # pairs with one name
    train, held_out = split(rows, 7)
    assert len(held_out) == 6  # pairs cannot fill seven places
    names = [{r["function"][0]["name"] for r in part} for part in (train, held_out)]
    assert held_out and not names[0] & names[1]
    assert len(train) + len(held_out) == 20


def test_a_name_or_a_like_question_is_a_leak():
    known = Known.of([row("math.gcd", "The greatest common divisor of 40 and 50")])
    assert known.leaks_into(row("GCD", "Something else entirely"))
    assert known.leaks_into(row("divide", "The greatest common divisor of 12 and 15"))
    assert not known.leaks_into(row("lcm", "What is the least multiple of 12 and 15?"))


def test_a_twin_has_nearly_the_names_of_a_trained_function_and_its_parameters():
    def function(name, *parameters):
        properties = {parameter: {} for parameter in parameters}
        return {"name": name, "parameters": {"properties": properties}}

    trained = {"function": [function("museum.get_hours", "name", "day")]}  # 3 words, 2 parameters
    hours = {"task_id": "a", "function": [function("museum_hours.get", "museum", "Day")]}
    prices = {"task_id": "b", "function": [function("museum_prices.get", "museum", "day")]}
    # a: 4 of 6 in common; b: 3 of 7
    assert twins([hours, prices], [trained]) == ["a"]


def test_the_first_accepted_answer_leaves_out_what_may_be_left_out():
    possible = {
        "book": {
            "city": ["Rome", "Roma"],
            "unit": ["m", ""],
            "days": [2, 2.0],
            "guests": [{"name": ["Ann"], "age": [30, ""]}],
            "tags": [["a", "b"]],
        }
    }
    assert first_answer(possible) == {
        "book": {"city": "Rome", "days": 2, "guests": {"name": "Ann"}, "tags": ["a", "b"]}
    }


def test_rewards_are_permuted_over_the_batch_and_the_same_after_a_resume():
    class Episode:
        def __init__(self, number, reward):
            self.episode_id, self.reward = f"e{number}", reward

    groups = [[Episode(4 * g + n, 4 * g + n) for n in range(4)] for g in range(4)]
    found = shuffled(groups)
    assert sorted(found) == list(range(16))
    assert found != list(range(16))
    assert shuffled(groups) == found


def test_the_benchmarks_own_rows_do_not_leak(real_bfcl, tmp_path):
    report = write(tmp_path)
    assert (report["rows"]["train"], report["rows"]["test"]) == (300, 100)
    for known in ("against_train", "against_supervised"):
        for found in report[known].values():
            assert found["tasks_with_a_shared_function_name"] == 0
            assert found["largest_similarity_of_questions"] < report["limit"]
    chat = json.loads((tmp_path / "supervised.jsonl").read_text().splitlines()[0])
    assert chat["messages"][-1]["role"] == "assistant"


@pytest.fixture
def real_bfcl():
    """Skips where the benchmark's package is not installed."""
    pytest.importorskip("bfcl_eval", reason="needs pip install --no-deps bfcl-eval")
