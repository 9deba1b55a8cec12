"""Watches a small BERT and a small GPT-2 learn topics: ``python demos/emergence.py [--texts FOLDER] [--out FOLDER]``.

Both are trained from scratch with transformers' Trainer on the articles that come with gensim, or on a folder of texts,
with tokenizers of their kinds that are trained on the same texts, and measured as they learn with `TopicProbe`.

Embeddings of words that are equally frequent come to resemble each other first, and the words of a topic are alike in
how often they occur. So each model is trained a second time on the same tokens shuffled over the whole corpus, where
how often they occur is all that can be learned, and an onset is the step from which the first training is beyond the
second one.

A model whose loss on held-out articles is not half a nat below the unigram entropy of these articles has learned
little more than how often tokens occur: its curves are kept, and its onsets should not be interpreted.

Each of the four trainings takes about twenty minutes of one core; with ``--quick`` all of them take less than a minute,
and none gets far enough. A report is saved for each: ``topic-probe report FOLDER`` makes a page of them.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import topic_probe as tp
from topic_probe.series.curves import Onsets, change, curves_of

NEEDED = 0.5
"""Nats a token below the unigram entropy from which a model may be interpreted."""
HELD_OUT = 10
"""Every tenth article is held out."""
MASKED = 0.3
"""Share of BERT's tokens that are masked; with half of that, small models learn half as fast."""


