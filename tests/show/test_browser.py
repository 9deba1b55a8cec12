"""Pages in a real browser without a network: they draw, complain of nothing, and fit a narrow screen."""

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html import unescape

import pytest
import torch
import zoo
from real_text import minilm_folder, topics_by_hand

import topic_probe as tp
from topic_probe.contrast import SAME_WORD
from topic_probe.measure.text_attention import read_text_attention
from topic_probe.paper.claims import Claim, Number
from topic_probe.show.attention_page import attention_page, show_attention
from topic_probe.show.page import Page
from topic_probe.show.style import topic_colour

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)"
)

TEXT = (
    "The army and its troops won the battle. Later the band played a song on piano and guitar, and the orchestra "
    "played music for the soldiers. The government and its president praised the military; parliament had a vote. "
    "<script>document.title = 'broken'</script>"
)


def browse(page, folder, *, width, probe):
    """What a script has seen in a page that a browser shows, and what the browser had to say.

    The page stands in a frame as in a notebook, because the windows of browsers have a least width.
    """
    scripted = page.html.replace("; script-src 'unsafe-inline'", "").replace(
        "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'", 1
    )
    with_probe = scripted.replace("</body>", f"<script>{TELL}{probe}</script></body>")
    # In the same process, because the clock of the browser below waits for no other.
    frame = Page(with_probe, page.title)._repr_html_().replace('sandbox="allow-scripts"', "")
    assert "sandbox" not in frame
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
    assert told is not None, f"the page stopped half-way: {said}"
    return json.loads(unescape(told[1])), said


TELL = """
const tell = (seen) => {
  seen.width = innerWidth;
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.paper = getComputedStyle(document.body).backgroundColor;
  seen.title = document.title;
  seen.requests = performance.getEntriesByType("resource").map((one) => one.name)
    .filter((name) => !/^(data|blob):/.test(name));
  parent.postMessage(JSON.stringify(seen), "*");
};
"""

# Does in the page what a person does, and writes down what is seen.
PROBE = """
const all = (selector) => [...document.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const shown = () => all(".card").map((card) => card.querySelector(".label").textContent);
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true, bubbles: true }));
const wait = (time) => new Promise((done) => setTimeout(done, time));
const cells = () => one("canvas").dataset.cells + "/" + one("canvas").dataset.outlined;
const output = () => one(".card output").textContent;
addEventListener("load", async () => {
  await wait(400);
  const seen = {};
  const canvas = one("canvas");
  const form = one(".controls");
  seen.drawn = document.documentElement.dataset.drawn;
  seen.heads = shown();
  seen.byTopic = cells();
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  seen.colours = {};
  for (let at = 0; at < pixels.length; at += 4) {
    const colour = pixels.slice(at, at + 3).join();
    seen.colours[colour] = (seen.colours[colour] || 0) + 1;
  }
  seen.words = all(".w.topic").map((word) => {
    const style = getComputedStyle(word);
    return [word.textContent, style.backgroundColor, style.color];
  });
  press(canvas, "ArrowDown");
  seen.first = output();
  press(canvas, "ArrowRight");
  seen.second = output();
  seen.marked = all(".query, .key").map((word) => word.textContent);
  press(canvas, "Escape");
  form.only.click();
  seen.allByTopic = cells();
  form.order[1].click();
  seen.byPosition = cells();
  press(canvas, "ArrowDown");
  seen.start = output();
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 12, clientY: box.top + 12 }));
  seen.tip = one(".tip").innerText;
  form.level[1].click();
  seen.wholeWords = cells();

  // The grid: one stop of the tabulator, arrows within, a click or Enter for a head.
  seen.stops = all(".grid button").filter((button) => button.tabIndex === 0).map((button) => button.dataset.name);
  const corner = one("[data-name=L0H0]");
  corner.focus();
  press(corner, "ArrowDown");
  seen.below = document.activeElement.dataset.name;
  press(document.activeElement, "ArrowRight");
  seen.beside = document.activeElement.dataset.name;
  seen.says = one(".grid-says").textContent;
  seen.named = document.activeElement.title;
  document.activeElement.click();
  seen.clicked = shown();
  seen.pressed = all("[aria-pressed=true]").map((button) => button.dataset.name);
  const numbers = one(".card");
  seen.numbers = [".of-effect", ".of-ratio"].map((name) =>
    Number(numbers.querySelector(name).textContent.replace("−", "-")));
  seen.pattern = one(".card canvas").dataset.cells;
  seen.label = one(".card canvas").getAttribute("aria-label");
  one(".card .close").click();
  seen.closed = shown();
  seen.focused = document.activeElement.dataset.name;

  if (form.circuitsvis) {
    form.circuitsvis.click();
    await wait(900);
    seen.circuitsvis = all("#circuitsvis canvas").length;
    seen.circuitsvisText = one("#circuitsvis").innerText;
  }
  tell(seen);
});
"""


