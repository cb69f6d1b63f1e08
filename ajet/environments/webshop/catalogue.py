"""Loads a catalogue of products and the goals written for them: generated, or from WebShop's files.

items_shuffle.json     [{asin, name, query, product_category, pricing, small_description, …}]
items_ins_v2.json      {asin: {attributes, instruction, instruction_attributes}}
items_human_ins.json   {asin: [{instruction, instruction_attributes, instruction_options}]}
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from ajet.core.errors import SettingError
from ajet.core.seeding import derive
from ajet.environments.webshop.matching import SearchIndex
from ajet.environments.webshop.products import Goal, Product, generated_goals, generated_products

ORDER_SEED = 233
MANY_GOALS = 2000
NUM_VALIDATION = 500
FIRST_TRAINING = 1500
NO_BOUND = 1_000_000.0
DEFAULT_PRICE = 100.0
_lock = threading.Lock()
"""Held so that environments that start at the same time read a catalogue once."""


class Catalogue:
    """Products and goals. The goals of validation are the first 500 in the paper's order (a shuffle
    with seed 233), those of training begin at 1,500. Of fewer than 2,000 goals the first fifth is
    for validation. Goals have no weights."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]) -> None:
        self.products = {product.asin: product for product in products}
        self.index = SearchIndex(products)
        self.goals = list(goals)
        random.Random(ORDER_SEED).shuffle(self.goals)

    def split(self, name: str | None) -> list[Goal]:
        """Returns the goals of a split, or all goals for None."""
        is_large = len(self.goals) >= MANY_GOALS
        num_validation = NUM_VALIDATION if is_large else len(self.goals) // 5
        if name == "validation":
            return self.goals[:num_validation]
        first = FIRST_TRAINING if is_large else num_validation
        return self.goals[first:] if name == "train" else self.goals


def catalogue_of(
    products: str | None, attributes: str | None, goals: str | None, num_products: int | None
) -> Catalogue:
    """Returns the catalogue of these files, which are read once in a process; without files, the
    generated one."""
    if products is None:
        if attributes or goals:
            raise SettingError("webshop: env_config.attributes and goals need env_config.products")
        with _lock:
            return _generated_catalogue(num_products)
    if attributes is None:
        raise SettingError("webshop: env_config.products needs attributes (items_ins_v2.json)")
    with _lock:
        return _read(products, attributes, goals, num_products)


@cache
def _generated_catalogue(num_products: int | None) -> Catalogue:
    if num_products is not None and num_products < 1:
        raise SettingError(f"webshop: env_config.num_products is {num_products}; take at least 1")
    products = generated_products()[:num_products]
    return Catalogue(products, with_price_bounds(generated_goals(products), products))


@cache
def _read(products: str, attributes: str, goals: str | None, num_products: int | None) -> Catalogue:
    details = _json(attributes, dict, "attributes")
    rows = _json(products, list, "products")
    try:
        sold = list(islice(_products(rows, details), num_products))
        if goals is None:
            goals_of_products = _synthetic_goals(sold, details)
        else:
            goals_of_products = _human_goals(sold, _json(goals, dict, "goals"))
        catalogue = Catalogue(sold, with_price_bounds(goals_of_products, sold))
    except (KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"webshop: {products}: not in the form of items_shuffle.json and its companions "
            f"({type(error).__name__}: {error})"
        ) from error
    if not catalogue.goals:
        raise SettingError(f"webshop: {goals or attributes}: no goal for a product of {products}")
    return catalogue


