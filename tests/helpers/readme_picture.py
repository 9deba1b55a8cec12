"""The picture at the top of the README: attention in one text by topic, beside the map of heads."""

import matplotlib.pyplot as plt
import numpy as np

import topic_probe as tp
from topic_probe.show.text_attention import read_text_attention

TEXT = (
    "The army lost the battle, and the soldiers who had survived the siege heard the band play a song on piano and "
    "guitar before the president and the government of the new party met the parliament."
)
LISTS = {
    "war": ["army", "battle", "soldiers", "siege"],
    "music": ["band", "song", "piano", "guitar"],
    "politics": ["president", "government", "party", "parliament"],
}


def draw(model, report, head="L3H5"):
    """The figure, of a model and its report on many texts."""
    topics = tp.Topics.from_word_lists(LISTS, model.tokenizer)
    read = read_text_attention(model, topics, TEXT, heads=[head])
    placed = sorted((own[0], at) for at, own in enumerate(read.queries.topics) if own)
    at = [place for _, place in placed]
    times = read.patterns[head][np.ix_(at, at)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", width_ratios=(1, 1.25))
    tp.figures.matrix_map(
        np.log2(np.clip(times, 1 / 8, 8)), [topics.names[topic] for topic, _ in placed],
        words=[read.queries.words[place] for place in at], label="log₂ attention ÷ uniform attention", ax=left,
    )  # fmt: skip
    left.set_title(f"one text, head {head}: rows attend to columns")
    table = report.to_dataframe()
    table["q < 0.05"] = table["q_value"] < 0.05
    tp.figures.head_map(table, value="effect_size", certain="q < 0.05", label="effect size", ax=right)
    right.set_title("103 articles: every head")
    return figure
