r"""Which forms of a number are equal, in the reference and in the reply.

Each pair was worked out by hand: a right reply is rewarded in every form that people, models and
Python write it in, and a wrong one in none.
"""

import inspect
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from ajet import Task, WorkflowOutput, WorkflowTask
from ajet.judges.answer import UnusableReference, boxed, reference_answer
from ajet.judges.exact_match import ExactMatchJudge
from ajet.judges.math import MathJudge, is_equal_answer
from ajet.judges.number_forms import plain_numbers


async def is_rewarded(judge, reply, reference):
    task = WorkflowTask(Task("t", "q", metadata={"answer": reference}), "e", "g", 0, 1, "train", 0)
    answer = judge.compute_reward(task, WorkflowOutput(metadata={"final_answer": reply}))
    reward, is_success = await answer if inspect.isawaitable(answer) else answer
    assert reward == float(is_success)
    return is_success


EQUAL = [
    # Python's and other programs' exponents, in the row as a number and as text, and in the reply
    (0.00001, "0.00001"),
    (1e-7, "0.0000001"),
    (1e16, "10000000000000000"),
    (2.5e6, "2500000"),
    (1e22, "10000000000000000000000"),
    (np.float64(1e-05), "0.00001"),
    (np.float32(0.1), "0.1"),
    (np.int64(18), "18"),
    (Decimal("1E-7"), "0.0000001"),
    (Decimal("2.50"), "2.5"),
    (0.1 + 0.2, "0.3"),
    (-1e-05, "-0.00001"),
    ("0.00001", "1e-05"),
    ("2500000", "2.5e6"),
    ("2500000", "2.5E+06"),
    ("1e3", "1000"),
    ("1e-05", "1e-05"),
    ("1e-05", r"1 \times 10^{-5}"),
    ("0.00001", r"10^{-5}"),
    ("6.02e23", r"6.02 \times 10^{23}"),
    ("6.02e23", r"6.02 \cdot 10^{23}"),
    ("1500", "1.5*10^3"),
    ("1500", "1.5*10**3"),
    ("1500", "1.5 \u00d7 10\u00b3"),
    ("0.5", "np.float64(0.5)"),
    ("0.5", "Decimal('0.5')"),
    ("1/8", "1.25e-1"),
    ("(0.001, 2)", "(1e-3, 2)"),
    # 2e-2 may be 2e - 2 with Euler's number
    ("2(e-1)", "2e-2"),
    ("0.02", "2e-2"),
    # digits of other scripts
    ("5", "\uff15"),
    ("-12.5", "\uff0d\uff11\uff12\uff0e\uff15"),
    ("\uff11\uff18", "18"),
    ("5", "\u0665"),
    ("42", "\u096a\u0968"),
    ("-5", "\u22125"),
    ("0.5", "\u00bd"),
    ("x^2", "x\u00b2"),
    ("25", "5\u00b2"),
    # separators
    ("1000", "1_000"),
    ("1234567", r"1\,234\,567"),
    ("1234", "1{,}234"),
    ("1234", "1,234"),
    ("1234", "1\u202f234"),
    # other bases
    ("10101_2", "10101_2"),
    ("10101_2", "10101_{2}"),
    ("10101_2", r"10101_{\text{two}}"),
    ("10101_2", "(10101)_2"),
    ("10101_2", r"\text{10101}_2"),
    ("10101_2", "10101\u2082"),
    ("10101_2", "10101 (base 2)"),
    ("10101_2", "0b10101"),
    ("10101_2", "010101_2"),
    ("1A_{16}", r"\text{1A}_{16}"),
    ("1A_{16}", "0x1a"),
    ("7", "7_8"),
    ("18", "18_{10}"),
    # what must stay as it was
    ("12", "12.0"),
    ("0.5", r"\frac{1}{2}"),
    ("x_2", "x_{2}"),
    ("0.333333", r"\frac{1}{3}"),
    ("1/3", "0.3333333"),
]
UNEQUAL = [
    (0.00001, "0.0001"),
    (0.00001, "0"),
    (1e-7, "2e-7"),
    ("0.0000001", "0.0000002"),
    ("1.6e-19", "1.7e-19"),
    (r"1.6 \times 10^{-19}", r"1.7 \times 10^{-19}"),
    (1e16, "10000000000000001"),
    (1e16, "1e15"),
    ("1e3", "100"),
    ("1e3", "3"),
    ("6.02e23", "6.03e23"),
    ("2.5", "2.5e6"),
    ("1", "1e-05"),
    ("0.02", "2(e-1)"),
    ("5", "\uff16"),
    ("5", "5\u00b2"),
    ("1", "1_000"),
    ("1000", "1.000"),
    ("10101_2", "10101_3"),
    ("10101_2", "10101"),
    ("10101_2", "10101 base 3"),
    ("10101_2", r"10101_{\text{three}}"),
    ("10101", "10101_2"),
    ("10101_2", "10101\u2083"),
    ("10101_2", "21"),
    ("21", "0b10101"),
    ("10101_2", "111_4"),
    ("10101_2", "x = 10101_3"),
    ("1A_{16}", "1A_{12}"),
    ("0", "0x1F"),
    ("31_8", "31"),
    ("x_2", "x_3"),
    ("7", "7.0000001"),
    ("1/3", "0.33"),
]


