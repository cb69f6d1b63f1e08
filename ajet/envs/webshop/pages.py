"""What a page of the shop shows, and what can be clicked on it.

    search page      the instruction, and the search bar
    results page     Back to Search, < Prev, Next >, ten products
    item page        Back to Search, < Prev, options, Description, Features, Reviews, Buy Now
    sub-page         Back to Search, < Prev, one text of the product

    text        Instruction: [SEP] i need … [SEP] Back to Search [SEP] Page 1 (Total results: 50) …
    text_rich   one piece a line, [button] around what can be clicked, [clicked button] where it was

Both are the forms of WebShop's own text environment. Not covered: pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ajet.envs.webshop.product import Product

PER_PAGE = 10
BACK = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
NO_REVIEWS = "No reviews."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shopper is. `query` None is the search page; `product` None the results."""

    query: str | None = None
    results: tuple[Product, ...] = ()
    page: int = 1
    product: Product | None = None
    sub_page: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[Product, ...]:
        return self.results[(self.page - 1) * PER_PAGE : self.page * PER_PAGE]

    @property
    def key(self) -> str:
        asin = self.product.asin if self.product else ""
        chosen = ", ".join(f"{name}: {value}" for name, value in sorted(self.options.items()))
        return f"{self.query}|{self.page}|{asin}|{self.sub_page or ''}|{chosen}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A line of a page. `is_clicked`: a chosen option, or a product that was looked at."""

    text: str
    is_button: bool = False
    is_clicked: bool = False


def pieces(place: Place, instruction: str, visited: frozenset[str]) -> list[Piece]:
    """`visited` are the asins that the shopper has looked at."""
    if place.query is None:
        head = ["WebShop", "Instruction:", instruction]
        return [*map(Piece, head), Piece("Search", is_button=True)]
    top = [Piece("Instruction:"), Piece(instruction), Piece(BACK, is_button=True)]
    if place.product is None:
        return [*top, *_results(place, visited)]
    top.append(Piece(PREVIOUS, is_button=True))
    if place.sub_page is not None:
        return [*top, *map(Piece, _sub_page(place.product, place.sub_page))]
    return [*top, *_item(place.product, place.options)]


def clickable(page: Sequence[Piece]) -> list[str]:
    """As an action names them, in small letters. The search bar is no button."""
    return [each.text.lower() for each in page if each.is_button and each.text != "Search"]


def after_click(place: Place, name: str) -> Place:
    """Where a button of this page leads. Buying is the shop's affair."""
    if name == BACK.lower():
        return Place()
    if name == NEXT.lower():
        return replace(place, page=place.page + 1)
    if name == PREVIOUS.lower():
        return _before(place)
    if place.product is None:
        product = next(each for each in place.shown if each.asin.lower() == name)
        return replace(place, product=product)
    sub_page = next((each for each in SUB_PAGES if each.lower() == name), None)
    if sub_page is not None:
        return replace(place, sub_page=sub_page)
    return replace(place, options={**place.options, _option(place, name): name})


def _option(place: Place, value: str) -> str:
    """The option that has the value; of several, one that has another value now."""
    assert place.product is not None
    having = [name for name, values in place.product.options.items() if value in values]
    return next((name for name in having if place.options.get(name) != value), having[0])


def as_text(page: Sequence[Piece]) -> str:
    return " [SEP] ".join(each.text for each in page)


def as_rich_text(page: Sequence[Piece]) -> str:
    return "\n".join(_rich(each) for each in page)


def _rich(piece: Piece) -> str:
    if not piece.is_button:
        return piece.text
    mark = "clicked button" if piece.is_clicked else "button"
    return f"[{mark}] {piece.text} [{mark}_]"


def _before(place: Place) -> Place:
    if place.sub_page is not None:
        return replace(place, sub_page=None)
    if place.product is not None:
        return replace(place, product=None, options={})
    return replace(place, page=place.page - 1)


def _results(place: Place, visited: frozenset[str]) -> Iterator[Piece]:
    yield Piece(f"Page {place.page} (Total results: {len(place.results)})")
    if place.page > 1:
        yield Piece(PREVIOUS, is_button=True)
    if place.page * PER_PAGE < len(place.results):
        yield Piece(NEXT, is_button=True)
    for product in place.shown:
        yield Piece(product.asin, is_button=True, is_clicked=product.asin in visited)
        yield Piece(product.title)
        yield Piece(product.price_tag)


def _item(product: Product, chosen: Mapping[str, str]) -> Iterator[Piece]:
    for name, values in product.options.items():
        yield Piece(name)
        for value in values:
            yield Piece(value, is_button=True, is_clicked=chosen.get(name) == value)
    yield from map(Piece, (product.title, f"Price: {product.price_tag}", "Rating: N.A."))
    for name in (*SUB_PAGES, BUY):
        yield Piece(name, is_button=True)


def _sub_page(product: Product, name: str) -> Sequence[str]:
    if name == "Description":
        return [product.description]
    return product.features if name == "Features" else [NO_REVIEWS]
