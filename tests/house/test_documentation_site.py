"""The documentation's site is built without a warning, and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpushard
from cuda_host.build import only_one
from places import ROOT

# What a browser fetches by itself, as against what one may click on.
FETCHED = re.compile(
    r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=[\"']?([^\"' >]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if find_spec("material") is None:
        pytest.skip("the extra `docs` is not installed in this lane")
    directory = shared_by_workers(tmp_path_factory) / "site"
    with only_one(directory):
        if not directory.exists():
            build(directory)
    return directory


def shared_by_workers(tmp_path_factory) -> Path:
    """Directory of this run of pytest, with all its processes."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def build(directory: Path) -> None:
    """Build the site, or fail with what is wrong with it and leave nothing."""
    part = directory.with_suffix(".part")
    # Not --quiet: that loses the warnings before --strict counts them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    run = subprocess.run(
        [*command, "--site-dir", part],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    part.rename(directory)


def test_every_page_is_built_and_fetches_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        fetched = FETCHED.findall(page.read_text(encoding="utf-8"))
        assert fetched
        assert not [at for at in fetched if re.match(r"(?:https?:)?//", at)], page


def test_every_public_name_is_in_the_api_reference(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    missing = []
    for name in gpushard.__all__:
        home = gpushard._HOMES[name]
        if not re.search(rf'id="gpushard\.(?:{re.escape(home)}\.)?{name}"', text):
            missing.append(name)
    assert not missing, "docs/api has a line `::: gpushard.NAME` for each"


def test_every_page_is_in_the_navigation(site):
    menu = (site / "index.html").read_text().partition('<div class="md-content"')[0]
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{name}"' in menu, f"{name} cannot be found"


def test_names_of_pages_are_links(site):
    page = (site / "architecture.html").read_text()
    assert '<a href="selection.html">' in page
    assert "docs/selection.md" not in page


def test_all_text_of_the_pages_at_the_root_is_on_the_site(site):
    for name in ("ARCHITECTURE", "CHANGELOG"):
        last = (ROOT / f"{name}.md").read_text().split()[-2]
        assert last.strip("`.") in (site / f"{name.lower()}.html").read_text()
