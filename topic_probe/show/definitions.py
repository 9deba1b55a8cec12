"""What the numbers in tables mean, for readers of a page who have nothing else at hand."""

from collections.abc import Iterable, Mapping

PAIRS = (
    "Every mean is over ordered pairs, pooled over documents. Attention is multiplied by the number of keys that its "
    "row may see, so that uniform attention is 1. A token without a topic, a special token, padding and a piece of a "
    "split word are in no pair. A dash stands where a number is undefined."
)

CLAIMS = {
    "measured": "our number for what the claim is about",
    "wanted": "the bounds within which the number has to lie",
    "the paper": "the paper's number, or its words",
    "verdict": "passed where the number lies within the bounds, failed where it does not or is undefined, not checked "
    "where there is a reason why it was not looked at",
}

_CONTRAST = {
    "same_word": "mean score of pairs of equal token ids that have a topic; in attention a position with itself is "
    "among them unless include_self=False",
    "same_topic": "mean score of pairs of different token ids that share at least one topic",
    "different_topic": "mean score of pairs in which both have topics and none is shared",
    "ratio": "same_topic ÷ different_topic: 1 where topics make no difference",
    "topic_ratio": "same word and same topic pooled by their numbers of pairs, ÷ different_topic (the quantity of the "
    "paper's Theorem 3)",
    "difference": "same_topic − different_topic: 0 where topics make no difference; for scores that can be negative",
    "n_same_word": "number of pairs behind same_word; for several heads together it counts pairs of every head",
    "n_same_topic": "number of pairs behind same_topic",
    "n_different_topic": "number of pairs behind different_topic",
    "ratio_low": "lower end of the interval of the ratio, from resampled documents (attention, states) or words",
    "ratio_high": "upper end of that interval",
    "difference_low": "lower end of the interval of the difference",
    "difference_high": "upper end of that interval",
    "p_value": "share of permuted topic labels (topic sizes kept) with a number as extreme",
    "q_value": "p-value corrected over heads (Benjamini–Hochberg)",
    "matched_ratio": "ratio with pairs compared at equal distance, because words of a topic may simply stand closer",
    "without_sinks_ratio": "ratio after special tokens are taken out of every row and the row is renormalised",
    "sink_mass": "share of attention that goes to special tokens",
    "standardised": "difference ÷ standard deviation of the head's scores over all ordered pairs of words",
    "coverage": "share of same-topic pairs in bins that hold pairs of both kinds",
    "surviving": "matched difference ÷ difference of all pairs: 1 where matching takes nothing away, 0 where it takes "
    "everything",
}

_OF_KIND: Mapping[str, Mapping[str, str]] = {
    "agreement": {
        "measured": "the number of the trained model, on fresh documents where it is a loss",
        "theory": "what theory says that it is, or at best can be",
        "difference": "measured − theory; of a loss to the Bayes-optimal one on the same documents, never negative",
        "standard_error": "of the difference, over documents",
    },
    "dynamics": {
        "two_stage": "W_V starts, then is flat, and only then W_K and W_Q start",
        "value_start": "step from which W_V has started to grow",
        "value_flat": "step from which W_V is flat",
        "key_start": "step from which W_K has started",
        "query_start": "step from which W_Q has started",
        "value_growth": "norm of W_V where stage 2 begins (or at the end) ÷ its first one",
        "attention_change": "largest relative change of the norms of W_K and W_Q until W_V is flat",
        "late_value_growth": "norm of W_V at the end ÷ where stage 2 begins",
        "late_rotation": "mean rotation of W_V in ten steps during stage 2, (1 − cosine)/2",
    },
}


def terms(columns: Iterable[tuple[str, str]]) -> tuple[dict[str, str], bool]:
    """What the columns of reports mean, given as (kind of report, column), and whether pairs are among it.

    A name that means something else in one kind of report is listed with that kind.
    """
    listed = list(dict.fromkeys(columns))
    shared = {column for kind, column in listed if kind not in _OF_KIND}
    found = {name: meaning for name, meaning in _CONTRAST.items() if name in shared}
    pairs = bool(found)
    for kind, known in _OF_KIND.items():
        found |= {
            f"{column} ({kind})": known[column] for of, column in listed if of == kind and column in known
        }
    return found, pairs
