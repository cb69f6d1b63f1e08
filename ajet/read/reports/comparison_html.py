"""Writes a comparison as one HTML file that loads nothing: tables, pass@k curves, examples. Every
text of a run is escaped, and the page has no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from ajet.read.comparison import Pair
from ajet.read.reports.comparison_report import (
    HEADER,
    ComparedPart,
    ComparisonReport,
    Example,
    cells,
    examples,
    number_shown,
)

WRITTEN = 200
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 460, 240, 44, 12, 20, 30
STYLE = """
:root { color-scheme: light dark; --a: #2563eb; --b: #c2410c; --line: #8886; --up: #15803d;
  --down: #b91c1c }
@media (prefers-color-scheme: dark) { :root { --a: #7aa2ff; --b: #fb923c; --up: #4ade80;
  --down: #f87171 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem; text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.up { color: var(--up) } .down { color: var(--down) } .a { color: var(--a) } .b { color: var(--b) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line);
  border-radius: 4px; padding: .5rem; margin: .25rem 0; max-height: 24rem; overflow-y: auto }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }
summary { cursor: pointer; overflow-wrap: anywhere }
svg text { fill: currentColor; font-size: 12px }
"""


def as_html(report: ComparisonReport) -> str:
    title = f"{escape(report.a)} and {escape(report.b)}"
    sections = "\n".join(line for part in report.sections for line in _section(part))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Two models on the same tasks</h1>
<p><b class="a">A</b> {escape(report.a)}<br><b class="b">B</b> {escape(report.b)}</p>
<p>Intervals are of 95 %, over tasks. B - A is paired: task by task.</p>
{sections}
</body>
</html>
"""


def _section(part: ComparedPart) -> Iterator[str]:
    yield f"<h2>{escape(part.name)}</h2>"
    yield "<table>"
    yield f"<tr>{''.join(f'<th>{name}</th>' for name in HEADER)}</tr>"
    for name, pair in part.rows():
        yield _row(name, pair)
    yield "</table>"
    yield from (f"<p>{escape(note)}</p>" for note in part.notes)
    if len(part.figures.pass_at_k) > 1:
        yield _curves(part.figures.pass_at_k)
    yield f"<p>{part.moved}.</p>"
    for title, tasks in (("Rose", part.figures.rose), ("Fell", part.figures.fell)):
        if tasks:
            yield f"<h3>{title}: {number_shown(len(tasks), WRITTEN)}</h3>"
            yield from map(_example, examples(part, tasks[:WRITTEN]))


def _row(name: str, pair: Pair) -> str:
    a, b, difference, num = cells(pair)
    css_class = "up" if pair.difference.low > 0 else "down" if pair.difference.high < 0 else ""
    return (
        f"<tr><td>{escape(name)}</td><td>{a}</td><td>{b}</td>"
        f'<td class="{css_class}">{difference}</td><td>{num}</td></tr>'
    )


def _example(example: Example) -> str:
    sides = "".join(
        f'<div><b class="{side.lower()}">{side}</b> {share}'
        f"<pre>{escape('(none)' if answer is None else answer)}</pre></div>"
        for side, share, answer in zip("AB", example.shares, example.answers, strict=True)
    )
    return (
        f"<details><summary>{escape(example.line)}</summary><pre>{escape(example.query)}</pre>"
        f'<div class="sides">{sides}</div></details>'
    )


def _curves(pairs: dict[int, Pair]) -> str:
    """Returns the pass@k curves of both over log k, with their intervals as bands."""
    ks = list(pairs)
    sides = {"a": [pair.a for pair in pairs.values()], "b": [pair.b for pair in pairs.values()]}
    drawn: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        drawn.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="var(--line)"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share:g}</text>')
    for k in ks:
        x = _x(k, ks)
        drawn.append(f'<text x="{x}" y="{HEIGHT - 10}" text-anchor="middle">{k}</text>')
    for name, estimates in sides.items():
        xs = [_x(k, ks) for k in ks]
        low = list(zip(xs, (_y(estimate.low) for estimate in estimates), strict=True))
        high = list(zip(xs, (_y(estimate.high) for estimate in estimates), strict=True))
        values = list(zip(xs, (_y(estimate.value) for estimate in estimates), strict=True))
        colour = f"var(--{name})"
        band = _points([*high, *reversed(low)])
        drawn.append(f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>')
        line = _points(values)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = values[-1]
        drawn.append(f'<text x="{x + 5}" y="{y + 4}">{name.upper()}</text>')
    body = "".join(drawn)
    return (
        f'<h3>pass@k over k</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="pass@k of A and B; the table has the numbers">{body}</svg>'
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _x(k: int, ks: Sequence[int]) -> float:
    share = math.log(k / ks[0]) / math.log(ks[-1] / ks[0])
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(share: float) -> float:
    return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)
