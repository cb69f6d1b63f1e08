"""Writes the numbers of an answer in one form, in which equal numbers are recognised as equal."""

from __future__ import annotations

import numbers
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_EXPONENT = 400
"""Numbers with larger exponents keep their form: as decimals they would fill memory."""

# Lookarounds keep a pattern from matching inside a word or a longer number.
_SUBSCRIPTS = re.compile("[\u2080-\u2089]+")
_SUPERSCRIPTS = re.compile("[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
# repr() of numpy's and Python's numbers, such as np.float64(1e-05) and Decimal('2')
_PRINTED = re.compile(r"\b(?:(?:np|numpy)\.(?:float|u?int)\d+|Decimal)\(['\"]?([-+.\deE]+)['\"]?\)")
# Thousands, separated by an underscore, LaTeX's spaces or Unicode's narrow ones. A plain comma is
# left to math-verify: (1,234) may be a pair.
_GROUPED = re.compile(
    r"(?<![\w.])\d{1,3}(?:(?:_|\\[,;: ]|,\\!|~|[\u00a0\u2009\u202f])\d{3})+(?!\w)"
)
_PREFIXED = re.compile(r"(?<![\w.])0([bBoOxX])([\dA-Fa-f]+)(?!\w)")
# A mantissa, then e-05, or \times 10^{-5} with or without braces: one group for each exponent.
_EXPONENT = re.compile(
    r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)"
    r"(?:[eE]([-+]?\d{1,4})(?![\w.])"
    r"|\s*(?:\\times|\\cdot|[*\u00d7\u00b7])\s*10\s*(?:\^|\*\*)\s*"
    r"(?:\{\s*([-+]?\d{1,4})\s*\}|([-+]?\d{1,4})(?!\w)))"
)
_DECIMAL = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_SCALED = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*(?:\\text\{\s*)?"
    r"(hundred|thousand|million|billion|trillion)\b\s*\}?",
    re.I,
)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ROOT = re.compile(r"\u221a\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
# What only a whole answer means: thousands separated by spaces, a mixed number, a period.
_SPACED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(\d+)/(\d+)")
_REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}")
_EULER = re.compile(r"\d[eE][-+][1-9]")

_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
_WORDS |= {"ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_TEXT = r"\\(?:text|textrm|textbf|mathrm|mbox)\s*"
_BASE = rf"\(?\s*(?:base[\s~-]*)?(\d\d?|{'|'.join(_WORDS)})\s*\)?"
_DIGITS = r"(?=[A-F]*\d)[\dA-F]+"  # at least one digit, so that a word such as BAD is not a number
# Digits, bare or within (), {} or \text{}, then the base as a subscript or as "base 2". Exactly one
# group for the digits and one for the base match.
_WITH_BASE = re.compile(
    rf"(?<![\w.\\^}}])(?:\(({_DIGITS})\)|\{{({_DIGITS})\}}|{_TEXT}\{{({_DIGITS})\}}|({_DIGITS}))"
    rf"(?:\s*_\s*(?:(\d\d?)(?!\d)|\{{\s*{_BASE}\s*\}}|\{{\s*{_TEXT}\{{\s*{_BASE}\s*\}}\s*\}}"
    rf"|{_TEXT}\{{\s*{_BASE}\s*\}})"
    rf"|\s+(?:{_TEXT}\{{\s*)?\(?(?:in\s+)?base[\s~-]*(\d\d?|{'|'.join(_WORDS)})\b\)?)"
)
# A word after a number, in \\text or after a space, with its power.
_UNIT = re.compile(
    r"[\d)}.]\s*(?:\\[,;: ]|~|\\(?:text|textrm|mathrm|mbox|rm)\s*\{?|\s)[\s~\\]*"
    r"([A-Za-z]+)\.?\s*\}?\s*(?:\^\s*\{?(\d)\}?)?\s*$"
)
_UNITS = {
    word: names.split()[0]
    for names in (
        *("mm millimeter millimetre", "cm centimeter centimetre", "m meter metre"),
        *("km kilometer kilometre", "in inch inches", "ft foot feet", "yd yard", "mi mile"),
        *("s sec second", "min minute", "h hr hour", "day", "week", "month", "year"),
        *("mg milligram", "g gram", "kg kilogram", "lb pound", "oz ounce", "cent", "dollar"),
        *("ml milliliter millilitre", "l liter litre"),
    )
    for name in names.split()
    for word in (name, f"{name}s")
}
_MARKED = re.compile(r"[\dA-F]+_\{\d+\}")


def is_number(value: Any) -> bool:
    """Returns whether a row's value is a number (Python's, numpy's or Parquet's) that has a
    decimal form."""
    return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool | Fraction)


def decimal_text(value: Any) -> str:
    """Returns a number in decimals, without an exponent and without zeros at the end. Raises
    ValueError for nan and infinity."""
    number = Decimal(str(value))  # str() of a numpy.float32 has the digits that it was written with
    if not number.is_finite():
        raise ValueError(f"is {value}")
    if not number:
        return "0"
    if abs(number.adjusted()) > MAX_EXPONENT:
        return str(value)
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimal_or_text(text: str) -> str:
    """Returns a text that is nothing but a number in canonical decimals, other text unchanged."""
    plain = plain_numbers(text)
    return decimal_text(plain) if _DECIMAL.fullmatch(plain) else text