def with_price_bounds(goals: Iterator[Goal], products: Sequence[Product]) -> list[Goal]:
    """Returns each goal once, with a price bound: one of the next four multiples of ten above its
    product's price, but never the lowest. A product dearer than all multiples gets no bound."""
    prices = {product.asin: product.price for product in products}
    bounded = {}
    for goal in goals:
        tens = [10.0 * i for i in range(1, 100) if 10.0 * i > prices[goal.asin]][:4]
        # "with" separates attributes from options, so that they cannot be confused.
        goal_key = (goal.asin, *goal.attributes, "with", *goal.options)
        rng = random.Random(derive("webshop", "bound", *goal_key))
        if len(tens) >= 2:
            # The larger of two draws is never the lowest multiple.
            bound = max(rng.sample(tens, 2))
            instruction = f"{goal.instruction}, and price lower than {bound:.2f} dollars"
        else:
            bound, instruction = NO_BOUND, goal.instruction
        bounded[goal_key] = replace(goal, instruction=instruction, price_upper=bound)
    return list(bounded.values())


def _products(rows: list[dict[str, Any]], details: Mapping[str, Any]) -> Iterator[Product]:
    """Yields each product once, without those whose asin is longer than ten characters."""
    seen = set()
    for row in rows:
        asin = row["asin"]
        if asin == "nan" or len(asin) > 10 or asin in seen:
            continue
        seen.add(asin)
        price, tag = _price(asin, row.get("pricing"))
        features = row.get("small_description") or []
        features = features if isinstance(features, list) else [features]
        options = {
            name.lower(): tuple(v["value"].strip().replace("/", " | ").lower() for v in values)
            for name, values in (row.get("customization_options") or {}).items()
            if values is not None
        }
        yield Product(
            asin=asin,
            title=row["name"],
            query=row["query"].lower().strip(),
            product_category=row["product_category"],
            price=price,
            price_tag=tag,
            attributes=tuple((details.get(asin) or {}).get("attributes") or ()),
            options=options,
            description=row.get("full_description") or "",
            features=tuple(str(feature) for feature in features),
        )


def _price(asin: str, pricing: str | None) -> tuple[float, str]:
    """Returns the price and how the shop shows it: "$12.5", or "$10.0 to $20.0"."""
    numbers = [re.sub(r"[^\d.]", "", part) for part in (pricing or "").split("$")[1:]]
    prices = [float(part) for part in numbers if part.strip(".")]
    if not prices:
        return DEFAULT_PRICE, f"${DEFAULT_PRICE}"
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    # Unlike in the paper's code, random prices and price bounds have separate seeds, so that they
    # do not depend on what else is read.
    rng = random.Random(derive("webshop", "price", asin))
    return rng.uniform(*prices[:2]), f"${prices[0]} to ${prices[1]}"


def _human_goals(sold: Sequence[Product], human: Mapping[str, Any]) -> Iterator[Goal]:
    for item in sold:
        for goal in human.get(item.asin, ()):
            attributes = tuple(goal["instruction_attributes"])
            if attributes:
                options = goal["instruction_options"]
                values = tuple(options.values() if isinstance(options, dict) else options)
                instruction = goal["instruction"].strip(".")
                yield Goal(item.asin, instruction, attributes, values, NO_BOUND)


def _synthetic_goals(sold: Sequence[Product], details: Mapping[str, Any]) -> Iterator[Goal]:
    """Yields one goal for each combination of a product's options."""
    for item in sold:
        row = details.get(item.asin) or {}
        if not row.get("instruction"):
            continue
        names = sorted(item.options)
        for values in product(*(item.options[name] for name in names)):
            chosen = ", and ".join(f"{n}: {v}" for n, v in zip(names, values, strict=True))
            instruction = row["instruction"] + (f" with {chosen}" if chosen else "")
            attributes = tuple(row["instruction_attributes"])
            yield Goal(item.asin, instruction, attributes, values, NO_BOUND)


def _json(path: str, expected_type: type, key: str) -> Any:
    location = f"webshop: env_config.{key}: {path}"
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise SettingError(f"{location}: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(f"{location}: not JSON: {error}") from error
    if not isinstance(content, expected_type):
        form = "an object" if expected_type is dict else "a list"
        raise SettingError(f"{location}: its JSON is not {form}")
    return content
