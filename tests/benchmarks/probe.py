"""How much of a training's time a `TopicProbe` takes at its default steps; the bound is 5 %.

A BERT of four layers, 128 wide, with 8,000 words, is trained on the bundled articles; forty of them are measured.
What measuring costs grows with the logarithm of the number of steps: ``--steps 2000`` is a short training.
"""

import argparse
import tempfile
import warnings

import torch
import transformers

import topic_probe as tp

BOUND = 0.05
WORDS = {
    "war": ["war", "army", "troops", "battle", "military", "soldiers", "forces", "attack"],
    "music": ["music", "song", "band", "songs", "album", "jazz", "piano", "instruments"],
    "biology": ["species", "animals", "plants", "cells", "animal", "birds", "plant", "human"],
}


def main(steps):
    corpus = tp.Corpus.bundled()
    tokenizer = tp.word_tokenizer(corpus, n_words=8000)
    pieces = list(corpus.documents(tokenizer, max_length=128, long="chunk"))
    whole = [piece.ids for piece in pieces if len(piece.ids) == 128]
    rows = [{"input_ids": ids, "labels": ids} for ids in map(torch.as_tensor, whole)]
    model = tp.build_bert(tp.TextConfig(len(tokenizer), n_layers=4, d_model=128, max_length=128), seed=0)
    read = pieces[:: len(pieces) // 40][:40]  # of articles from all over the corpus
    probe = tp.TopicProbe(tp.Topics.from_word_lists(WORDS, tokenizer), read)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=32, report_to=[], disable_tqdm=True, use_cpu=True,
            save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[probe])
        trainer.train()
    report = probe.report()
    print(report)
    n = len(report.steps)
    print(f"{n} measurements of {report.measuring.mean():.2f} s, {report.between.sum() / steps:.3f} s a step")
    print(
        f"share of the training: {report.share:.2%}, bound {BOUND:.0%}: {'held' if report.share <= BOUND else 'MISSED'}"
    )
    return report.share <= BOUND


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    raise SystemExit(0 if main(parser.parse_args().steps) else 1)
