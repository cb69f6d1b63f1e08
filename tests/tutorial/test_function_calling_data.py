"""The data of the function-calling tutorial: no leaks, and the answers that are given."""

import json

import pytest

from tutorial.example_function_calling.data import (
    Traits,
    compared,
    first_answer,
    split,
    twin_free,
    write,
)
from tutorial.example_function_calling.near_duplicates import clusters, similarity, word_pairs
from tutorial.example_function_calling.shuffled import shuffled


def function(name, *parameters, says=""):
    properties = {parameter: {} for parameter in parameters}
    return {"name": name, "description": says, "parameters": {"properties": properties}}


def row(text, *functions):
    return {"question": [{"role": "user", "content": text}], "function": list(functions)}


def twins(a, b):
    return Traits.of(a).is_twin_of(Traits.of(b))


def test_the_similarity_of_two_questions_by_hand():
    a, b = word_pairs("Find the area of 10 units"), word_pairs("the AREA of 6,000 units?")
    # (start find) (find the) | (the area) (area of) (of #) (# units) (units end) | (start the)
    assert len(a) == 7
    assert similarity(a, b) == 5 / 8
    assert similarity(a, a) == 1
    assert similarity(frozenset(), frozenset()) == 0


def test_twins_of_twins_stay_together():
    assert clusters([1, 10, 2, 30, 11, 12], lambda a, b: abs(a - b) == 1) == [
        [0, 2],
        [1, 4, 5],
        [3],
    ]


def test_whole_clusters_are_held_out():
    rows = [row(3 * chr(97 + n), function(f"f{n // 2}", f"p{n}")) for n in range(20)]
    train, held_out = split(rows, 7)
    assert len(held_out) == 6  # pairs cannot fill seven places
    names = [{r["function"][0]["name"] for r in part} for part in (train, held_out)]
    assert held_out and not names[0] & names[1]
    assert len(train) + len(held_out) == 20


def test_a_name_or_a_like_question_makes_a_twin():
    known = row("The greatest common divisor of 40 and 50", function("math.gcd", "a", "b"))
    assert twins(known, row("Something else", function("GCD", "numbers")))
    assert twins(known, row("The greatest common divisor of 12 and 15", function("divide", "x")))
    other = row("What is the least multiple of 12 and 15?", function("lcm", "x"))
    assert not twins(known, other)
    assert twin_free([known, other], [known]) == [other]


def test_a_twin_has_nearly_the_names_of_the_function_and_its_parameters():
    trained = row("a", function("museum.get_hours", "name", "day"))  # 3 words, 2 parameters
    assert twins(trained, row("b", function("museum_hours.get", "museum", "Day")))  # 4 of 6
    assert twins(trained, row("b", function("museum_prices.get", "museum", "day")))  # 3 of 7
    assert not twins(trained, row("b", function("museum_prices.list", "museum", "day")))  # 2 of 8


def test_functions_are_compared_one_by_one_and_only_those_that_the_answer_calls():
    hours, gcd = function("museum.get_hours", "name", "day"), function("gcd", "a", "b")
    prices = row("b", function("museum_prices.get", "museum", "day"))
    assert twins(row("a", hours, gcd), prices)
    assert not twins({**row("a", hours, gcd), "ground_truth": [{"gcd": {"a": [1]}}]}, prices)


def test_a_twin_has_nearly_the_description_apart_from_what_all_say():
    def says(text):
        return f"{text} Note that the provided function is in Python 3 syntax."

    trained = row("a", function("hours", "x", says="Opening hours of a museum."))
    museum = says("Opening hours of a place.")
    assert Traits.of(trained).descriptions == [word_pairs("Opening hours of a museum.")]
    # 4 of 8: (start opening) (opening hours) (hours of) (of a) | (a museum) (museum end) | ...
    assert twins(trained, row("b", function("when_open", "y", says=museum)))
    assert not twins(trained, row("b", function("gcd", "y", says=says("Divides two numbers."))))


def test_the_report_counts_twins_and_has_the_largest_similarities():
    known = [row("Add 1 and 2", function("add", "a", "b"))]
    rows = [row("Add 3 and 4", function("plus", "a", "b")), row("Rain?", function("rain", "day"))]
    assert compared(rows, known) == {
        "tasks": 2,
        "twins": 1,
        "largest_similarity_of_question": 1.0,
        "largest_similarity_of_signature": 0.5,  # a, b | add, plus
        "largest_similarity_of_description": 0,  # none says anything
    }


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
    report = write(tmp_path, ["simple_python"], 100)
    assert (report["rows"]["train"], report["rows"]["test"]) == (300, 100)
    for known in ("against_train", "against_supervised"):
        for found in report[known].values():
            assert found["twins"] == 0
            for trait, limit in report["limits"].items():
                assert found[f"largest_similarity_of_{trait}"] < limit
    chat = json.loads((tmp_path / "supervised.jsonl").read_text().splitlines()[0])
    assert chat["messages"][-1]["role"] == "assistant"


@pytest.fixture
def real_bfcl():
    """Skips where the benchmark's package is not installed."""
    pytest.importorskip("bfcl_eval", reason="needs pip install --no-deps bfcl-eval")
