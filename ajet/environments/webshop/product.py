"""The products of the shop, and the goals that instructions ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CATEGORY_SEPARATOR = "›"
"""Separates the parts of a product's category: "Home & Kitchen › Lighting › Lamps"."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product. `query` is the search under which the shop files it; option names and values are
    in lower case, as the shop shows them."""

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
        """Title, features and description, in lower case."""
        return "\n".join((self.title, " ".join(self.features), self.description)).lower()


@dataclass(frozen=True, slots=True)
class Goal:
    """What an instruction asks for. `asin` is the product that it was written for; other products
    can earn the whole reward too. `options` are the requested values."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
