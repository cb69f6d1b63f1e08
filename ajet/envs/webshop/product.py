"""What the shop sells, and what an instruction asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CATEGORY_SEPARATOR = "›"
"""Between the parts of a product's place in the shop: "Home & Kitchen › Lighting › Lamps"."""


@dataclass(frozen=True, slots=True)
class Product:
    """`query` is the search under which the shop files it; option names and values are small
    letters, as the shop shows them."""

    asin: str
    title: str
    query: str
    product_category: str
    price: float
    price_tag: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    description: str = ""
    features: tuple[str, ...] = ()

    @property
    def category_parts(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.product_category.split(CATEGORY_SEPARATOR))

    @property
    def text(self) -> str:
        """Title, features and description, in small letters."""
        return "\n".join((self.title, " ".join(self.features), self.description)).lower()


@dataclass(frozen=True, slots=True)
class Goal:
    """`asin` is the product that the instruction was written for: the oracle's, not the only one
    that earns the whole reward. `options` are the values that are asked for."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
