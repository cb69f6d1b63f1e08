"""Computes the reward of a purchase as the paper's code does.

Which words of a title count (matching.py) and the list of colours differ from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ajet.environments.webshop.matching import colour_of, title_words, token_set_ratio
from ajet.environments.webshop.products import Goal, Product

ALIKE = 85
EXACT_OPTIONS = ("size",)
MIN_SHARED_CATEGORIES = 2
NO_WORDS_SCORE = 0.2


@dataclass(frozen=True, slots=True)
class Purchase:
    """The reward of a purchase, and the shares of the requested attributes and options that were
    met."""

    reward: float
    type_score: float
    attributes_met: float
    options_met: float
    price_is_met: bool


def purchase(
    bought: Product, options: Mapping[str, str], goal: Goal, goal_product: Product
) -> Purchase:
    """Returns the result of buying `bought`. `goal_product` is the product that the goal was
    written for, `options` are the chosen values by name.

        r = r_type * (attributes met + options met + [price <= bound])
                   / (requested attributes + requested options + 1)
    """
    type_score = type_reward(bought, goal_product)
    attributes = num_attributes_met(bought, goal.attributes)
    chosen = num_options_met(bought, options, goal.options)
    price_is_met = bought.price <= goal.price_upper
    num_requested = len(goal.attributes) + len(goal.options) + 1
    return Purchase(
        reward=type_score * (attributes + chosen + price_is_met) / num_requested,
        type_score=type_score,
        attributes_met=_share(attributes, len(goal.attributes)),
        options_met=_share(chosen, len(goal.options)),
        price_is_met=price_is_met,
    )


def type_reward(bought: Product, goal_product: Product) -> float:
    """Returns 0 if the titles share no word, 0.1 below a tenth, and 0.5 up to a fifth if the
    product is filed under another search and has fewer than two categories in common, else 1."""
    score = title_score(bought.title, goal_product.title)
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    is_filed_alike = bought.query == goal_product.query
    is_near = len(bought.category_parts & goal_product.category_parts) >= MIN_SHARED_CATEGORIES
    return 1.0 if is_filed_alike or is_near or score > 0.2 else 0.5


def title_score(bought: str, goal_title: str) -> float:
    """Returns the share of the requested title's words, counted with repetition, that the bought
    title has."""
    words = title_words(goal_title)
    if not words:
        return NO_WORDS_SCORE
    return len(set(words) & set(title_words(bought))) / len(words)


def num_attributes_met(bought: Product, attributes: tuple[str, ...]) -> int:
    """Counts the attributes that are similar to one of the product's or in its text."""
    text = bought.text
    return sum(
        any(token_set_ratio(candidate, attribute) > ALIKE for candidate in bought.attributes)
        or attribute in text
        for attribute in attributes
    )


def num_options_met(
    bought: Product, options: Mapping[str, str], goal_options: tuple[str, ...]
) -> int:
    """Counts the chosen options that are similar to a requested one (a size must be the same) or in
    the product's text; colours are compared by their first colour word."""
    requested, text = [colour_of(option) for option in goal_options], bought.text
    met = 0
    for name, value in options.items():
        colour = colour_of(value)
        if name.lower() in EXACT_OPTIONS:
            is_asked = colour in requested
        else:
            is_asked = any(token_set_ratio(option, colour) > ALIKE for option in requested)
        met += is_asked or colour in text
    # In the paper's code, options that were not requested but are in the title raise the reward
    # above 1.
    return min(met, len(goal_options))


def _share(met: int, total: int) -> float:
    return met / total if total else 1.0