@pytest.mark.parametrize(("reference", "reply"), EQUAL, ids=map(repr, EQUAL))
async def test_a_right_number_is_rewarded_in_every_form(reference, reply):
    assert await is_rewarded(MathJudge(), rf"\boxed{{{reply}}}", reference)


@pytest.mark.parametrize(("reference", "reply"), UNEQUAL, ids=map(repr, UNEQUAL))
async def test_a_wrong_number_is_rewarded_in_no_form(reference, reply):
    assert not await is_rewarded(MathJudge(), rf"\boxed{{{reply}}}", reference)


@pytest.mark.parametrize("reply", ["1e-05", "0.00001", "\uff11e-5", "1E-5."])
def test_a_reply_that_is_nothing_but_a_number_needs_no_box_in_any_form(reply):
    assert is_equal_answer(reply, "0.00001")
    assert not is_equal_answer(f"about {reply}", "0.00001")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"The total is $\boxed 18$.", "18"),
        (r"The total is \boxed 18.", "18"),
        (r"so \(\boxed -3 \), as wanted", "-3"),
        (r"$\boxed \frac{1}{2}$", r"\frac{1}{2}"),
        (r"$x = \boxed x + 1$", "x + 1"),
        (r"**\boxed 18** apples, for $5$", "18"),
        (r"\boxed{17}, no: \boxed 18", "18"),
        (r"\boxed 17, no: \boxed{18}", "18"),
        (r"\boxed{18} is how \boxed is used", "18"),
        (r"use the \boxed format", None),
        (r"\boxed{1\boxed{8}", "8"),
    ],
)
def test_a_box_without_braces_holds_the_rest_of_its_formula_or_one_word(text, content):
    assert boxed(text) == content


EXACT = [
    (2.0, "2", True),
    (2.0, "2.0", True),
    (2.0, r"It is \boxed{2.00}.", True),
    (2.5, "2.50", True),
    (2, "2", True),
    (1e16, "10000000000000000", True),
    (1e-05, "1e-05", True),
    (Decimal("2.50"), "2.5", True),
    (-0.0, "0", True),
    (["2"], "2", True),
    ("2.50", "2.50", True),
    (True, "true", True),
    (2.0, "20", False),
    (2.0, "2 apples", False),
    (2.5, "2", False),
    ("2.50", "2.5", False),
    ("2.0", "2", False),
    ("1e-05", "0.00001", False),
]


