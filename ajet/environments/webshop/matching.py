"""Compares texts of the shop: similarity, colours, and the words of a title.

    token_set_ratio("essential oil", "pure essential oils")     how alike, 0 to 100
    colour_of("heather grey/navy")                               grey
    title_words("Lamp with a Shade")                             [lamp, shade]

The ratio is that of the package that the paper's code calls (thefuzz): words as sets, and twice the
longest common subsequence over both lengths. The paper's code takes a title's nouns from spaCy;
here every word counts except function words and numbers.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NO_WORD = re.compile(r"[\W_]+")
_LETTERS = re.compile(r"[a-z]{2,}")

_FUNCTION_WORDS = """an and are as at be but by can for from has have in into is it its made new no
not of off on or our out per so than that the their them this to up use very was we with without
you your"""
_COLOURS = """black white grey gray silver gold red orange yellow green blue purple pink brown beige
ivory cream khaki olive teal turquoise aqua cyan navy indigo violet lavender lilac magenta fuchsia
maroon burgundy crimson coral peach salmon rose bronze copper brass charcoal tan taupe mint emerald
mustard amber walnut oak espresso natural clear multicolor"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
COLOURS = tuple(_COLOURS.split())


def token_set_ratio(first: str, second: str) -> int:
    """Returns how alike two texts are, from 0 to 100. It is 100 if all words of one text are in the
    other; order and repetition do not matter."""
    return _set_ratio(frozenset(_words(first)), frozenset(_words(second)))


def colour_of(option: str) -> str:
    """Returns the first colour of COLOURS that the option names, or else the option."""
    option = option.lower()
    return next((colour for colour in COLOURS if colour in option), option)


def title_words(title: str) -> list[str]:
    return [word for word in _LETTERS.findall(title.lower()) if word not in FUNCTION_WORDS]


def _words(text: str) -> list[str]:
    return _NO_WORD.sub(" ", text.lower()).split()


@lru_cache(maxsize=65536)
def _set_ratio(first: frozenset[str], second: frozenset[str]) -> int:
    if not first or not second:
        return 0
    shared = " ".join(sorted(first & second))
    first_words = " ".join(filter(None, (shared, " ".join(sorted(first - second)))))
    right = " ".join(filter(None, (shared, " ".join(sorted(second - first)))))
    return max(_ratio(shared, first_words), _ratio(shared, right), _ratio(first_words, right))


def _ratio(first: str, second: str) -> int:
    if not first or not second:
        return 0
    return round(200 * _common_length(first, second) / (len(first) + len(second)))


def _common_length(first: str, second: str) -> int:
    """Returns the length of the longest common subsequence."""
    # row[j] is the length for the letters of `first` so far and the first j letters of `second`.
    row = [0] * (len(second) + 1)
    for letter in first:
        before = 0  # row[column - 1] of the letter before, which this row overwrites
        for column, second_letter in enumerate(second, 1):
            above = row[column]
            row[column] = before + 1 if letter == second_letter else max(above, row[column - 1])
            before = above
    return row[-1]
