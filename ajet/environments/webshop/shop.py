"""The environment WebShop: buy what an instruction asks for.

search[cordless desk lamp]  ->  ten results        click[B0…]  ->  its page
click[red]  ->  the option is chosen               click[Buy Now]  ->  the reward, and the end
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, SettingError
from ajet.core.errors.codes import Code
from ajet.environments.webshop.catalogue import catalogue_of
from ajet.environments.webshop.matching import terms_of, token_set_ratio
from ajet.environments.webshop.pages import (
    BUY,
    NEXT,
    PER_PAGE,
    PREVIOUS,
    PageElement,
    ShopState,
    as_rich_text,
    as_text,
    clickable,
    page_elements,
    state_after_click,
)
from ajet.environments.webshop.products import Goal, Product
from ajet.environments.webshop.reward import ALIKE, purchase

MAX_RESULTS = 50
FORMS = {"text": as_text, "text_rich": as_rich_text}
FORM = "Write search[words] or click[name of a button]."
_ACTION = re.compile(r"\s*(search|click)\s*\[(.+)\]\s*", re.IGNORECASE | re.DOTALL)


class WebShop(Environment):
    """The shop as an environment; it has no pictures and no reviews. The reward is the paper's,
    between 0 and 1; 1 is a success. `products`, `attributes` and `goals` are WebShop's files
    items_shuffle.json, items_ins_v2.json and items_human_ins.json (without goals, those of
    items_ins_v2.json are used; without files, a small generated catalogue); `num_products` limits
    the number of products. `show_actions` adds the chosen options and the possible actions to each
    page."""

    instruction = (
        "You are in a shop. Buy the product that the instruction describes. "
        "Actions: search[words] and click[name of a button]. Choose the options that are asked "
        "for, then click[Buy Now]."
    )

    def __init__(
        self,
        products: str | None = None,
        attributes: str | None = None,
        goals: str | None = None,
        num_products: int | None = None,
        observation_mode: str = "text",
        show_actions: bool = True,
    ) -> None:
        if observation_mode not in FORMS:
            raise SettingError(
                f"webshop: env_config.observation_mode: {observation_mode!r}: text or text_rich"
            )
        self._catalogue = catalogue_of(products, attributes, goals, num_products)
        self._write = FORMS[observation_mode]
        self.show_actions = show_actions
        self.goal: Goal = self._catalogue.goals[0]
        self._state, self._visited, self._is_over = ShopState(), frozenset[str](), False

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        split = (options or {}).get("split")
        goals = self._catalogue.split(split)
        if not goals:
            raise ConfigError(
                f"webshop: {len(self._catalogue.goals)} goals are too few to have one in split "
                f"{split}; take a larger num_products",
                code=Code.NO_INSTANCE,
            )
        self.goal = random.Random(seed).choice(goals)
        self._state, self._visited, self._is_over = ShopState(), frozenset[str](), False
        return self.render(), {"state_key": self._state.key}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._is_over:
            return "The purchase is made.", 0.0, True, False, self._info(is_valid=False)
        match = _ACTION.fullmatch(action)
        verb, name = (match[1].lower(), match[2].strip().lower()) if match else ("", "")
        if verb == "search" and terms_of(name):
            results = self._catalogue.index.best(name, MAX_RESULTS)
            self._state = ShopState(query=name, results=tuple(results))
        elif verb == "click" and name in clickable(self._page()):
            if name == BUY.lower():
                return self._buy()
            self._state = state_after_click(self._state, name)
            if self._state.product is not None:
                self._visited |= {self._state.product.asin}
        else:
            return f"{FORM}\n{self.render()}", 0.0, False, False, self._info(is_valid=False)
        return self.render(), 0.0, False, False, self._info(is_valid=True)

    def render(self) -> str:
        text = self._write(self._page())
        if not self.show_actions:
            return text
        chosen = ", ".join(f"{name}: {value}" for name, value in self._state.options.items())
        chosen_text = f"\nChosen: {chosen}" if chosen else ""
        return f"{text}{chosen_text}\nActions: {', '.join(self._actions())}"

    def sample_action(self, rng: random.Random) -> str:
        actions = self._actions()
        if self._state.query is not None:
            return rng.choice(actions)
        words = terms_of(self.goal.instruction)
        return f"search[{' '.join(rng.sample(words, min(3, len(words))))}]"

    def oracle_action(self) -> str | None:
        """Searches for the goal's product by its title, chooses the options and buys it. Returns
        None if the search does not find the product."""
        state, goal_product = self._state, self._goal_product
        query = goal_product.title.lower()
        if state.product is None and state.query != query:
            return f"search[{query}]"
        if state.product is None:
            if goal_product not in state.results:
                return None
            page = 1 + state.results.index(goal_product) // PER_PAGE
            if page == state.page:
                return f"click[{goal_product.asin.lower()}]"
            return f"click[{(NEXT if page > state.page else PREVIOUS).lower()}]"
        if state.product is not goal_product or state.sub_page is not None:
            return f"click[{PREVIOUS.lower()}]"
        for name, values in goal_product.options.items():
            # The value that the goal asks for, literally or by likeness; None if it asks for none.
            goal_options = self.goal.options
            alike = (
                value
                for value in values
                if any(token_set_ratio(value, option) > ALIKE for option in goal_options)
            )
            literal = (value for value in values if value in goal_options)
            requested = next(chain(literal, alike), None)
            if requested is not None and state.options.get(name) != requested:
                return f"click[{requested}]"
        return f"click[{BUY.lower()}]"

    @property
    def _goal_product(self) -> Product:
        return self._catalogue.products[self.goal.asin]

    def _page(self) -> list[PageElement]:
        return page_elements(self._state, self.goal.instruction, self._visited)

    def _actions(self) -> list[str]:
        clicks = [f"click[{name}]" for name in clickable(self._page())]
        return clicks or ["search[words]"]

    def _buy(self) -> tuple[str, float, bool, bool, Info]:
        bought = self._state.product
        assert bought is not None, "only an item page has the button"
        result = purchase(bought, self._state.options, self.goal, self._goal_product)
        self._is_over = True
        info = self._info(
            is_valid=True,
            success=result.reward >= 1,
            is_bought=True,
            type_score=result.type_score,
            attributes_met=result.attributes_met,
            options_met=result.options_met,
            price_is_met=result.price_is_met,
        )
        return f"You bought {bought.title}.", result.reward, True, False, info

    def _info(self, *, is_valid: bool, **bought: float) -> Info:
        metrics = {"success": False, "action_is_valid": is_valid, "is_bought": False} | bought
        modes = {name: "last" for name in metrics if name not in ("success", "action_is_valid")}
        return {"metrics": metrics, "metrics_agg_mode": modes, "state_key": self._state.key}