@pytest.mark.parametrize(("reference", "reply", "right"), EXACT)
async def test_exact_match_compares_a_rows_number_as_a_number_and_its_text_as_text(
    reference, reply, right
):
    assert await is_rewarded(ExactMatchJudge(), reply, reference) is right


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": {"value": "4"}}, "answer is a dict, not text or a number"),
        ({"answer": ["5", "five"]}, "answer is a list of several values"),
        ({"answer": np.array([1, 2])}, "answer is a list of several values"),
        ({"answer": []}, "answer is an empty list"),
        ({"answer": float("nan")}, "answer is nan, which no reply can equal"),
        ({"answer": float("-inf")}, "answer is -inf, which no reply can equal"),
        ({"answer": Decimal("NaN")}, "answer is NaN, which no reply can equal"),
        ({"answer": "nan"}, "answer is nan, which no reply can equal"),
        ({"answer": " N/A"}, "answer is N/A, which no reply can equal"),
        ({"answer": ""}, "answer is empty"),
        ({"answer": "so it is ####  "}, "answer is empty"),
        ({"answer": b"4"}, "answer is a bytes, not text or a number"),
        ({"answer": None}, "answer is null"),
        ({"answer": [None]}, "answer is null"),
        (
            {"reward_model": {"ground_truth": {"target": ["4", "four"]}}},
            "reward_model.ground_truth is a dict, not text or a number",
        ),
        ({"reward_model": {"ground_truth": None}}, "reward_model.ground_truth is null"),
        (
            {"question": "2+2?"},
            "no reference answer: its row has question; looked for answer, "
            "reward_model.ground_truth, solution",
        ),
    ],
)
@pytest.mark.parametrize("judge", [MathJudge(), ExactMatchJudge()])
def test_a_reference_that_no_reply_can_equal_is_refused_with_the_reason(judge, row, problem):
    with pytest.raises(UnusableReference) as refused:
        judge.reference(Task("train-1", "q", metadata=row))
    assert refused.value.problem == problem
    assert str(refused.value) == f"task train-1: {problem}"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("x" * 501, "more than 500 characters"), ("proof", "its reference is proof, not an answer")],
)
def test_the_math_judge_refuses_a_text_that_is_no_answer(answer, problem):
    task = Task("t", "q", metadata={"answer": answer})
    with pytest.raises(UnusableReference, match=problem):
        MathJudge().reference(task)
    assert ExactMatchJudge().reference(task) == answer


def test_a_reference_keeps_the_value_that_its_row_holds():
    values = [
        (["7"], "7"),
        ('["7"]', "7"),
        ("[7]", "[7]"),
        (0.5, "0.5"),
        (Fraction(1, 3), "1/3"),
        (10**30, "1" + "0" * 30),
    ]
    for value, text in values:
        assert reference_answer(Task("t", "q", metadata={"answer": value})) == text
    row = {"answer": None, "reward_model": {"ground_truth": 3.0}}
    assert reference_answer(Task("t", "q", metadata=row)) == "3"