@pytest.fixture(scope="module")
def shown():
    model = tp.open_model(minilm_folder())
    topics = topics_by_hand(model.tokenizer)
    return model, topics, show_attention(model, topics, TEXT, max_heads=3)


def test_attention_by_topic_is_drawn_and_can_be_read_by_keyboard_and_pointer(shown, tmp_path):
    model, topics, page = shown
    seen, _ = browse(page, tmp_path, width=362, probe=PROBE)
    (document,) = tp.encode_texts([TEXT], model.tokenizer)
    labels = topics.labels(document.ids)
    n, n_topic = len(document), int((labels >= 0).sum())
    same = int((labels[labels >= 0][:, None] == labels[labels >= 0]).sum())
    assert seen["drawn"] == "3"
    assert seen["byTopic"] == f"{n_topic**2}/{same}"
    assert seen["allByTopic"] == seen["byPosition"] == f"{n**2}/{same}"
    n_words = len(set(document.word_index[document.word_index >= 0].tolist())) + int(
        (document.word_index < 0).sum()
    )
    assert n_words < n
    assert seen["wholeWords"].startswith(f"{n_words**2}/")
    # The first word of the first topic asks itself, then its neighbour; the values are those of the model.
    heads = (
        tp.measure_attention(model, topics, [document], n_resamples=0, n_permutations=0).heads.top(1).index
    )
    words = model.tokenizer.convert_ids_to_tokens(document.ids.tolist())
    order = sorted((at for at in range(n) if labels[at] == 0), key=lambda at: (words[at], at))
    for text, key in ((seen["first"], order[0]), (seen["second"], order[1])):
        value = pattern(model, document, heads)[order[0], key]
        pair, relation, relative, attention = re.match(r"(.+→.+?\)) · (.+) · (.+) · (.+)", text).groups()
        assert pair == f"{words[order[0]]} ({order[0]}) → {words[key]} ({key})"
        whole = pattern(model, document, heads)
        off = (
            0.005 * float(value) + math.sqrt(float(value) * float(whole.max())) / 255
        )  # three digits, 255 steps
        assert float(attention.split()[1]) == pytest.approx(float(value), abs=off)
        assert float(relative.split()[0]) == pytest.approx(float(value) * n, abs=off * n)
        assert relation.startswith(
            "same word" if words[key] == words[order[0]] else "same topic (0: war (war·army"
        )
    assert sorted(seen["marked"]) == sorted([words[order[0]], words[order[1]]])
    assert seen["start"].startswith("[CLS] (0) → [CLS] (0)")
    assert " · no relation · " in seen["start"]
    assert "→" in seen["tip"]
    assert "× uniform" in seen["tip"]
    assert seen["overflow"] == 0
    assert seen["requests"] == []
    assert seen["title"] == "Attention by topic"
    # The colours of the topics are around the blocks and behind the words, and the words can be read on them.
    drawn = dict(zip(topics.words.tolist(), topics.membership.long().argmax(1).tolist(), strict=True))
    present = {drawn[one] for one in document.ids.tolist() if one in drawn}
    assert len(present) >= 3
    for topic in present:
        assert seen["colours"][",".join(map(str, rgb(topic_colour(topic))))] > 50
    shown = {(word, background) for word, background, _ in seen["words"]}
    assert ("guitar", "rgb({}, {}, {})".format(*rgb(topic_colour(1)))) in shown
    assert all(ink in ("rgb(0, 0, 0)", "rgb(255, 255, 255)") for _, _, ink in seen["words"])
    assert seen["circuitsvis"] >= 1
    assert "Head Selector" in seen["circuitsvisText"]
    assert "the first 48 tokens (more would freeze the browser)" in seen["circuitsvisText"]
    # Another head is chosen in the grid, by keys and a click, and its numbers are those of the measurement.
    report = tp.measure_attention(model, topics, [document], n_resamples=0, n_permutations=0).heads
    top = report.top(3).index
    names = [f"L{layer}H{head}" for layer, head in zip(top["layer"], top["head"], strict=True)]
    assert seen["heads"] == names
    assert seen["stops"] == names[:1]
    assert (seen["below"], seen["beside"]) == ("L1H0", "L1H1")
    assert seen["says"] == seen["named"]
    assert seen["clicked"] == ["L1H1", *names]
    assert seen["pressed"] == sorted(seen["clicked"])
    assert seen["numbers"] == pytest.approx([report.effect_size[13], report.ratio[13]], rel=1e-3)
    assert seen["label"].startswith("Attention pattern of L1H1")
    assert seen["pattern"] == f"{n_words**2}"
    assert (seen["closed"], seen["focused"]) == (names, "L1H1")