@dataclass(frozen=True)
class Settings:
    """How large models are, how long they are trained, and what is measured."""

    n_articles: int | None = None  # all
    n_tokens: int = 4000
    n_layers: int = 4
    d_model: int = 128
    length: int = 64
    steps: int = 6000
    batch_size: int = 32
    learning_rate: float = 1e-3
    n_topics: int = 20
    topic_share: float = 0.008  # words of a topic ÷ tokens of the vocabulary
    n_measured: int = 600  # documents
    n_steps: int = 12  # that are measured

    @property
    def measured_steps(self) -> list[int]:
        """The untrained model, and steps in equal ratios to the last one."""
        first = max(1, self.steps // 128)
        return [0, *np.unique(np.geomspace(first, self.steps, self.n_steps - 1).round().astype(int)).tolist()]


QUICK = Settings(
    n_articles=100, n_tokens=2000, n_layers=2, d_model=64, steps=40, batch_size=16, n_topics=8, topic_share=0.02,
    n_measured=100, n_steps=5,
)  # fmt: skip


def bert(texts: Iterable[str], settings: Settings) -> tuple[Any, Any]:
    """Word pieces in lower case between [CLS] and [SEP], and the class and configuration of a BERT that reads them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.n_tokens, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    ends = [(end, backend.token_to_id(end)) for end in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    config = hf.BertConfig(
        vocab_size=backend.get_vocab_size(), hidden_size=settings.d_model, num_hidden_layers=settings.n_layers,
        num_attention_heads=4, intermediate_size=4 * settings.d_model, max_position_embeddings=settings.length,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **roles), (hf.BertForMaskedLM, config)


def gpt2(texts: Iterable[str], settings: Settings) -> tuple[Any, Any]:
    """Byte pairs, case kept, and the class and configuration of a GPT-2 that reads them."""
    end = "<|endoftext|>"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.n_tokens, special_tokens=[end], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator(texts, trainer)
    config = hf.GPT2Config(
        vocab_size=backend.get_vocab_size(), n_embd=settings.d_model, n_layer=settings.n_layers, n_head=4,
        n_positions=settings.length, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, unk_token=end, pad_token=end
    )
    return tokenizer, (hf.GPT2LMHeadModel, config)


def shuffled(documents: list[list[int]], tokenizer: Any) -> list[list[int]]:
    """The same tokens as often and documents as long, every token dealt to any place; special tokens stay."""
    ids, lengths = np.concatenate(documents), np.cumsum([len(one) for one in documents])
    words = ~np.isin(ids, tokenizer.all_special_ids)
    ids[words] = np.random.default_rng(0).permutation(ids[words])
    return [part.tolist() for part in np.split(ids, lengths[:-1])]


def unigram_entropy(documents: list[list[int]], tokenizer: Any) -> float:
    """The loss, in nats, of a model that knows how often every token occurs and nothing else."""
    ids = np.concatenate(documents)
    counts = np.unique(ids[~np.isin(ids, tokenizer.all_special_ids)], return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def train(
    model: Any, seen: list[list[int]], unseen: list[list[int]], probe: Any, settings: Settings, out: Path
) -> float:
    """Trains a model that the probe watches; its loss on what it has not seen, in nats a token."""
    masked = probe.tokenizer.mask_token_id is not None
    # Every picked token is masked: copying those that are shown as they are would pass for learning.
    collator = hf.DataCollatorForLanguageModeling(
        probe.tokenizer, mlm=masked, mlm_probability=MASKED, mask_replace_prob=1.0, random_replace_prob=0.0
    )
    arguments = hf.TrainingArguments(
        output_dir=str(out), max_steps=settings.steps, per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, warmup_steps=settings.steps // 5, weight_decay=0.01, save_strategy="no",
        logging_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    rows, judged = ([{"input_ids": ids} for ids in documents] for documents in (seen, unseen))
    trainer = hf.Trainer(
        model, arguments, data_collator=collator, train_dataset=rows, eval_dataset=judged, callbacks=[probe]
    )
    trainer.remove_callback(hf.PrinterCallback)
    trainer.train()
    return float(trainer.evaluate()["eval_loss"])


def watch(name: str, make: Any, corpus: tp.Corpus, settings: Settings, out: Path) -> None:
    """Trains an architecture on text and on shuffled text, and prints from which step on it has topics."""
    tokenizer, (model_class, config) = make(corpus, settings)
    fit = tp.fit_topics(corpus.documents(tokenizer), tokenizer, n_topics=settings.n_topics)
    topics = fit.topics(fraction=settings.topic_share)
    length = settings.length
    pieces = list(corpus.documents(tokenizer, max_length=length, long="chunk", min_length=length // 2))
    measured = pieces[:: max(1, len(pieces) // settings.n_measured)][: settings.n_measured]
    held_out = set(list(dict.fromkeys(piece.source for piece in pieces))[::HELD_OUT])
    seen, unseen = (
        [piece.ids.tolist() for piece in pieces if (piece.source in held_out) is out_of_it]
        for out_of_it in (False, True)
    )
    reports = {}
    for kind, deal in (("text", lambda documents, _: documents), ("shuffled text", shuffled)):
        hf.set_seed(0)
        probe = tp.TopicProbe(
            topics, measured, at=settings.measured_steps, tokenizer=tokenizer, attention={"n_permutations": 0},
            folder=out / "steps" / f"{name}, {kind}",
        )  # fmt: skip
        texts, judged = deal(seen, tokenizer), deal(unseen, tokenizer)
        loss = train(model_class(config), texts, judged, probe, settings, out / "trainer")
        gain = unigram_entropy(judged, tokenizer) - loss
        enough = "" if gain >= NEEDED else f": not trained far enough, {NEEDED} are needed"
        print(
            f"{name} on {kind}: held-out loss {loss:.2f}, {gain:.2f} nats below the unigram entropy{enough}"
        )
        reports[kind] = probe.report()
        reports[kind].save(out / "reports" / f"{name}, {kind}", overwrite=True)
    print(f"{name}: steps from which it is beyond shuffled text\n{beyond(*reports.values())}\n")


def beyond(text: tp.SeriesReport, shuffled_text: tp.SeriesReport) -> Onsets:
    """From when on a curve has come further than it has on shuffled text: paired, source by source and word by word."""
    curves = (curves_of(report.steps.tolist(), report.rows, "step") for report in (text, shuffled_text))
    return Onsets([change(one - other) for one, other in zip(*curves, strict=True)])


def main(arguments: list[str] | None = None) -> None:
    """Watches both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--texts", help="a folder of .txt or .jsonl files; the articles that come with gensim"
    )
    parser.add_argument("--out", default="emergence", help="folder for the reports")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few steps")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    few = {"n_documents": settings.n_articles}
    corpus = tp.Corpus.from_files(options.texts, **few) if options.texts else tp.Corpus.bundled(**few)
    for name, make in (("bert", bert), ("gpt2", gpt2)):
        watch(name, make, corpus, settings, Path(options.out))


if __name__ == "__main__":
    main()