SAME = [
    (r"\boxed{2^3 \cdot 10^4}", "80000"), (r"\boxed{2/5 \times 10^3}", "400"),
    (r"\boxed{500000}", r"1/2 \times 10^6"), (r"\boxed{900}", "3^2 * 10^2"),
    (r"\boxed{1800}", r"2\times 3^2\times 10^2"), (r"\boxed{1 000 000}", "1000000"),
    (r"\boxed{2 1/2}", "2.5"), (r"\boxed{1/3}", r"0.\overline{3}"),
    (r"\boxed{\frac{4}{11}}", r"0.\overline{36}"), (r"\boxed{1/6}", r"0.1\overline{6}"),
    (r"\boxed{1\text{ million}}", "1000000"), ("\\boxed{\u20135}", "-5"),
    ("\\boxed{\u221a2}", r"\sqrt{2}"), ("\\boxed{\u221e}", r"\infty"),
    ("2 + 2 is 4.\n#### 4", "4"), ("so\nAnswer: $4$", "4"), ("**Final Answer:** 12", "12"),
    (r"\boxed{5 \text{ hundred}}", "500"), ("\\boxed{\u20ac12}", "12"),
    (r"\boxed{\emptyset}", r"\varnothing"), (r"\boxed{x \ge 1}", r"[1,\infty)"),
    (r"\boxed{1 < x < 2}", "(1,2)"), (r"\boxed{\ge 5}", r"\geq 5"),
    (r"\boxed{\leqslant 5}", r"\leq 5"), (r"\boxed{5+}", r"5 \text{ or more}"),
    (r"\boxed{\textbf{(A)}\ 5}", "A"), (r"\boxed{B. Paris}", "B"), (r"\boxed{(C)}", "C"),
    (r"\boxed{12 \text{ hrs}}", r"12 \text{ hours}"), (r"\boxed{12\text{ cm}^2}", "12"),
    (r"\boxed{12}", r"12\mathrm{~cm}"), (r"\boxed{12\,\text{m}^2}", r"12 \text{ square meters}"),
    (r"\boxed{\text{East}}", "east"), (r"\boxed{a}", "A"), (r"\boxed{1.5 \times 10^3}", "1500"),
]  # fmt: skip
OTHER = [
    (r"\boxed{2^{30000}}", r"2^3 \cdot 10^4"), (r"\boxed{0}", "1 000 000"),
    (r"\boxed{2 1/2}", "1.5"), (r"\boxed{0.\overline{7}}", r"0.\overline{3}"),
    (r"\boxed{0}", r"0.\overline{3}"), (r"\boxed{1\text{ million}}", "1"),
    (r"\boxed{5 \text{ hundred}}", "5"), (r"\boxed{x > 1}", r"[1,\infty)"),
    (r"\boxed{\geq 5}", "5"), (r"\boxed{5}", r"\geq 5"), (r"\boxed{> 5}", r"\geq 5"),
    (r"\boxed{< 5}", "> 5"), (r"\boxed{\neq 5}", "5"), (r"\boxed{\leqslant 5}", "5"),
    (r"\boxed{5 \text{ or more}}", "5"), (r"\boxed{5+}", r"5 \text{ or less}"),
    (r"\boxed{\textbf{(B)}\ 5}", "A"), (r"\boxed{(A) and (B)}", "A"),
    (r"\boxed{12 \text{ hours}}", r"12 \text{ minutes}"),
    (r"\boxed{12\text{ m}}", r"12\mathrm{~cm}"),  (r"\boxed{A:B}", "A"),
    (r"\boxed{12 \text{ cm}^2}", r"12 \text{ cm}^3"), (r"\boxed{12 cents}", "12 dollars"),
    (r"\boxed{x'}", "x"), (r"\boxed{f(x)}", "f'(x)"),
    (r"\boxed{seat}", "east"), (r"\boxed{BCA}", "ABC"), (r"\boxed{2021}", "2024-01-02"),
    ("the answer is 4, or 5", "4"), ("#### 5\n#### 4", "5"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "reference"), SAME)
def test_an_answer_counts_in_the_form_that_people_write(reply, reference):
    assert is_equal_answer(reply, reference)


@pytest.mark.parametrize(("reply", "reference"), OTHER)
def test_another_answer_counts_in_no_form(reply, reference):
    assert not is_equal_answer(reply, reference)


@pytest.mark.parametrize("answer", ['{"target": ["4"]}', '["4", "four"]'])
def test_a_reference_of_json_text_is_refused(answer):
    with pytest.raises(UnusableReference, match="JSON text"):
        reference_answer(Task("t", "q", metadata={"answer": answer}))
    assert reference_answer(Task("t", "q", metadata={"answer": "[1, 2]"})) == "[1, 2]"


@pytest.mark.parametrize("text", ["1e999999999", "1.5e-5000", "9" * 400 + "e400"])
def test_a_huge_exponent_is_not_written_out(text):
    assert len(plain_numbers(text)) < 1000


@pytest.mark.parametrize("part", ["1e", "1_", "(1", "0x", "\\text{1", "1.", "\u2082", "A1"])
def test_no_answer_takes_long_to_bring_into_one_form(part):
    assert not is_equal_answer(rf"\boxed{{{(part * 500)[:499]}}}", "7")
