"""Pages in a real browser without a network: they draw, complain of nothing, and can be read at every width."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
import zoo

import topic_probe as tp
from topic_probe.paper import recipe_named
from topic_probe.paper.recipe import Measured, Run, judged
from topic_probe.show.attention_page import show_attention
from topic_probe.show.page import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)"
)

TELL = """
const every = (selector) => [...document.querySelectorAll(selector)];
const tell = (seen) => {
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.title = document.title;
  seen.requests = performance.getEntriesByType("resource").map((one) => one.name)
    .filter((name) => !/^(data|blob):/.test(name));
  parent.postMessage(JSON.stringify(seen), "*");
};
"""


def browse(page, folder, *, width, probe):
    """What a script has seen in a page that a browser shows; the browser has nothing to say.

    The page stands in a frame as in a notebook, because the windows of browsers have a least width.
    """
    scripted = page.html.replace("; script-src 'unsafe-inline'", "").replace(
        "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'", 1
    )
    seen = f"addEventListener('load', () => setTimeout(() => {{ {probe} }}, 400));"
    with_probe = scripted.replace("</body>", f"<script>{TELL}{seen}</script></body>")
    # In the same process, because the clock of the browser below waits for no other.
    frame = Page(with_probe, page.title)._repr_html_().replace('sandbox="allow-scripts"', "")
    # Without a charset the browser guesses one from what it has read first, and now and then takes the wrong one.
    listen = """<!DOCTYPE html><meta charset="utf-8"><pre id="told"></pre><script>
        addEventListener("message", (event) => { document.getElementById("told").textContent = event.data; });
    </script>"""
    path = Page(f"{listen}<div style='width: {width}px'>{frame}</div>", "frame").save(folder / "page.html")
    answer = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
            "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=3000", f"--window-size={width},1400", "--dump-dom", path.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    said = [line for line in answer.stderr.decode().splitlines() if "CONSOLE" in line or "Refused" in line]
    assert said == []
    told = re.search(r'<pre id="told">(.+?)</pre>', answer.stdout.decode(), re.S)
    assert told is not None, "the page stopped half-way"
    return json.loads(unescape(told[1]))


def attention_page(name="bert", **options):
    topics = tp.Topics.from_token_ids({"one": [7, 9], "two": [61, 20]}, vocabulary_size=zoo.VOCABULARY)
    return show_attention(tp.open_model(zoo.make(name)), topics, [7, 61, 9, 20, 30, 31], **options)


CLICKS = """
const canvas = document.querySelector("canvas");
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true, bubbles: true }));
const seen = { drawn: document.documentElement.dataset.drawn, cells: canvas.dataset.cells };
press(canvas, "ArrowDown");
seen.first = document.querySelector(".card output").textContent;
document.querySelector("[data-name=L1H1]").click();
seen.clicked = every(".card .label").map((label) => label.textContent);
seen.ratio = document.querySelector(".card .of-ratio").textContent;
tell(seen);
"""


def test_a_page_of_attention_is_drawn_and_read_by_key_and_click_without_a_request(tmp_path):
    seen = browse(attention_page(heads=["L0H2"], circuitsvis=False), tmp_path, width=402, probe=CLICKS)
    assert (seen["drawn"], seen["cells"]) == ("1", "16")  # four words have topics
    assert (seen["overflow"], seen["requests"], seen["title"]) == (0, [], "Attention by topic")
    assert seen["first"].startswith("7 (0) → 7 (0) · same word")
    assert seen["clicked"] == ["L1H1", "L0H2"]
    topics = tp.Topics.from_token_ids({"one": [7, 9], "two": [61, 20]}, vocabulary_size=zoo.VOCABULARY)
    given = {"n_permutations": 0}
    heads = tp.measure_attention(zoo.make("bert"), topics, [[7, 61, 9, 20, 30, 31]], **given).heads
    assert float(seen["ratio"]) == pytest.approx(heads.ratio[5], rel=1e-3)


def results_page(folder):
    """A recipe whose words and numbers are long."""
    rows = [
        {"training": "a-long-name " * 9, "control": control, "seed": seed, "l2": 1.0, "loss": "squared",
         "own topic first": share, "height of the blocks": -1.23e-05}
        for control, share in (("", 1.0), ("no topics", 0.1))
        for seed in range(3)
    ]  # fmt: skip
    tables = {"table": [{"a_column_with_a_long_name_" * 3: "words " * 40}]}
    missing = {"bert": "no files " * 30}
    found = judged(recipe_named("figure2"), Run(quick=True), Measured(rows, tables=tables, missing=missing))
    found.save(folder / "figure2")
    return tp.report_page(folder)


# What every reader needs: nothing sticks out, every text can be read, every control be reached and named.
EYES = """
for (const one of every("details")) one.open = true;
const visible = (one) => one.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
const channels = (colour) => colour.match(/[0-9.]+/g).map(Number);
const luminance = (colour) => {
  const [r, g, b] = channels(colour).map((one) =>
    one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (one) => {
  const colour = getComputedStyle(one).backgroundColor;
  return channels(colour)[3] === 0 && one.parentElement ? behind(one.parentElement) : colour;
};
const contrast = (one) => {
  const two = [getComputedStyle(one).color, behind(one)].map(luminance).sort((a, b) => b - a);
  return (two[0] + 0.05) / (two[1] + 0.05);
};
const texts = every("body *").filter((one) => visible(one) && !["SCRIPT", "STYLE", "OPTION"].includes(one.tagName)
  && !one.closest(".white") && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
tell({
  texts: texts.length,
  pale: texts.filter((one) => contrast(one) < 4.5).map((one) => one.textContent),
  unreachable: every("a, button, input, summary, canvas, select").filter((one) => visible(one) && !one.disabled
    && one.tabIndex < 0 && !one.closest("[role=grid]:has([tabindex='0'])") && !one.closest(".white"))
    .map((one) => one.outerHTML.slice(0, 80)),
  unnamed: every("button, input, canvas, [role=region]").filter((one) => visible(one)
    && !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
    .map((one) => one.outerHTML.slice(0, 80)),
});
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "width"), [("encoder", 402), ("cross", 1402), ("claims", 402), ("claims", 1402)]
)
def test_pages_can_be_read_and_reached_at_every_width(tmp_path, width, kind):
    pages = {
        "encoder": attention_page,
        "cross": lambda: attention_page("bart", stack="cross"),
        "claims": lambda: results_page(tmp_path / "results"),
    }
    seen = browse(pages[kind](), tmp_path, width=width, probe=EYES)
    assert (seen["overflow"], seen["requests"]) == (0, [])
    assert seen["texts"] > 20
    assert (seen["pale"], seen["unreachable"], seen["unnamed"]) == ([], [], [])
