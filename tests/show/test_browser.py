"""Pages in a real browser without a network: they draw, complain of nothing, and fit a narrow screen."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape

import pytest
import torch
import zoo
from real_text import minilm_folder, topics_by_hand

import topic_probe as tp
from topic_probe.contrast import SAME_WORD
from topic_probe.measure.text_attention import read_text_attention
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


def browse(page, folder, *, width, probe, dark=False):
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
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=3000",
            f"--window-size={width},1400", "--dump-dom", path.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    said = [line for line in answer.stderr.decode().splitlines() if "CONSOLE" in line or "Refused" in line]
    told = re.search(r'<pre id="told">(.+?)</pre>', answer.stdout.decode(), re.S)
    assert told is not None, f"the page stopped half-way: {said}"
    return json.loads(unescape(told[1])), said


TELL = """
const tell = (seen) => {
  seen.width = innerWidth;
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.paper = getComputedStyle(document.body).backgroundColor;
  seen.title = document.title;
  parent.postMessage(JSON.stringify(seen), "*");
};
"""

# Does in the page what a person does, and writes down what is seen.
PROBE = """
addEventListener("load", () => setTimeout(() => {
  const seen = {};
  const canvas = document.querySelector("canvas");
  const form = document.querySelector(".controls");
  const cells = () => canvas.dataset.cells + "/" + canvas.dataset.outlined;
  const set = (change) => { change(); form.dispatchEvent(new Event("change")); };
  seen.drawn = document.documentElement.dataset.drawn;
  seen.byTopic = cells();
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  seen.colours = {};
  for (let at = 0; at < pixels.length; at += 4) {
    const colour = pixels.slice(at, at + 3).join();
    seen.colours[colour] = (seen.colours[colour] || 0) + 1;
  }
  seen.words = [...document.querySelectorAll(".w.topic")].map((word) => {
    const style = getComputedStyle(word);
    return [word.textContent, style.backgroundColor, style.color];
  });
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  press("ArrowDown");
  seen.first = canvas.nextElementSibling.textContent;
  press("ArrowRight");
  seen.second = canvas.nextElementSibling.textContent;
  seen.marked = [...document.querySelectorAll(".query, .key")].map((word) => word.textContent);
  press("Escape");
  set(() => { form.only.checked = false; });
  seen.allByTopic = cells();
  set(() => { form.order.value = "position"; });
  seen.byPosition = cells();
  press("ArrowDown");
  seen.start = canvas.nextElementSibling.textContent;
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 12, clientY: box.top + 12 }));
  seen.tip = document.querySelector(".tip").innerText;
  document.getElementById("circuitsvis").open = true;
  setTimeout(() => {
    seen.circuitsvis = document.querySelectorAll("#circuitsvis canvas").length;
    seen.circuitsvisText = document.getElementById("circuitsvis").innerText;
    tell(seen);
  }, 800);
}, 200));
"""


@pytest.fixture(scope="module")
def shown():
    model = tp.open_model(minilm_folder())
    topics = topics_by_hand(model.tokenizer)
    return model, topics, show_attention(model, topics, TEXT, max_heads=3)


def test_attention_by_topic_is_drawn_and_can_be_read_by_keyboard_and_pointer(shown, tmp_path):
    model, topics, page = shown
    seen, said = browse(page, tmp_path, width=362, dark=True, probe=PROBE)
    assert said == []
    (document,) = tp.encode_texts([TEXT], model.tokenizer)
    labels = topics.labels(document.ids)
    n, n_topic = len(document), int((labels >= 0).sum())
    same = int((labels[labels >= 0][:, None] == labels[labels >= 0]).sum())
    assert seen["drawn"] == "3"
    assert seen["byTopic"] == f"{n_topic**2}/{same}"
    assert seen["allByTopic"] == seen["byPosition"] == f"{n**2}/{same}"
    # The first word of the first topic asks itself, then its neighbour; the values are those of the model.
    heads = (
        tp.measure_attention(model, topics, [document], n_resamples=0, n_permutations=0).heads.top(1).index
    )
    words = model.tokenizer.convert_ids_to_tokens(document.ids.tolist())
    order = sorted((at for at in range(n) if labels[at] == 0), key=lambda at: (words[at], at))
    for text, key in ((seen["first"], order[0]), (seen["second"], order[1])):
        value = pattern(model, document, heads)[order[0], key]
        pair, attention, relative, relation = text.split(" · ", 3)
        assert pair == f"{words[order[0]]} ({order[0]}) → {words[key]} ({key})"
        assert float(attention.split()[1]) == pytest.approx(float(value), rel=1e-3)
        assert float(relative.split()[0]) == pytest.approx(float(value) * n, rel=1e-3)
        assert relation.startswith(
            "same word" if words[key] == words[order[0]] else "same topic (0: war·army"
        )
    assert sorted(seen["marked"]) == sorted([words[order[0]], words[order[1]]])
    assert seen["start"].startswith("[CLS] (0) → [CLS] (0)")
    assert seen["start"].endswith("no relation")
    assert "→" in seen["tip"]
    assert "× uniform" in seen["tip"]
    assert seen["overflow"] == 0
    assert seen["paper"] == "rgb(20, 22, 27)"  # dark
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
    claim = {"text": "long " * 40, "source": "Figure 2", "paper": "x" * 80, "measured": 1.5, "wanted": "> 0",
             "setting": "a-setting-with-a-long-name " * 4, "detail": "d" * 300, "verdict": "passed"}  # fmt: skip
    folder = tmp_path / "results" / "figure2"
    (folder / "figures").mkdir(parents=True)
    (folder / "claims.json").write_text(json.dumps({"recipe": "figure2", "title": "t", "claims": [claim]}))
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
        card: getComputedStyle(image.parentElement).backgroundColor,
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