def rgb(colour):
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def pattern(model, document, heads):
    """Hugging Face's own pattern of a head."""
    inside = model.original_model
    inside.set_attn_implementation("eager")
    with torch.no_grad():
        answer = inside(input_ids=document.ids[None], output_attentions=True)
    return answer.attentions[heads["layer"][0]][0, heads["head"][0]]


def test_a_report_page_fits_a_narrow_screen_and_its_pictures_are_there(tmp_path):
    folder = tmp_path / "results" / "figure2"
    (folder / "figures").mkdir(parents=True)
    content = {"recipe": "figure2", "title": "t", "claims": claims_of_every_kind()}
    (folder / "claims.json").write_text(json.dumps(content))
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1400" height="700"><rect width="9" height="9"/>'
        '<script>parent.document.title = "broken"</script><image href="http://example.org/x.png"/></svg>'
    )
    (folder / "figures" / "wide.svg").write_text(picture)
    topics = tp.Topics.blocks(n_topics=3, words_per_topic=4)
    topics.save(tmp_path / "results" / "topics")
    probe = """
    addEventListener("load", () => setTimeout(() => {
      const image = document.querySelector("img");
      tell({
        picture: [image.naturalWidth, image.complete],
        card: getComputedStyle(image.closest("figure")).backgroundColor,
        widest: Math.max(...[...document.querySelectorAll("section *:not(.scroll *)")].map(
          (box) => box.getBoundingClientRect().right)),
        scrolls: document.querySelector(".scroll").tabIndex,
      });
    }, 200));
    """
    seen, said = browse(tp.report_page(tmp_path / "results"), tmp_path, width=362, probe=probe)
    assert said == []
    assert seen["picture"] == [1400, True]
    assert seen["card"] == "rgb(255, 255, 255)"
    assert seen["overflow"] == 0
    assert seen["width"] == 360
    assert seen["widest"] <= 360
    assert seen["scrolls"] == 0
    assert seen["paper"] == "rgb(255, 255, 255)"
    assert seen["title"] == "Results in results"


