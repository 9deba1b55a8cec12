"""Pages in a real browser without a network: they draw, complain of nothing, and fit a narrow screen."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from real_text import minilm_folder, topics_by_hand

import topic_probe as tp
from topic_probe.show.page import Page
from topic_probe.show.pages import show_attention
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


def browse(page, folder, *, width, dark=False, probe="", screenshot=False):
    """What a page looks like after it has run, as HTML or as a picture, and what the browser had to say."""
    script = f"<script>{probe}</script>" if probe else ""
    path = Page(page.html.replace("</body>", f"{script}</body>"), page.title).save(
        folder / "page.html", overwrite=True
    )
    out = folder / "shot.png"
    answer = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
            "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=3000",
            f"--window-size={width},1400", f"--screenshot={out}" if screenshot else "--dump-dom", path.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    said = [line for line in answer.stderr.decode().splitlines() if "CONSOLE" in line or "Refused" in line]
    return (out if screenshot else answer.stdout.decode()), said


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
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  press("ArrowDown");
  seen.first = canvas.nextElementSibling.textContent;
  press("ArrowRight");
  seen.second = canvas.nextElementSibling.textContent;
  seen.marked = [...document.querySelectorAll(".asks, .asked")].map((word) => word.textContent);
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
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.paper = getComputedStyle(document.body).backgroundColor;
  seen.title = document.title;
  document.getElementById("circuitsvis").open = true;
  setTimeout(() => {
    seen.circuitsvis = document.querySelectorAll("#circuitsvis canvas").length;
    seen.circuitsvisText = document.getElementById("circuitsvis").innerText;
    const told = document.createElement("pre");
    told.id = "told";
    told.textContent = JSON.stringify(seen);
    document.body.append(told);
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
    html, said = browse(page, tmp_path, width=400, dark=True, probe=PROBE)
    assert said == []
    seen = json.loads(
        re.search(r'<pre id="told">(.*?)</pre>', html, re.S)[1].replace("&gt;", ">").replace("&lt;", "<")
    )
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
    assert seen["circuitsvis"] >= 1
    assert "Head Selector" in seen["circuitsvisText"]


def pattern(model, document, heads):
    """Hugging Face's own pattern of a head."""
    inside = model.original_model
    inside.set_attn_implementation("eager")
    with torch.no_grad():
        answer = inside(input_ids=document.ids[None], output_attentions=True)
    return answer.attentions[heads["layer"][0]][0, heads["head"][0]]


def test_the_colours_of_the_topics_are_seen_at_once(shown, tmp_path):
    from matplotlib.image import imread

    _, _, page = shown
    picture, said = browse(page, tmp_path, width=1200, screenshot=True)
    assert said == []
    pixels = np.rint(imread(picture)[..., :3] * 255).astype(int)
    for topic in (0, 1, 4):  # war, music, politics: in the legend, in the text, and around the blocks
        colour = [int(topic_colour(topic)[at : at + 2], 16) for at in (1, 3, 5)]
        rows, columns = np.nonzero((np.abs(pixels - colour) <= 2).all(-1))
        assert len(rows) > 2000
        assert rows.max() > 700  # also down in the patterns
        assert columns.max() - columns.min() > 600
    assert pixels[-1, -1].tolist() == [255, 255, 255]
