"""Fitting, counting, measuring and showing take the same tokens for words, to the token, whatever the tokenizer."""

import numpy as np
import pytest
import torch
import transformers as hf
from real_text import minilm_folder
from tokenizer_kinds import KINDS

import topic_probe as tp
from topic_probe.show.text_attention import read_text_attention
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import Counts, cut_documents

# Every word once, so that a count of different words is one of tokens; some stand before punctuation, some are pieces.
TEXT = "The army's band, (bandleader) and l'armée; don't soldier, I. included0"


def small_bert(vocabulary):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        return hf.BertModel(hf.BertConfig(vocab_size=vocabulary, max_position_embeddings=128, **sizes)).eval()


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "metaspace, never parted", "slow"])
@pytest.mark.filterwarnings("ignore:topics with the same top words", "ignore:.*topics got no words")
def test_all_take_the_same_tokens_for_words(kind):
    tokenizer = KINDS[kind]
    (document,) = tp.encode_texts([TEXT], tokenizer, add_special_tokens=False)
    ids = document.ids[document.whole].tolist()
    assert len(ids) == len(set(ids)) > 0
    size = max(tokenizer.get_vocab().values()) + 1
    every = [index for index in range(size) if index not in tokenizer.all_special_ids]
    topics = tp.Topics.from_token_ids({"even": every[::2], "odd": every[1::2]}, vocabulary_size=size)

    counted = tp.count_cooccurrence([document], every, vocabulary_size=size)
    assert counted.words[counted.document_frequency > 0].tolist() == sorted(ids)

    model = small_bert(size)
    overall = tp.measure_attention(model, topics, [document], n_permutations=0).overall
    pairs = overall.n_same_word + overall.n_same_topic + overall.n_different_topic
    assert pairs == len(ids) ** 2  # one head, and every word sees every word

    shown = read_text_attention(model, topics, document, max_tokens=128, tokenizer=tokenizer)
    assert [place for place, own in enumerate(shown.keys.topics) if own] == np.flatnonzero(
        document.whole
    ).tolist()

    texts = {index: tokenizer.decode([index]).strip("▁ ") for index in ids}
    letters = [index for index in ids if texts[index].isalpha() and len(texts[index]) > 1]
    if not letters:
        return  # single bytes: no word of letters alone is one token
    options = {"min_documents": 1, "max_share": 1.0, "stop_words": (), "passes": 1}
    fit = tp.fit_topics([document] * 2, tokenizer, n_topics=1, **options)
    assert fit.token_ids.tolist() == sorted(letters)


LONG = " ".join(
    ["the army of the bandleader lost; the band's song, the bandleaders' guitars and the president's troops"]
    * 6
)


@pytest.mark.parametrize("max_length", [7, 33])
def test_a_long_text_is_cut_in_one_way_by_whoever_cuts_it(max_length):
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    stream = tp.Corpus.from_texts([LONG]).documents(tokenizer, max_length=max_length, long="chunk")
    whole = tp.encode_texts([LONG], tokenizer)
    pieces = cut_documents(whole, None, max_length, "chunk", Counts(), tokenizer.all_special_ids)
    cut_later = []
    for batch in token_batches(pieces):
        rows = zip(batch.ids, batch.word_index, batch.mask, batch.sources.tolist(), strict=True)
        cut_later += [(ids[kept].tolist(), words[kept].tolist(), source) for ids, words, kept, source in rows]
    cut_at_once = [(one.ids.tolist(), one.word_index.tolist(), one.source) for one in stream]
    assert sorted(cut_later) == sorted(cut_at_once)
    (beginning,) = tp.encode_texts([LONG], tokenizer, max_length=max_length)
    assert (beginning.ids.tolist(), beginning.word_index.tolist(), beginning.source) == cut_at_once[0]
    assert all(
        ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id for ids, _, _ in cut_at_once
    )
