"""Claims that several recipes make."""

from collections.abc import Mapping
from math import log, nan

from topic_probe.contrast import Contrast
from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import NAMES, PAIRS, TrainedToy
from topic_probe.toy.agreement import AgreementReport, measure_agreement
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import History

EVALUATION_SEED = 1000
"""Of the fresh documents that trained toys are measured on; no training uses it."""

PAPER_LOSS = "only slightly greater"


def agreement_of(trained: TrainedToy, *, quick: bool) -> AgreementReport:
    """A trained toy beside theory, on fresh documents that are the same for all of them."""
    words = 25_000 if quick else 125_000
    return measure_agreement(
        trained.model(),
        loss=trained.setting.train.loss,
        n_documents=max(10, words // trained.setting.world.max_length),
        attention=False,
        seed=EVALUATION_SEED,
    )


def block_claim(what: str, contrast: Contrast, *, setting: str, source: str) -> Claim:
    """Entries between different words of one topic are larger than those between topics, beyond doubt."""
    assert contrast.interval is not None
    low, high = contrast.interval.tolist()
    means = (
        f"same word {float(contrast.same_word):.4f}, other words of the topic {float(contrast.same_topic):.4f}, "
        f"different topics {float(contrast.different_topic):.4f}"
    )
    return Claim(
        text=f"{what} has a block for every topic: other words of the same topic − different topics, lower end of the "
        "interval",
        source=source,
        paper="blocks",
        measured=low,
        above=0.0,
        setting=setting,
        detail=f"difference {float(contrast.difference):.4f} [{low:.4f}, {high:.4f}]; {means}",
    )


def late_improvement(history: History) -> float:
    """How much of the whole improvement over guessing the last tenth of a training brought; near 0 once it converged.

    From mean losses over the last tenth of the rows and over the tenth before. NaN if there is no improvement.
    """
    tenth = max(1, len(history) // 10)
    last, before = float(history.loss[-tenth:].mean()), float(history.loss[-2 * tenth : -tenth].mean())
    assert isinstance(history.toy, ToyConfig)
    n = history.toy.world.n_words
    guess = log(n) if history.train.loss == "cross_entropy" else 1 - 1 / n
    return (before - last) / (guess - last) if guess > last else nan


def converged_claims(runs: Mapping[str, TrainedToy], *, source: str, quick: bool) -> list[Claim]:
    """Every training went on until nothing changed any more."""
    text = "Training has converged: its last tenth brought almost none of the improvement over guessing"
    if quick:
        reason = "the quick variant stops early, and takes larger steps with SGD"
        return [Claim(text, source, "convergence point", setting="all", not_checked=reason)]
    return [
        Claim(
            text=text,
            source=source,
            paper="convergence point",
            measured=late_improvement(trained.history) if trained.history.stopped == "finished" else nan,
            above=-0.02,
            below=0.02,
            setting=name,
            detail=f"{trained.setting.train.steps:,} steps at a rate of {trained.setting.train.learning_rate:g}, "
            f"{trained.seconds:.0f} s; {trained.history.stopped}",
        )
        for name, trained in runs.items()
    ]


def loss_claims(
    agreements: Mapping[str, AgreementReport], limited: str, free: str, *, source: str, quick: bool
) -> list[Claim]:
    """A regime with less to train loses only little, for every loss and optimizer that both were trained with.

    Once as the paper words it, and once on a scale where guessing is 0. There uniform attention may cost much, as much
    as theory says: with squared loss its floor has 0.38 of what attention to the topics can gain.
    """
    claims = []
    for loss, optimizer in PAIRS:
        setting = f"{NAMES[loss]}, {NAMES[optimizer]}"
        few, many = (agreements.get(f"{regime}, {setting}") for regime in (limited, free))
        if few is not None and many is not None:
            claims += _loss_claims(few, many, setting=setting, source=source)
    if quick:
        reason = "the quick variant stops SGD before its loss is level"
        claims.append(Claim(_slightly(limited, free), source, PAPER_LOSS, setting="SGD", not_checked=reason))
    return claims


def _slightly(limited: str, free: str) -> str:
    return f"The loss of {limited} is only slightly above that of {free} (relative difference)"


def _loss_claims(few: AgreementReport, many: AgreementReport, *, setting: str, source: str) -> list[Claim]:
    share_of_floors = (few.guess - few.floor) / (many.guess - many.floor)
    return [
        Claim(
            text=_slightly(few.regime, many.regime),
            source=source,
            paper=PAPER_LOSS,
            measured=few.loss / many.loss - 1,
            above=-0.05,
            below=0.1,
            setting=setting,
            detail=f"{few.regime} {few.loss:.4f} ± {few.loss_error:.4f}, {many.regime} {many.loss:.4f} ± "
            f"{many.loss_error:.4f}; guessing {many.guess:.4f}, best possible {many.bayes:.4f}",
        ),
        Claim(
            text=f"Where guessing is 0, {few.regime} keeps as much of what {many.regime} gains as their floors allow "
            "(share; at least nine tenths of the share of the floors)",
            source="our scale: under squared loss even guessing is within 10 % of the best",
            paper="no number",
            measured=(few.guess - few.loss) / (many.guess - many.loss),
            above=0.9 * share_of_floors,
            below=1.2,
            setting=setting,
            detail=f"on long documents {few.regime} cannot get below {few.floor:.4f}, {many.regime} not below "
            f"{many.floor:.4f}: uniform attention does not know which word is shown",
        ),
    ]
