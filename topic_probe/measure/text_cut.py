"""Attention within one text before and after edges between its words are cut."""

from dataclasses import replace
from typing import Any

from topic_probe.lens import capture
from topic_probe.lens.edit import edit_heads
from topic_probe.lens.opening import open_model
from topic_probe.measure.knockout import CODES, Cuts, How, Relation, chosen_sites
from topic_probe.measure.outcomes import States, readout_of
from topic_probe.measure.patterns import units_of
from topic_probe.measure.text_attention import (
    ShownHeads,
    ShownText,
    TextAttention,
    one_batch,
    read_text_attention,
)
from topic_probe.options import shares
from topic_probe.topics import Topics


@shares
def read_text_cut(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    cut: Relation,
    how: How,
    which: ShownHeads,
    reading: ShownText,
) -> TextAttention:
    """How heads attend within one text, each followed by itself after edges between words were cut in all layers.

    Arguments are those of `topic_probe.show_attention`.
    """
    model = open_model(model, tokenizer=reading.tokenizer)
    before = read_text_attention(model, topics, text_or_ids, **vars(which), **vars(reading))
    view = capture.view(model, topics)
    tokenizer = getattr(model, "tokenizer", None) if reading.tokenizer is None else reading.tokenizer
    batch, _ = one_batch(view, text_or_ids, tokenizer, reading)
    outcome = States(view, topics, None)
    [weights] = outcome.readouts.values()
    asked = outcome.ask(batch, units_of(batch, topics))
    cuts = Cuts(view, topics, chosen_sites(view, None, None), CODES[cut], how, 0, 0, earlier=False)
    # What is cut behind the softmax is missing in its row.
    options = vars(reading) | ({"check_rows": False} if how == "weights" else {})
    names = [head.name for head in (*before.heads, *before.rest)]
    with edit_heads(model, {}):
        gaps = [readout_of(weights, outcome.read(asked)[0], asked.kinds[0])]
        for block in cuts(asked):
            with block:
                after = read_text_attention(
                    model, topics, text_or_ids, heads=names, stack=before.stack, **options
                )
                gaps.append(readout_of(weights, outcome.read(asked)[0], asked.kinds[0]))
    n, where = int(cuts.edges.sums["edges"][0]), "before" if how == "scores" else "behind"
    notes = [
        f"Every head is followed by itself after {n:,} edges of attention between words were cut in all layers "
        f"({cut.replace('_', ' ')}, {where} the softmax)."
    ]
    known = [float(gap) for gap in gaps if gap is not None]
    if len(known) == 2:
        notes.append(
            "Centred cosines of last states, same topic − different topics: "
            f"{known[0]:.3f} as it is, {known[1]:.3f} after the cut. Cutting any words apart parts them: "
            "measure_knockout compares with other cuts, over many texts."
        )
    follows = {head.name: replace(head, cut=True) for head in after.heads}
    heads, rest = (
        tuple(head for own in some for head in (own, follows[own.name]))
        for some in (before.heads, before.rest)
    )
    return replace(before, heads=heads, rest=rest, notes=(*notes, *before.notes))
