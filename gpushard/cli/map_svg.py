"""Marks -> SVG: a file of its own, or a page that says what is under the pointer."""

from __future__ import annotations

from collections.abc import Sequence

from gpushard.cli.map_marks import KINDS, WIDTH, Mark, Panel, hex_colour
from gpushard.cli.page import escaped, facts_table, page

_MARGIN, _TITLE = 16.0, 30.0

_STYLE = """
svg { --ink: #1b1b1b; --paper: #ffffff; --line: #6b6b6b; --hole: #e8e8e8;
  --edge: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #ececec; --paper: #16181c; --line: #a0a0a0; --hole: #34373d;
    --edge: #7d838c; }
}
svg text { fill: var(--ink); font: 14px system-ui, sans-serif; }
svg .paper { fill: var(--paper); }
svg .mark { stroke: var(--edge); stroke-width: 0.6; }
svg .index { fill: #d55e00; }
svg .unused { fill: url(#unused); }
svg .missing { fill: var(--hole); stroke: var(--line); }
svg .damaged { fill: #cc79a7; stroke: #9b0052; stroke-width: 2; }
svg .beyond { fill: none; stroke: var(--line); stroke-dasharray: 3; }
svg .now { stroke: #009e73; stroke-width: 3; }
"""
_DEFS = (
    '<defs><pattern id="unused" width="6" height="6" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect width="6" height="6"'
    ' style="fill:var(--hole)"/><rect width="2" height="6"'
    ' style="fill:var(--line)"/></pattern></defs>'
)
# Titles of marks are tooltips already. This script shows them at once, and also without
# a pointer: the arrow keys walk over the marks of a picture in focus.
_SCRIPT = """
const details = document.querySelector('#details');
let now = null;
function show(mark) {
  if (!mark || mark === now) return;
  if (now) now.classList.remove('now');
  now = mark;
  mark.classList.add('now');
  details.textContent = mark.querySelector('title').textContent;
}
for (const picture of document.querySelectorAll('svg.picture')) {
  const marks = [...picture.querySelectorAll('.mark')];
  picture.addEventListener('pointermove', event => {
    show(event.target.closest('.mark'));
  });
  picture.addEventListener('focus', () => {
    if (!marks.includes(now)) show(marks[0]);
  });
  picture.addEventListener('keydown', event => {
    const steps = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity};
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = marks.indexOf(now) + step;
    show(marks[Math.max(0, Math.min(marks.length - 1, at))]);
  });
}
"""


def _panel_svg(panel: Panel, *, name: str) -> str:
    """SVG element of one picture, for use in a page."""
    height = panel.height + 2
    marks = "".join(map(_mark_svg, panel.marks))
    return (
        f'<svg class="picture" id="{name}" role="img"'
        f' viewBox="-1 -1 {WIDTH + 2:.0f} {height + 2:.0f}"'
        f' tabindex="0" aria-label="{escaped(panel.title)}">{_DEFS}{marks}</svg>'
    )


def picture_svg(title: str, lines: Sequence[str], panels: Sequence[Panel]) -> str:
    """SVG file of all pictures of a shard, below a title and lines of text."""
    x = _MARGIN
    y = _MARGIN + 18
    body = [f'<text x="{x}" y="{y}" font-weight="bold">{escaped(title)}</text>']
    for line in lines:
        y += 20
        body.append(f'<text x="{x}" y="{y}">{escaped(line)}</text>')
    for panel in panels:
        y += _TITLE
        body.append(f'<text x="{x}" y="{y}">{escaped(panel.title)}</text>')
        y += 8
        marks = "".join(map(_mark_svg, panel.marks))
        body.append(f'<g transform="translate({x} {y:.0f})">{marks}</g>')
        y += panel.height
    y += _TITLE
    legend, n_rows = _legend(x, y)
    height = y + 22 * n_rows + _MARGIN
    width = WIDTH + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f}'
        f' {height:.0f}" width="{width:.0f}" height="{height:.0f}">'
        f'<style>{_STYLE}</style>{_DEFS}<rect class="paper" width="100%"'
        f' height="100%"/>{"".join(body)}{legend}</svg>\n'
    )


def _legend(x: float, y: float) -> tuple[str, int]:
    """A small mark of each kind in a column, with its meaning; and how many."""
    marks = [
        Mark(x, y + 22 * i, 28, 14, kind, 0.4, text)
        for i, (kind, text) in enumerate(KINDS.items())
    ]
    text = "".join(
        f'{_mark_svg(mark)}<text x="{mark.x + 40}" y="{mark.y + 12:.1f}">'
        f"{escaped(mark.label)}</text>"
        for mark in marks
    )
    return text, len(marks)


def _legend_svg() -> str:
    """SVG element that explains the marks, for use in a page."""
    text, n_rows = _legend(1, 1)
    return f'<svg viewBox="0 0 {WIDTH:.0f} {22 * n_rows}">{_DEFS}{text}</svg>'


def _mark_svg(mark: Mark) -> str:
    fill = ""
    if mark.kind == "chunk":
        fill = f' fill="{hex_colour(mark.shade)}"'
    return (
        f'<rect class="mark {mark.kind}" x="{mark.x:.2f}" y="{mark.y:.2f}"'
        f' width="{mark.width:.2f}" height="{mark.height:.2f}"{fill}>'
        f"<title>{escaped(mark.label)}</title></rect>"
    )


def map_html(
    title: str, rows: Sequence[tuple[str, str]], panels: Sequence[Panel]
) -> str:
    """The HTML of a page about what `title` names: its figures and its pictures."""
    pictures = "".join(
        f"<h2>{escaped(panel.title)}</h2>{_panel_svg(panel, name=f'picture-{i}')}"
        for i, panel in enumerate(panels)
    )
    body = (
        f"<h1>{escaped(title)}</h1>{facts_table(rows)}{pictures}"
        '<p id="details" role="status">Point at a piece, or focus a picture and use'
        " the arrow keys, to see what it is.</p>"
        f"<h2>Legend</h2>{_legend_svg()}"
    )
    return page(title, body, style=_STYLE, script=_SCRIPT)
