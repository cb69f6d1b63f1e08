"""Which clients contradict the others, with numbers worked out by hand, and how often by chance."""

import random

import pytest

from ajet.serve.online.agreement import HONEST, Agreement, Voice, agreements

ADA, BOB, CAT, DAN, EVE = "ada", "bob", "cat", "dan", "eve"


def counted(voices, verdicts=None):
    spoken = [Voice(client, conversation, approves) for client, conversation, approves in voices]
    found = agreements(spoken, verdicts or {})
    return {each.client: (each.agreed, each.contradicted) for each in found}


def test_a_client_is_compared_with_others_who_outnumber_the_other_side_by_two():
    voices = [(ADA, "q", True), (EVE, "q", False)]
    assert counted(voices) == {}  # one against one
    voices.append((BOB, "q", True))  # eve has two against her; ada has one for and one against
    assert counted(voices) == {EVE: (0, 1)}
    voices.append((CAT, "q", True))  # each of the three has two others for it and one against
    assert counted(voices) == {EVE: (0, 1)}
    voices.append((DAN, "q", True))  # each of the four has three for it and one against
    assert counted(voices) == {EVE: (0, 1), **dict.fromkeys((ADA, BOB, CAT, DAN), (1, 0))}


def test_a_client_counts_once_in_a_conversation_whatever_it_says_later():
    voices = [(ADA, "q", True), (BOB, "q", True), *[(EVE, "q", False)] * 9, (EVE, "q", True)]
    assert counted(voices) == {EVE: (0, 1)}
    many_times_one_liar = [(EVE, "q", False)] * 5 + [(ADA, "q", True)]
    assert counted(many_times_one_liar) == {}


def test_a_comparison_stays_what_it_was_when_more_is_said():
    voices = [(EVE, "q", True), (ADA, "q", False), (BOB, "q", False)]
    assert counted(voices) == {EVE: (0, 1)}
    for liar in ("l1", "l2", "l3", "l4", "l5"):
        voices.append((liar, "q", True))
    assert counted(voices)[EVE] == (0, 1)


def test_the_judges_verdict_on_the_conversation_goes_before_what_clients_say():
    liars = [(name, "q", False) for name in (BOB, CAT, DAN, EVE)]
    assert counted([(ADA, "q", True), *liars], {"q": True}) == {
        ADA: (1, 0),
        **dict.fromkeys((BOB, CAT, DAN, EVE), (0, 1)),
    }


def test_the_chance_of_an_honest_client_is_that_of_a_random_walk():
    assert Agreement(EVE, agreed=1, contradicted=7).chance == pytest.approx((3 / 7) ** 6)
    assert Agreement(EVE, agreed=1, contradicted=7).chance == pytest.approx(0.0062, abs=5e-5)
    assert Agreement(ADA, agreed=9000, contradicted=1).chance == 1.0
    assert Agreement(EVE, agreed=1, contradicted=7).as_json() == {
        "client": EVE,
        "agreed": 1,
        "contradicted": 7,
        "chance": 0.0062,
    }


def test_an_honest_client_that_is_looked_at_after_each_comparison_is_left_out_no_more_often():
    # All ways of 400 comparisons, each of which contradicts with the largest honest probability.
    left_out, places = 0.0, {0: 1.0}
    for _ in range(400):
        after: dict[int, float] = {}
        for lead, probability in places.items():
            for step, share in ((1, HONEST), (-1, 1 - HONEST)):
                after[lead + step] = after.get(lead + step, 0.0) + share * probability
        left_out += after.pop(6, 0.0)
        places = after
    assert left_out == pytest.approx(Agreement(EVE, contradicted=6).chance, rel=1e-3)
    assert left_out <= 0.01


def test_liars_among_many_clients_are_found_and_no_honest_one_is_at_the_stated_rate():
    # 100 clients, of whom 10 say the opposite and the others err in 5 %; 20 conversations of 60,
    # so that 33 clients have one on average. An honest client contradicts the others rarely.
    draw, clients = random.Random(1), [f"c{number}" for number in range(100)]
    liars, truth = set(clients[:10]), [draw.random() < 0.4 for _ in range(60)]
    had = [(client, q) for client in clients for q in draw.sample(range(60), 20)]
    draw.shuffle(had)
    voices = []
    for client, q in had:
        is_opposite = client in liars or draw.random() < 0.05
        voices.append(Voice(client, str(q), truth[q] != is_opposite))
    found = agreements(voices, {})
    assert {each.client for each in found if each.chance <= 0.01} == liars
    assert {each.client for each in found[:10]} == liars
    assert max(each.lead for each in found if each.client not in liars) < -10
