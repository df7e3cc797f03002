"""The pages that `map` and `verify` write, in a real browser without a window."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest
import zarr

from cli_runs import run, write_shards

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here: `./dev browser` installs one on Debian"
)

# What a page of either kind is asked once it has loaded.
COMMON = """
const out = {};
const luminance = text => {
  const part = text.match(/[\\d.]+/g).slice(0, 3).map(v => {
    v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
};
const contrast = (ink, paper) => {
  const [a, b] = [luminance(ink), luminance(paper)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const paper = getComputedStyle(document.body).backgroundColor;
out.paper = luminance(paper);
out.contrast = Math.min(...[...document.querySelectorAll('h1, td, th, p, .badge')].map(
  e => contrast(getComputedStyle(e).color, paper)));
out.fetched = performance.getEntriesByType('resource').length;
out.overflow = document.documentElement.scrollWidth - innerWidth;
"""


def asked(page, script, *, dark=False, width=1000):
    """What a script in the page finds, once the browser has laid it out."""
    probe = page.with_name("probe.html")
    tail = (
        f"<script>{{{COMMON}{script}\n"
        "document.body.insertAdjacentHTML('beforeend', '<pre id=\"out\"></pre>');"
        "document.querySelector('#out').textContent = JSON.stringify(out);}</script>"
    )
    probe.write_text(page.read_text().replace("</body>", f"{tail}</body>"))
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--enable-logging=stderr", f"--window-size={width},900", *scheme,
            probe.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="out">({.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    return json.loads(unescape(found[1]))


def holds(out) -> None:
    """What every page promises."""
    assert out["fetched"] == 0
    assert out["contrast"] >= 4.5
    assert out["overflow"] <= 0


@pytest.fixture(scope="module")
def map_page(tmp_path_factory):
    place = tmp_path_factory.mktemp("map")
    z = zarr.create_array(
        place / "a<b>", shape=(12, 8), shards=(12, 8), chunks=(2, 2), dtype="i4"
    )
    z[:8] = np.arange(64).reshape(8, 8) + 1
    run("map", place / "a<b>", "--out", place / "map.html")
    return place / "map.html"


@pytest.mark.parametrize("dark", [False, True])
def test_the_map_tells_what_is_under_the_pointer_and_the_arrow_keys(map_page, dark):
    script = """
    const [first, grid] = document.querySelectorAll('svg.picture');
    const details = document.querySelector('#details');
    const marks = [...grid.querySelectorAll('.mark')];
    out.nMarks = marks.length;
    out.missing = grid.querySelectorAll('.missing').length;
    out.title = document.querySelector('h1').textContent;
    const box = marks[5].getBoundingClientRect();
    scrollTo(0, grid.getBoundingClientRect().top);
    const at = marks[5].getBoundingClientRect();
    const hit = document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2);
    out.hit = hit === marks[5];
    hit.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));
    out.pointed = details.textContent;
    // A page without a window is not always given the focus.
    out.canBeFocused = first.tabIndex === 0;
    first.dispatchEvent(new FocusEvent('focus'));
    out.focused = details.textContent;
    first.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));
    out.last = details.textContent;
    out.width = box.width;
    out.fills = new Set(marks.map(m => getComputedStyle(m).fill)).size;
    """
    out = asked(map_page, script, dark=dark)
    holds(out)
    assert (out["paper"] < 0.1) == dark
    assert (out["nMarks"], out["missing"]) == (24, 8)
    assert out["title"].endswith("a<b>")
    assert out["hit"]
    assert out["pointed"].startswith("inner chunk (1, 1), bytes ")
    assert out["canBeFocused"]
    assert out["focused"].startswith("inner chunk (0, 0), bytes 0 to ")
    assert out["last"].startswith("index, bytes ")
    assert out["width"] > 15
    assert out["fills"] > 8


@pytest.mark.parametrize("dark", [False, True])
def test_the_report_of_a_verification_can_be_searched(tmp_path, dark):
    group = zarr.create_group(tmp_path / "g")
    group.create_group("<i>below")
    for name in ("a", "<i>below/b"):
        path = write_shards(tmp_path / "g" / name)
        data = bytearray((path / "c/0/1").read_bytes())
        data[-7] ^= 1
        (path / "c/0/1").write_bytes(data)
    page = tmp_path / "report.html"
    run("verify", tmp_path / "g", "--html", page, code=1)
    script = """
    const rows = [...document.querySelectorAll('#findings tbody tr')];
    const visible = () => rows.filter(row => row.getClientRects().length).length;
    out.before = visible();
    const field = document.querySelector('#filter');
    field.value = 'BELOW';
    field.dispatchEvent(new InputEvent('input'));
    out.after = visible();
    out.told = document.querySelector('#shown').textContent;
    out.status = document.querySelector('#status').textContent;
    out.text = rows.map(row => row.textContent).join();
    """
    out = asked(page, script, dark=dark, width=700)
    holds(out)
    assert (out["paper"] < 0.1) == dark
    assert (out["before"], out["after"], out["told"]) == (2, 1, "1 shown")
    assert out["status"].startswith("Damaged: 2 of 2 arrays")
    assert "<i>below/b/c/0/1" in out["text"]
