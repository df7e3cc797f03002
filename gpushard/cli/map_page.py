"""A shard's map as a page: pictures that describe what is under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gpushard.cli.map_marks import Panel
from gpushard.cli.map_svg import STYLE, legend_svg, panel_svg
from gpushard.cli.page import facts_table, page

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


def map_html(
    title: str, rows: Sequence[tuple[str, str]], panels: Sequence[Panel]
) -> str:
    """The page's HTML.

    Parameters
    ----------
    title
        What is mapped.
    rows
        Its figures.
    panels
        Its pictures.
    """
    pictures = "".join(
        f"<h2>{escape(panel.title)}</h2>"
        + panel_svg(panel, name=f"picture-{i}").replace(
            "<svg ", '<svg class="picture" ', 1
        )
        for i, panel in enumerate(panels)
    )
    body = (
        f"<h1>{escape(title)}</h1>{facts_table(rows)}{pictures}"
        '<p id="details" role="status">Point at a piece, or focus a picture and use'
        " the arrow keys, to see what it is.</p>"
        f"<h2>Legend</h2>{legend_svg()}"
    )
    return page(title, body, style=STYLE, script=_SCRIPT)