def plain_numbers(text: str) -> str:
    r"""Returns the text with its numbers in one form.

    1e-05, 1.0E-5, 1 \times 10^{-5}, np.float64(1e-05)   ->  0.00001
    full-width and other scripts' digits, 1_000, 1\,000  ->  ASCII digits without separators
    10101_2, 10101_{\text{two}}, (10101)_2, 0b10101      ->  10101_{2}
    7_8, 18_{10}                                         ->  7, 18 (the same number in base 10)
    """
    text = _whole_number(ascii_digits(text).replace(r"\varnothing", r"\emptyset").strip())
    text = _SCALED.sub(lambda match: f"{match[1]}e{_SCALES[match[2].lower()]}", text)
    text = _PRINTED.sub(r"\1", text)
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _PREFIXED.sub(_from_prefix, text)
    text = _WITH_BASE.sub(_from_subscript, text)
    return _EXPONENT.sub(_from_exponent, text).strip()


def with_base(text: str) -> list[str]:
    """Returns the numbers in a text from `plain_numbers` that have another base than ten."""
    return _MARKED.findall(text)


def unit(text: str) -> tuple[str, str] | None:
    """Returns the unit and the power of a text that ends with a usual one: 5 square inches has
    none, and then math-verify leaves out what is after the number."""
    found = _UNIT.search(text)
    name = found and _UNITS.get(found[1].lower())
    return (name, found[2] or "1") if found and name else None


def may_be_euler(text: str) -> bool:
    """Returns whether the text may mean Euler's number where `plain_numbers` has read an exponent:
    2e-2 is 0.02 to a program and 2(e - 1) to a mathematician."""
    return _EULER.search(text) is not None


def ascii_digits(text: str) -> str:
    """Returns the text with full-width characters, digits of all scripts, minus signs, superscript
    and subscript digits and fractions such as one half in ASCII and LaTeX."""
    if text.isascii():
        return text
    text = _SUBSCRIPTS.sub(lambda run: f"_{{{_compatible(run[0])}}}", text)
    text = re.sub("^\\s*[\u2012\u2013]\\s*(?=[\\d.\\\\])", "-", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text)
    text = text.replace("\u221e", r"\infty ")
    text = _SUPERSCRIPTS.sub(lambda run: f"^{{{_compatible(run[0])}}}", text)
    return "".join(map(_ascii, text))


def _whole_number(text: str) -> str:
    r"""Writes a text that is nothing but 1 000 000, 2 1/2 or 0.1\overline{6} in a form that
    math-verify reads as this number."""
    if _SPACED.fullmatch(text):
        return text.replace(" ", "")
    if (mixed := _MIXED.fullmatch(text)) and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return rf"{mixed[1]}\frac{{{value.numerator}}}{{{value.denominator}}}"
    if repeating := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = repeating.groups()
        nines = (10 ** len(period) - 1) * 10 ** len(fixed)
        value = Fraction(int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}" or "0"), nines)
        return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"
    return text


def _ascii(char: str) -> str:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if "\uff01" <= char <= "\uff5e":  # full-width forms
        return _compatible(char)
    if unicodedata.category(char) == "Sc" and char != "$":  # math-verify drops $ alone
        return ""
    if unicodedata.decomposition(char).startswith("<fraction>"):
        above, _, below = _compatible(char).partition("\u2044")
        return rf"\frac{{{above}}}{{{below}}}"
    return "-" if char == "\u2212" else char


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")


def _from_prefix(number: re.Match[str]) -> str:
    base = {"b": 2, "o": 8, "x": 16}[number[1].lower()]
    return _marked(number[2].upper(), base)


def _from_subscript(number: re.Match[str]) -> str:
    digits, base = (group for group in number.groups() if group is not None)
    radix = _WORDS.get(base) or int(base)
    is_base = 2 <= radix <= 36 and (digits.isdecimal() or radix > 10)
    return _marked(digits, radix) if is_base else number[0]


def _marked(digits: str, base: int) -> str:
    """Returns digits with their base, or the digits alone if the number is the same in base
    ten."""
    digits = digits.lstrip("0") or "0"
    is_same_in_ten = digits.isdecimal() and (base == 10 or len(digits) == 1)
    return digits if is_same_in_ten else f"{digits}_{{{base}}}"


def _from_exponent(number: re.Match[str]) -> str:
    mantissa, exponent = (group for group in number.groups() if group is not None)
    # 2^3 \cdot 10^4 and 2/5 \times 10^3: what looks like a mantissa belongs to what is before it.
    is_part = number.string[: number.start()].rstrip().endswith(("^", "/", "**"))
    is_huge = abs(int(exponent)) > MAX_EXPONENT
    return number[0] if is_part or is_huge else decimal_text(f"{mantissa}e{exponent}")
