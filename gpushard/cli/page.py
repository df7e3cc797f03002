"""One HTML file that stands alone: no network, light and dark, for every reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gpushard.cli.output import printable

_STYLE = """
:root { --ink: #1b1b1b; --paper: #ffffff; --soft: #f2f3f5; --line: #8a8a8a;
  --bad: #a3003f; --warn: #7a4b00; --good: #00614b; --link: #004a9f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --paper: #16181c; --soft: #23262c; --line: #8f8f8f;
    --bad: #ff9db8; --warn: #ffc66b; --good: #6fe0bd; --link: #8ec1ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 70rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0;
  border-bottom: 1px solid var(--soft); overflow-wrap: anywhere; }
th { font-weight: 600; }
.wide { overflow-x: auto; }
.wide th, .wide td { overflow-wrap: break-word; }
.badge { font-weight: 700; }
.damage { color: var(--bad); } .unverified { color: var(--warn); }
.remark { color: var(--ink); } .whole { color: var(--good); }
svg { display: block; width: 100%; height: auto; }
svg:focus { outline: 3px solid var(--link); outline-offset: 2px; }
#details { position: sticky; bottom: 0; padding: 0.6rem 0.8rem; margin: 1rem 0;
  background: var(--soft); border: 1px solid var(--line); border-radius: 0.3rem; }
input { font: inherit; padding: 0.3rem 0.5rem; width: 100%; max-width: 30rem;
  color: inherit; background: var(--soft); border: 1px solid var(--line); }
"""


def page(title: str, body: str, *, script: str, style: str = "") -> str:
    """Whole document, from the text of the title and the escaped HTML of the content.

    `style` is additional CSS. A browser that runs no JavaScript still shows all of it.
    """
    # The page never fetches anything, whatever names in a store say.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)}</title><style>{_STYLE}{style}</style></head>"
        # A block gives the script its own scope.
        f"<body><main>{body}</main><script>{{{script}}}</script></body></html>\n"
    )


def escaped(text: str) -> str:
    """HTML of any text; XML, so that of an SVG too, has no control characters."""
    return escape(printable(text))


def facts_table(rows: Iterable[tuple[str, str]]) -> str:
    """HTML of a table of labels and texts."""
    lines = (
        f'<tr><th scope="row">{escaped(label)}</th><td>{escaped(text)}</td></tr>'
        for label, text in rows
    )
    return f"<table>{''.join(lines)}</table>"


def columns_table(
    names: Sequence[str], rows: Iterable[Sequence[str]], *, name: str
) -> str:
    """HTML of a table with a head, its cells escaped already."""
    head = "".join(f'<th scope="col">{escaped(text)}</th>' for text in names)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
