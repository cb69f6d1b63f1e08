"""The products of the shop, and the goals that instructions ask for.

Without WebShop's files, a small catalogue is generated: 24 kinds of products, 12 products each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ajet.core.seeding import derive

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


PRODUCTS_PER_KIND = 12
GOALS_PER_PRODUCT = 2
NUM_ATTRIBUTES = 3

SIZES = {
    "clothes": ("small", "medium", "large", "x-large", "xx-large"),
    "shoes": ("6", "7", "8", "9", "10", "11"),
    "things": ("10 inch", "14 inch", "18 inch", "24 inch"),
    "packs": ("pack of 1", "pack of 2", "pack of 4", "pack of 6"),
    "bottles": ("4 ounce", "8 ounce", "12 ounce", "16 ounce"),
}
HUES = ("black", "white", "grey", "navy", "red", "green", "beige", "brown", "pink", "yellow")
SCENTS = ("citrus", "lavender", "cedar", "vanilla", "unscented")
FLAVOURS = ("salted", "honey", "chili", "lemon", "plain")

CLOTHES = ("machine washable", "long sleeve", "slim fit", "quick drying", "moisture wicking")
CLOTHES += ("button closure", "water repellent", "tumble dry")
SHOES = ("non slip", "rubber sole", "memory foam", "arch support", "water resistant")
SHOES += ("ankle strap", "lace up", "vegan leather")
FURNITURE = ("easy assemble", "solid wood", "space saving", "height adjustable", "heavy duty")
FURNITURE += ("stain resistant", "scratch resistant", "mid century")
LIGHTS = ("energy saving", "dimmable", "cordless", "glass shade", "remote controlled")
LIGHTS += ("wall mounted", "touch sensor", "warm light")
GADGETS = ("fast charging", "noise cancelling", "hands free", "wireless", "high definition")
GADGETS += ("long lasting", "dust proof", "voice controlled")
CARE = ("cruelty free", "paraben free", "sulfate free", "tea tree", "coconut oil", "dry skin")
CARE += ("plant based", "travel size")
FOOD = ("gluten free", "low sodium", "sugar free", "non gmo", "dairy free", "high protein")
FOOD += ("keto friendly", "individually wrapped")

KINDS: tuple[tuple[str, str, tuple[str, ...], str, str, tuple[int, int]], ...] = (
    ("rain jacket", "Clothing › Outerwear › Jackets", CLOTHES, "color", "clothes", (30, 120)),
    ("fleece vest", "Clothing › Outerwear › Vests", CLOTHES, "color", "clothes", (20, 70)),
    ("dress shirt", "Clothing › Shirts › Dress Shirts", CLOTHES, "color", "clothes", (15, 60)),
    ("polo shirt", "Clothing › Shirts › Polos", CLOTHES, "color", "clothes", (12, 45)),
    ("hiking boots", "Shoes › Outdoor › Boots", SHOES, "color", "shoes", (50, 160)),
    ("trail runners", "Shoes › Outdoor › Running", SHOES, "color", "shoes", (40, 140)),
    ("house slippers", "Shoes › Indoor › Slippers", SHOES, "color", "shoes", (10, 40)),
    ("ballet flats", "Shoes › Indoor › Flats", SHOES, "color", "shoes", (15, 60)),
    ("floor lamp", "Home & Kitchen › Lighting › Floor Lamps", LIGHTS, "color", "things", (25, 150)),
    ("desk lamp", "Home & Kitchen › Lighting › Desk Lamps", LIGHTS, "color", "things", (15, 80)),
    ("bar stool", "Home & Kitchen › Furniture › Stools", FURNITURE, "color", "things", (35, 180)),
    (
        "coffee table",
        "Home & Kitchen › Furniture › Tables",
        FURNITURE,
        "color",
        "things",
        (60, 300),
    ),
    ("bookcase", "Home & Kitchen › Furniture › Shelves", FURNITURE, "color", "things", (45, 250)),
    ("headphones", "Electronics › Audio › Headphones", GADGETS, "color", "packs", (20, 200)),
    ("bluetooth speaker", "Electronics › Audio › Speakers", GADGETS, "color", "packs", (15, 120)),
    ("phone charger", "Electronics › Power › Chargers", GADGETS, "color", "packs", (8, 50)),
    ("security camera", "Electronics › Video › Cameras", GADGETS, "color", "packs", (25, 150)),
    ("body lotion", "Beauty › Skin Care › Lotions", CARE, "scent", "bottles", (6, 35)),
    ("face wash", "Beauty › Skin Care › Cleansers", CARE, "scent", "bottles", (5, 30)),
    ("shampoo", "Beauty › Hair Care › Shampoos", CARE, "scent", "bottles", (5, 30)),
    ("hair oil", "Beauty › Hair Care › Oils", CARE, "scent", "bottles", (7, 40)),
    ("trail mix", "Grocery › Snacks › Nuts", FOOD, "flavor", "packs", (6, 40)),
    ("rice crackers", "Grocery › Snacks › Crackers", FOOD, "flavor", "packs", (4, 25)),
    ("energy bars", "Grocery › Breakfast › Bars", FOOD, "flavor", "packs", (8, 45)),
)
"""Each kind: its name, its category path, its pool of attributes, its first option, its sizes, and
its range of prices."""

CHOICES = {"color": HUES, "scent": SCENTS, "flavor": FLAVOURS}
BRANDS = ("Halden", "Morrow", "Tessaly", "Quillon", "Aberwick", "Norrland", "Pemby", "Solvane")
BRANDS += ("Castellan", "Dunmere", "Everlow", "Fenwright", "Garrick", "Isolde", "Jorvik", "Kestrel")
ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"


def generated_products() -> list[Product]:
    """Returns products such as "Halden Cordless Floor Lamp HA-314". A title names one of the three
    attributes and the features all of them, so some goals require looking at a product's pages. No
    title contains option values."""
    rng = random.Random(derive("webshop", "products"))
    products = [_product(rng, *row) for row in KINDS for _ in range(PRODUCTS_PER_KIND)]
    rng.shuffle(products)
    return products


def generated_goals(products: Sequence[Product]) -> Iterator[Goal]:
    """Yields goals that ask for one to three attributes and up to two options of their product."""
    for item in products:
        rng = random.Random(derive("webshop", "goals", item.asin))
        for _ in range(GOALS_PER_PRODUCT):
            attributes = rng.sample(item.attributes, rng.randint(1, NUM_ATTRIBUTES))
            names = [name for name in item.options if rng.random() < 0.7]
            options = {name: rng.choice(item.options[name]) for name in names}
            attribute_text = " and ".join(attributes)
            text = f"i am looking for {item.query} that is {attribute_text}"
            text += "".join(f", with {name}: {value}" for name, value in options.items())
            yield Goal(item.asin, text, tuple(attributes), tuple(options.values()), 0.0)


def _product(
    rng: random.Random,
    query: str,
    category: str,
    pool: tuple[str, ...],
    choice: str,
    sizes: str,
    prices: tuple[int, int],
) -> Product:
    attributes = rng.sample(pool, NUM_ATTRIBUTES)
    brand, number = rng.choice(BRANDS), rng.randint(100, 999)
    price = rng.randint(*prices) + 0.99
    title = f"{brand} {attributes[0].title()} {query.title()} {brand[:2].upper()}-{number}"
    features = [f"Our {query} is {attribute}, and stays so." for attribute in attributes]
    rng.shuffle(features)
    options = {choice: _some(rng, CHOICES[choice]), "size": _some(rng, SIZES[sizes])}
    return Product(
        asin="B0" + "".join(rng.choices(ALPHABET, k=8)),
        title=title,
        query=query,
        product_category=category,
        price=price,
        price_tag=f"${price}",
        attributes=tuple(attributes),
        options=options,
        description=f"{brand} makes {query} since {rng.randint(1900, 2015)}.",
        features=tuple(features),
    )


def _some(rng: random.Random, values: tuple[str, ...]) -> tuple[str, ...]:
    """Returns three of the values, in their order."""
    chosen = set(rng.sample(values, 3))
    return tuple(value for value in values if value in chosen)