# What every reader needs: nothing sticks out, every text can be read, every control and box that scrolls be reached.
EYES = """
const visible = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
const channels = (colour) => colour.match(/[0-9.]+/g).map(Number);
const luminance = (colour) => {
  const [r, g, b] = channels(colour).map((one) => {
    const part = one / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  const colour = getComputedStyle(element).backgroundColor;
  return channels(colour)[3] === 0 && element.parentElement ? behind(element.parentElement) : colour;
};
const contrast = (element) => {
  const two = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => b - a);
  return (two[0] + 0.05) / (two[1] + 0.05);
};
const every = (selector) => [...document.querySelectorAll(selector)];
const look = (seen) => {
  const texts = every("body *").filter((one) => visible(one) && !["SCRIPT", "STYLE", "OPTION"].includes(one.tagName)
    && !one.closest(".white") && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  seen.texts = texts.length;
  seen.pale = texts.filter((one) => contrast(one) < 4.5).map((one) => one.textContent);
  seen.stuck = every("body *").filter((one) => {
    const style = getComputedStyle(one);
    const scrolls = (/auto|scroll/.test(style.overflowX) && one.scrollWidth > one.clientWidth)
      || (/auto|scroll/.test(style.overflowY) && one.scrollHeight > one.clientHeight);
    return scrolls && one.tabIndex < 0 && !one.querySelector("a, summary, input, button, [tabindex='0']");
  }).map((one) => one.className);
  // A grid is one stop, and its arrow keys lead to the rest.
  seen.unreachable = every("a, button, input, summary, canvas, select").filter((one) =>
    visible(one) && !one.disabled && one.tabIndex < 0 && !one.closest("[role=grid]:has([tabindex='0'])")
    && !one.closest(".white")).map((one) => one.outerHTML.slice(0, 80));
  seen.unnamed = every("button, input, canvas, [role=region]").filter((one) => visible(one)
    && !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
    .map((one) => one.outerHTML.slice(0, 80));
};
"""
READER = """
const all = every;
const box = (selector) => document.querySelector(selector).getBoundingClientRect();
addEventListener("load", () => setTimeout(() => {
  const seen = { folded: all("details:not(.recipe)").map((one) => one.open) };
  const figure = document.querySelector("#recipe-0 figure");
  seen.beside = box("#recipe-0 figure").left >= box("#recipe-0 .claims").right;
  seen.below = box("#recipe-0 figure").top - box("#recipe-0 .claims").bottom;
  seen.first = box("#recipe-0 figure").top - box("#recipe-0 .claims").top;
  for (const one of all("details")) one.open = true;
  const out = (one) =>
    one.getBoundingClientRect().right > (one.closest(".scroll") || document.body).getBoundingClientRect().right;
  seen.broken = all(".verdict").filter((one) => one.offsetHeight > 30 || out(one)).map((one) => one.textContent);
  look(seen);
  seen.stacked = box("#recipe-0 .measured").top >= box("#recipe-0 .setting").bottom;
  seen.sideways = all(".scroll:has(.claims, .overview)").filter((one) => one.scrollWidth > one.clientWidth).length;
  const wide = one => one.querySelectorAll("thead th").length > 12;
  const tables = all(".scroll").filter(wide);
  seen.wide = tables.map((one) => [one.scrollWidth > one.clientWidth, one.nextElementSibling?.textContent,
    getComputedStyle(one).backgroundImage.split("linear-gradient").length - 1]);
  seen.words = box(".overview .verdict .words").width > 0;
  seen.counts = document.querySelector(".overview tbody tr").innerText;
  figure.querySelector("a:not(.close)").click();
  setTimeout(() => {
    seen.large = [getComputedStyle(figure).position, box("#recipe-0 figure img").width];
    figure.querySelector(".close").click();
    setTimeout(() => { seen.closed = getComputedStyle(figure).position; tell(seen); }, 100);
  }, 100);
}, 200));
"""


ATTENTION_READER = """
addEventListener("load", () => setTimeout(() => {
  const seen = {};
  for (const details of every("details")) details.open = true;
  look(seen);
  seen.buttons = every(".grid button").length;
  seen.side = every(".side, .patterns").map((one) => one.getBoundingClientRect().left);
  tell(seen);
}, 400));
"""


@pytest.mark.parametrize("width", [402, 1402])
def test_a_page_of_attention_can_be_read_and_reached_at_every_width(shown, tmp_path, width):
    _, _, page = shown
    seen, _ = browse(page, tmp_path, width=width, probe=EYES + ATTENTION_READER)
    assert seen["overflow"] == 0
    assert seen["texts"] > 50
    assert (seen["pale"], seen["stuck"], seen["unreachable"], seen["unnamed"]) == ([], [], [], [])
    assert seen["buttons"] == 6 * 12
    left, right = seen["side"]
    assert (right > left) is (width > 1000)  # the grid stands beside the patterns, or above them
    assert seen["requests"] == []


