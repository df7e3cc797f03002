"""What the site's builder does beside its configuration: mkdocs calls these by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
# Pages that stand at the root of the repository.
AT_ROOT = {"architecture.md": "ARCHITECTURE.md", "changelog.md": "CHANGELOG.md"}
# Pages name each other as files, which is what readers of the repository need.
_PAGE = re.compile(r"`(?:docs/)([\w/-]+\.md)`")


def title(page: Path) -> str:
    """First heading of a page."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def decisions(directory: Path) -> list[dict[str, str]]:
    """Entries of the decisions below `directory`, the latest first."""
    pages = sorted(directory.glob("*.md"), reverse=True)
    return [{title(page): f"{directory.name}/{page.name}"} for page in pages]


def linked(markdown: str, page: str) -> str:
    """The same text, names of pages being links from `page`."""
    up = "../" * page.count("/")

    def link(found: re.Match[str]) -> str:
        name = found[1]
        return f"[{title(DOCS / name)}]({up}{name})" if (DOCS / name).exists() else name

    return _PAGE.sub(link, markdown)


def named(entry: Any) -> set[str]:
    """Pages that an entry of the navigation names, those of its sections too."""
    if isinstance(entry, str):
        return {entry}
    inside = entry.values() if isinstance(entry, dict) else entry
    return set().union(*map(named, inside))


def unplaced(nav: Any) -> list[dict[str, str]]:
    """Entries of the pages that `nav` does not name: nobody would find them."""
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    return [{title(DOCS / name): name} for name in sorted(pages - named(nav))]


def on_config(config: Any) -> Any:
    """Put the decisions where the navigation names them, and at its end what is new."""

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(e) for e in entry]
        if isinstance(entry, dict):
            return {name: filled(value) for name, value in entry.items()}
        return decisions(DOCS / entry) if entry.endswith("/") else entry

    config.nav = filled(config.nav)
    more = unplaced(config.nav)
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand at the root of the repository."""
    from mkdocs.structure.files import File

    for name, source in AT_ROOT.items():
        place = str(DOCS.parent / source)
        files.append(File.generated(config, name, abs_src_path=place))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links of the names of pages."""
    return linked(markdown, page.file.src_uri)
