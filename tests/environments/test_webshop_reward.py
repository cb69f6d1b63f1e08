"""The paper's reward, worked out by hand on purchases."""

from dataclasses import replace

import pytest

from ajet.environments.webshop.matching import (
    colour_of,
    title_words,
    token_set_ratio,
)
from ajet.environments.webshop.products import Goal, Product
from ajet.environments.webshop.reward import (
    num_attributes_met,
    num_options_met,
    purchase,
    title_score,
    type_reward,
)

LAMP = Product(
    asin="B0LAMP",
    title="Halden Cordless Desk Lamp HA-314",  # five words
    query="desk lamp",
    product_category="Home & Kitchen › Lighting › Desk Lamps",
    price=39.99,
    price_tag="$39.99",
    attributes=("cordless", "dimmable"),
    options={"color": ("red", "white"), "size": ("10 inch", "14 inch")},
    description="A lamp.",
    features=("It dims.",),
)
GOAL = Goal("B0LAMP", "i need a lamp", ("cordless", "dimmable"), ("red", "10 inch"), 50.0)
RIGHT = {"color": "red", "size": "10 inch"}
FLOOR_LAMP = replace(
    LAMP,
    asin="B0FLOOR",
    title="Morrow Floor Lamp",  # shares one word of five: 0.2
    query="floor lamp",
    product_category="Home & Kitchen › Lighting › Floor Lamps",
    attributes=("dimmable",),
)


def earned(product, options):
    return purchase(product, options, GOAL, LAMP).reward


def test_all_that_was_asked_for_is_the_whole_reward():
    made = purchase(LAMP, RIGHT, GOAL, LAMP)
    assert made.reward == 1.0  # 1 * (2 + 2 + 1) / 5
    assert (made.type_score, made.attributes_met, made.options_met) == (1.0, 1.0, 1.0)
    assert made.price_is_met


@pytest.mark.parametrize(
    ("product", "options", "reward"),
    [
        (LAMP, {}, 3 / 5),  # two attributes, the price
        (LAMP, {"color": "white", "size": "10 inch"}, 4 / 5),
        (replace(LAMP, price=50.01), RIGHT, 4 / 5),
        (replace(LAMP, price=50.0), RIGHT, 1.0),  # the bound itself is met
        (FLOOR_LAMP, {}, 2 / 5),  # one attribute, the price; near enough in the shop
        (replace(FLOOR_LAMP, product_category="Garden › Tools"), {}, 0.5 * 2 / 5),
        (replace(LAMP, title="Wool Scarf"), RIGHT, 0.0),
    ],
)
def test_purchases(product, options, reward):
    assert earned(product, options) == pytest.approx(reward)


def test_the_type_reward_has_four_steps():
    asked = replace(LAMP, title=" ".join(f"word{letter * 2}" for letter in "abcdefghijk"))
    asked = replace(asked, title="alpha beta gamma delta epsilon zeta eta theta iota kappa mu")

    def score(title, query="other", category="x › y"):
        bought = replace(LAMP, title=title, query=query, product_category=category)
        return type_reward(bought, asked)

    assert score("nothing shared") == 0.0
    assert score("nothing shared", query="desk lamp", category=LAMP.product_category) == 0.0
    assert score("alpha") == 0.1  # 1 of 11
    assert score("alpha", query="desk lamp") == 0.1
    assert score("alpha beta") == 0.5  # 2 of 11: 0.18
    assert score("alpha beta", query="desk lamp") == 1.0
    assert score("alpha beta", category="Home & Kitchen › Toys › Lighting") == 1.0  # two places
    assert score("alpha beta", category="Home & Kitchen › Toys") == 0.5  # one place
    assert score("alpha beta gamma") == 1.0  # 3 of 11: 0.27


def test_a_titles_words_count_as_often_as_they_stand_there():
    assert title_words("A Lamp with the 2 Shades, and a Lamp") == ["lamp", "shades", "lamp"]
    assert title_score("lamp", "A Lamp with the 2 Shades, and a Lamp") == pytest.approx(1 / 3)
    assert title_score("lamp", "12 of 3") == 0.2


def test_attributes_are_met_by_likeness_or_by_the_text():
    asked = ("tea tree", "essential oils", "natural ingredients")
    like = replace(LAMP, attributes=("tea tree", "essential oil", "natural ingredients"))
    assert num_attributes_met(like, asked) == 3
    told = replace(
        LAMP,
        attributes=(),
        features=("It has essential oils in it",),
        description="Made with Natural Ingredients",
    )
    assert num_attributes_met(told, asked) == 2
    other = replace(LAMP, attributes=("tea bag", "earl grey"), title="English tea")
    assert num_attributes_met(other, asked) == 0


@pytest.mark.parametrize(
    ("options", "asked", "met"),
    [
        ({"color": "grey", "size": "xl"}, ("grey", "xl"), 2),
        ({"color": "heather grey | navy"}, ("grey",), 1),
        ({"color": "cool powder snow"}, ("powder snow",), 1),
        ({"size": "x-large"}, ("large",), 0),  # a size is the same or it is not
        ({"fit": "x-large"}, ("large",), 1),
        ({"color": "blue"}, ("grey",), 0),
        ({"color": "blue"}, (), 0),
        ({"mode": "dims"}, ("red",), 1),  # not asked for, but the features say it
        ({"mode": "dims", "color": "red"}, ("red",), 1),  # no more than were asked for
    ],
)
def test_options(options, asked, met):
    assert num_options_met(LAMP, options, asked) == met


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("powder snow", "cool powder snow", 100),
        ("snow powder, SNOW", "powder snow", 100),
        ("essential oil", "essential oils", 96),  # 2 * 13 / 27
        ("tea bag", "tea tree", 60),  # "tea" against "tea bag": 2 * 3 / 10
        ("lamp", "", 0),
        ("abc", "xyz", 0),
    ],
)
def test_the_likeness_of_sets_of_words(one, other, ratio):
    assert token_set_ratio(one, other) == token_set_ratio(other, one) == ratio


def test_colours():
    assert [colour_of(each) for each in ("Navy/red", "03 heather grey", "xl")] == [
        "red",
        "grey",
        "xl",
    ]