def claims_of_every_kind():
    """A claim for each verdict in words that are long, and a check."""
    base = Claim("words attract " * 9, "Figure 2", "x" * 80, above=1.0)
    good = replace(
        base, setting="a-setting-with-a-long-name " * 4, measured=Number(1.5, 1.25, 1.75, "5 seeds")
    )
    control = {"no topics": Number(0.5), "a_control_with_a_long_name_" * 3: Number(0.25)}
    claims = [
        replace(good, controls=control, detail="d" * 300),
        good,
        replace(base, measured=Number(-1.23e-05, -2.345e-05, -1.111e-06, "57 articles"), reason="why " * 60),
        replace(base, measured=Number(1.0, 0.5, 1.5, "5 seeds"), controls=control, ours=True),
        replace(base, not_checked="it would take too long"),
        replace(good, check=True),
    ]
    return [claim.to_dict() for claim in claims]


@pytest.mark.parametrize("width", [402, 1402])
def test_a_page_of_claims_can_be_read_and_used_at_every_width(tmp_path, width):
    folder = tmp_path / "results" / "figure2"
    (folder / "figures").mkdir(parents=True)
    (folder / "tables").mkdir()
    content = {"recipe": "figure2", "title": "t", "claims": claims_of_every_kind()}
    (folder / "claims.json").write_text(json.dumps(content))
    (folder / "figures" / "wide.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="1400" height="700"><rect width="9" height="9"/></svg>'
    )
    rows = [{f"column_{at}": at / 3 for at in range(20)} for _ in range(30)]
    (folder / "tables" / "numbers.json").write_text(json.dumps(rows))
    toy = tp.build_toy(tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2)))
    tp.train_toy(toy, tp.TrainConfig(steps=1)).save(folder / "histories" / "value")
    topics = tp.Topics.from_token_ids({"one": [7], "two": [61]}, vocabulary_size=zoo.VOCABULARY)
    report = tp.measure_attention(zoo.make("bert"), topics, [[7, 61]], n_permutations=0)
    report.save(folder / "reports" / "attention" / "value")
    page = tp.report_page(tmp_path / "results")
    seen, said = browse(page, tmp_path, width=width, probe=EYES + READER)
    assert said == []
    assert seen["overflow"] == 0
    assert seen["broken"] == []
    assert seen["texts"] > 100
    assert seen["pale"] == []
    assert (seen["stuck"], seen["unreachable"], seen["unnamed"]) == ([], [], [])
    assert seen["requests"] == []
    assert seen["folded"] != []
    assert not any(seen["folded"])
    wide = width > 1000
    assert seen["beside"] is wide
    # Beside the claims, or right after them.
    assert 0 <= (seen["first"] if wide else seen["below"]) < 100
    assert seen["stacked"] is not wide
    assert seen["sideways"] == 0
    assert [True, "20 columns: scrolls sideways.", 4] in seen["wide"]
    assert seen["words"] is not wide
    assert "✗ 1" in seen["counts"]
    assert seen["large"] == ["fixed", pytest.approx(max(960, seen["width"]), abs=60)]
    assert seen["closed"] == "static"


NASTY = (
    "<script>document.title = 'broken'</script>",
    '</script><img src=x onerror="document.title = 1">',
    "<!--<script>",
    "\0",
    "\ud83d",
    "'\"&",
    "\u202eevil",
    "שלום 🐸",
    "",
)

CORNERS = """
addEventListener("load", () => setTimeout(() => {
  const canvas = document.querySelector("canvas");
  document.querySelector("[name=only]").checked = false;
  document.querySelector("[name=order][value=position]").click();
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  const read = () => document.querySelector(".card output").textContent;
  const seen = { drawn: document.documentElement.dataset.drawn, cells: canvas.dataset.cells };
  press("ArrowDown");
  seen.first = read();
  for (let at = 0; at < 100; at++) press("ArrowRight");
  seen.right = read();
  for (let at = 0; at < 100; at++) press("ArrowDown");
  seen.last = read();
  const switches = document.querySelector("[name=circuitsvis]");
  if (switches) switches.click();
  setTimeout(() => {
    seen.circuits = document.querySelectorAll("#circuits canvas").length;
    tell(seen);
  }, 700);
}, 400));
"""


