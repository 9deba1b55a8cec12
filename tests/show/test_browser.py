"""Pages in a real browser without a network: they draw, complain of nothing, and can be read at every width."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape

import pytest
import zoo

import topic_probe as tp
from topic_probe.paper import recipe_named
from topic_probe.paper.recipe import Measured, Run, judged
from topic_probe.show.attention_page import attention_page
from topic_probe.show.gallery import gallery
from topic_probe.show.page import Page
from topic_probe.show.text_attention import read_text_attention

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
  seen.ran = window.ran ?? 0;
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


IDS = [7, 61, 9, 20, 30, 31]


def read(name="bert", **options):
    topics = tp.Topics.from_token_ids({"one": [7, 9], "two": [61, 20]}, vocabulary_size=zoo.VOCABULARY)
    return read_text_attention(zoo.make(name), topics, IDS, **options)


CLICKS = """
const canvas = document.querySelector("canvas");
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true, bubbles: true }));
const seen = { drawn: document.documentElement.dataset.drawn, cells: canvas.dataset.cells };
press(canvas, "ArrowDown");
seen.first = document.querySelector(".card output").textContent;
document.querySelector("[data-name=L1H1]").click();
seen.clicked = every(".card .name").map((label) => label.textContent);
seen.ratio = document.querySelector(".card .of-ratio").textContent;
tell(seen);
"""


def test_a_page_of_attention_is_drawn_and_read_by_key_and_click_without_a_request(tmp_path):
    seen = browse(attention_page(read(heads="L0H2")), tmp_path, width=402, probe=CLICKS)
    assert (seen["drawn"], seen["cells"]) == ("1", "16")  # four words have topics
    assert (seen["overflow"], seen["requests"]) == (0, [])
    assert seen["title"] == "Attention by topic: BertForMaskedLM"
    assert seen["first"].startswith("7 (0) → 7 (0) · same word (0: one (7·9)) · ")
    assert seen["clicked"] == ["L1H1", "L0H2"]
    topics = tp.Topics.from_token_ids({"one": [7, 9], "two": [61, 20]}, vocabulary_size=zoo.VOCABULARY)
    heads = tp.measure_attention(zoo.make("bert"), topics, [IDS], n_permutations=0).heads
    assert float(seen["ratio"]) == pytest.approx(heads.ratio[5], rel=6e-3)


LABELS = """
const seen = { cells: [] };
for (const [name, only] of [["topic", true], ["position", true], ["position", false]]) {
  document.querySelector(`[value=${name}]`).click();
  if (document.querySelector("[name=only]").checked !== only) document.querySelector("[name=only]").click();
  seen.cells.push(document.querySelector("canvas").dataset.cells);
}
seen.scrolls = every(".pattern").every((one) => one.scrollWidth <= one.clientWidth);
tell(seen);
"""


def test_words_can_be_put_in_the_order_of_the_text_with_all_others(tmp_path):
    seen = browse(attention_page(read()), tmp_path, width=1402, probe=LABELS)
    assert (seen["cells"], seen["scrolls"], seen["overflow"]) == (["16", "16", "36"], True, 0)


def test_the_gallery_draws_every_head_without_a_request(tmp_path):
    seen = browse(gallery(read()), tmp_path, width=1402, probe="tell({ drawn: every('canvas').length });")
    assert seen["drawn"] == 12 + 1  # and one in full size
    assert (seen["overflow"], seen["requests"]) == (0, [])


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
        "encoder": lambda: attention_page(read()),
        "cross": lambda: attention_page(read("bart", stack="cross")),
        "claims": lambda: results_page(tmp_path / "results"),
    }
    seen = browse(pages[kind](), tmp_path, width=width, probe=EYES)
    assert (seen["overflow"], seen["requests"]) == (0, [])
    assert seen["texts"] > 20
    assert (seen["pale"], seen["unreachable"], seen["unnamed"]) == ([], [], [])


# Each would set ``ran``, or ask for something, if it became more than text.
PAYLOADS = (
    "<script>ran=1</script>", "</script><script>ran=1</script>", "<img src=x onerror=ran=1>", "<svg onload=ran=1>",
    "\"><script>ran=1</script>", "' onmouseover=ran=1 autofocus onfocus=ran=1 x='", "<!--<script>ran=1//-->",
    "</style><script>ran=1</script>", "</title><script>ran=1</script>", "\\\";ran=1;//", "`;ran=1;//", "${ran=1}",
    "<iframe srcdoc='<script>parent.ran=1</script>'>", "javascript:ran=1", "{{ 7*7 }}<script>ran=1</script>",
    "\u2028ran=1\u2029",
    "<link rel=stylesheet href=http://evil.invalid/a.css>", "<base href=http://evil.invalid/><img src=a>",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["page", "gallery", "results"])
def test_no_token_topic_or_name_runs_or_asks_for_anything(tmp_path, kind):
    """18 payloads in tokens, names of topics and of the model, and in folder names, titles and tables of results."""
    assert len(PAYLOADS) == 18
    if kind == "results":
        for number, evil in enumerate(PAYLOADS):
            topics = tp.Topics.from_token_ids({evil: [1, 2], "b": [3, 4]}, vocabulary_size=9)
            topics.save(tmp_path / "results" / f"{number} {evil.replace('/', '∕')}")
            tp.measure_embeddings(zoo.make("bert"), _evil_topics(evil)).save(
                tmp_path / "results" / f"e{number}"
            )
        page = tp.report_page(tmp_path / "results", title=PAYLOADS[1])
    else:
        found = read_text_attention(zoo.make("bert"), _evil_topics(*PAYLOADS), [*range(5, 41)][:36])
        words = tuple(PAYLOADS[at % 18] for at in range(len(found.keys)))
        tokens = replace(found.keys, words=words, split=words)
        evil = replace(found, queries=tokens, keys=tokens, model="".join(PAYLOADS), notes=PAYLOADS)
        page = {"page": attention_page, "gallery": gallery}[kind](evil)
    probe = "for (const one of every('bdi, button, a, input, canvas, details')) { one.focus(); one.click(); } tell({});"
    seen = browse(page, tmp_path, width=1402, probe=probe)
    assert (seen["ran"], seen["requests"]) == (0, [])


def _evil_topics(*names):
    topics = {name: [5 + 2 * at, 6 + 2 * at] for at, name in enumerate(names)}
    return tp.Topics.from_token_ids(topics | {"last": [60, 61]}, vocabulary_size=zoo.VOCABULARY)
