"""Renders the pages of the shop in the forms of WebShop's text environment, and says what can be
clicked on them: the search page, a page of results, a product's page, and one text of a product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ajet.environments.webshop.products import Product

PER_PAGE = 10
BACK = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
NO_REVIEWS = "No reviews."


@dataclass(frozen=True, slots=True)
class ShopState:
    """The page that a shopper is on. The search page has no `query`; the results page has no
    `product`."""

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
class PageElement:
    """A line of a page. `is_clicked` marks a chosen option, or a product that was looked at."""

    text: str
    is_button: bool = False
    is_clicked: bool = False


def page_elements(state: ShopState, instruction: str, visited: frozenset[str]) -> list[PageElement]:
    """Returns the lines of a page. `visited` holds the asins that the shopper has looked at."""
    if state.query is None:
        head = ["WebShop", "Instruction:", instruction]
        return [*map(PageElement, head), PageElement("Search", is_button=True)]
    top = [PageElement("Instruction:"), PageElement(instruction), PageElement(BACK, is_button=True)]
    if state.product is None:
        return [*top, *_results(state, visited)]
    top.append(PageElement(PREVIOUS, is_button=True))
    if state.sub_page is not None:
        product = state.product
        texts = {"Description": [product.description], "Features": product.features}
        return [*top, *map(PageElement, texts.get(state.sub_page, [NO_REVIEWS]))]
    return [*top, *_item(state.product, state.options)]


def clickable(page: Sequence[PageElement]) -> list[str]:
    """Returns the buttons as an action names them, in lower case, without the search bar."""
    return [
        element.text.lower() for element in page if element.is_button and element.text != "Search"
    ]


def state_after_click(state: ShopState, name: str) -> ShopState:
    """Returns the state that a button of this page leads to. Buying is handled by the shop."""
    if name == BACK.lower():
        return ShopState()
    if name == NEXT.lower():
        return replace(state, page=state.page + 1)
    if name == PREVIOUS.lower():
        if state.sub_page is not None:
            return replace(state, sub_page=None)
        if state.product is not None:
            return replace(state, product=None, options={})
        return replace(state, page=state.page - 1)
    if state.product is None:
        product = next(result for result in state.shown if result.asin.lower() == name)
        return replace(state, product=product)
    for sub_page in SUB_PAGES:
        if sub_page.lower() == name:
            return replace(state, sub_page=sub_page)
    # Otherwise it is the value of an option. If several have it, it goes to one that lacks it.
    names = [option for option, values in state.product.options.items() if name in values]
    option = next((option for option in names if state.options.get(option) != name), names[0])
    return replace(state, options={**state.options, option: name})


def as_text(page: Sequence[PageElement]) -> str:
    """Instruction: [SEP] i need … [SEP] Back to Search [SEP] Page 1 (Total results: 50) …"""
    return " [SEP] ".join(element.text for element in page)


def as_rich_text(page: Sequence[PageElement]) -> str:
    """One element a line, in [button] if it can be clicked, [clicked button] if it was."""
    lines: list[str] = []
    for element in page:
        mark = "clicked button" if element.is_clicked else "button"
        lines.append(f"[{mark}] {element.text} [{mark}_]" if element.is_button else element.text)
    return "\n".join(lines)


def _results(state: ShopState, visited: frozenset[str]) -> Iterator[PageElement]:
    yield PageElement(f"Page {state.page} (Total results: {len(state.results)})")
    if state.page > 1:
        yield PageElement(PREVIOUS, is_button=True)
    if state.page * PER_PAGE < len(state.results):
        yield PageElement(NEXT, is_button=True)
    for product in state.shown:
        yield PageElement(product.asin, is_button=True, is_clicked=product.asin in visited)
        yield PageElement(product.title)
        yield PageElement(product.price_tag)


def _item(product: Product, chosen: Mapping[str, str]) -> Iterator[PageElement]:
    for name, values in product.options.items():
        yield PageElement(name)
        for value in values:
            yield PageElement(value, is_button=True, is_clicked=chosen.get(name) == value)
    yield from map(PageElement, (product.title, f"Price: {product.price_tag}", "Rating: N.A."))
    for name in (*SUB_PAGES, BUY):
        yield PageElement(name, is_button=True)