@cache
def strange_pages():
    """Pages of tokens that would break out, of one token, between two stacks, and of a model that looks back."""
    topics = tp.Topics.from_token_ids({"one": [7, 9], "two": [61, 20]}, vocabulary_size=zoo.VOCABULARY)
    bert = tp.open_model(zoo.make("bert"))
    found = read_text_attention(bert, topics, [7, 61, 9, 20, 30, 31, 32, 33, 34], max_heads=1)
    tokens = replace(found.keys, words=NASTY, in_words=NASTY)
    texts = {"labels": (NASTY[0], NASTY[1]), "names": (NASTY[2], NASTY[3])}
    return {
        "hostile": attention_page(replace(found, queries=tokens, keys=tokens, **texts)),
        "one token": show_attention(bert, topics, [7]),
        "cross": show_attention(tp.open_model(zoo.make("bart")), topics, [7, 9, 61], stack="cross"),
        "causal": show_attention(tp.open_model(zoo.make("gpt2")), topics, [30, 7, 9, 61]),
    }


@pytest.mark.parametrize("name", ["hostile", "one token", "cross", "causal"])
def test_strange_texts_and_models_are_drawn_like_any_other(tmp_path, name):
    seen, _ = browse(strange_pages()[name], tmp_path, width=402, probe=CORNERS)
    assert (seen["title"], seen["overflow"], seen["requests"]) == ("Attention by topic", 0, [])
    assert int(seen["drawn"]) >= 1
    n = {"hostile": 9, "one token": 1, "cross": 3, "causal": 4}[name]
    assert seen["cells"] == str(n**2)
    if name == "hostile":
        assert seen["first"].startswith(f"{NASTY[0]} (0) → {NASTY[0]} (0) · same word")
        assert seen["last"].startswith("␣ (8) → ␣ (8) · no relation")
    if name == "one token":
        assert "7 (0) → 7 (0) · same word" in seen["last"]
        assert seen["last"].endswith("1 × uniform · attention 1")
    if name == "causal":
        assert seen["right"].endswith("hidden by the mask")
    assert (seen["circuits"] > 0) is (name != "cross")  # circuitsvis knows only square patterns


FOLDING = """
const inside = (number) => document.querySelector(`#recipe-${number} .claims`);
const visible = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
addEventListener("load", () => setTimeout(() => {
  const seen = { height: document.documentElement.scrollHeight };
  seen.before = [0, 1, 2].map((number) => visible(inside(number)));
  document.querySelector('.overview a[href="#recipe-1"]').click();
  setTimeout(() => {
    seen.after = [0, 1, 2].map((number) => visible(inside(number)));
    seen.top = document.querySelector("#recipe-1-title").getBoundingClientRect().top;
    document.querySelector('a[href^="#claim-2-"]').click();
    setTimeout(() => {
      seen.row = visible(inside(2));
      tell(seen);
    }, 200);
  }, 200);
}, 300));
"""


def test_recipes_are_folded_and_a_link_unfolds_what_it_leads_to(tmp_path):
    for number in range(3):
        folder = tmp_path / "results" / f"figure{number}"
        (folder / "figures").mkdir(parents=True)
        content = {"recipe": folder.name, "title": "t", "claims": claims_of_every_kind()}
        (folder / "claims.json").write_text(json.dumps(content))
    seen, _ = browse(tp.report_page(tmp_path / "results"), tmp_path, width=1402, probe=FOLDING)
    assert seen["height"] < 1500
    assert seen["before"] == [False] * 3
    assert seen["after"] == [False, True, False]
    assert 0 <= seen["top"] < 200
    assert seen["row"] is True


def test_forms_of_a_word_in_different_topics_are_framed_in_neither(tmp_path):
    topics = tp.Topics.from_token_ids({"one": [7], "two": [61]}, vocabulary_size=zoo.VOCABULARY)
    attention = read_text_attention(zoo.make("bert"), topics, [7, 61], layer=0, heads=0)
    page = attention_page(replace(attention, relation=torch.full_like(attention.relation, SAME_WORD)))
    probe = """
    addEventListener("load", () => setTimeout(() => tell({...document.querySelector("canvas").dataset}), 200));
    """
    seen, said = browse(page, tmp_path, width=362, probe=probe)
    assert said == []
    assert (seen["cells"], seen["outlined"]) == ("4", "2")  # each with itself
