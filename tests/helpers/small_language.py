"""A language of 92 made-up words in four topics, with texts, a tokenizer, and models of every architecture for it."""

import random

import zoo

import topic_probe as tp

# Consonant, vowel, three times over, so that none is a stop word.
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
SPECIAL = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")  # the id 1 pads, as RoBERTa and BART want it
N_TOPICS, PER_TOPIC = 4, 23


def words(topic):
    """The words of a topic."""
    return [_word(number) for number in range(topic * PER_TOPIC, (topic + 1) * PER_TOPIC)]


def _word(number):
    first, second = divmod(number, len(_CONSONANTS))
    return f"z{_VOWELS[first % 5]}{_CONSONANTS[second]}u{_CONSONANTS[first]}o"


def tokenizer(*, reverse=False):
    """One piece per word; ``reverse`` gives the words other ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    every = [word for topic in range(N_TOPICS) for word in words(topic)]
    vocabulary = {token: n for n, token in enumerate([*SPECIAL, *(reversed(every) if reverse else every)])}
    assert len(vocabulary) == zoo.VOCABULARY
    inside = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inside.pre_tokenizer = pre_tokenizers.Whitespace()
    inside.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    names = dict(
        zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), SPECIAL, strict=True)
    )
    return PreTrainedTokenizerFast(tokenizer_object=inside, **names)


def five_words(template, **special):
    """A tokenizer of five tokens that makes of a text what the template says; ``special`` names its special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inside = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "Same": 2, "words": 3, "?": 4}, unk_token="?"))
    inside.pre_tokenizer = pre_tokenizers.Whitespace()
    inside.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inside, unk_token="?", name_or_path="five words", **special
    )


def texts(n=40, length=50, seed=0):
    """Texts of words of mostly one topic."""
    generator = random.Random(seed)

    def text(number):
        own = words(number % N_TOPICS)
        return " ".join(
            generator.choice(own if generator.random() < 0.9 else words(generator.randrange(N_TOPICS)))
            for _ in range(length)
        )

    return [text(number) for number in range(n)]


def corpus(n=40, length=50, seed=0):
    """The texts as a corpus."""
    return tp.Corpus.from_texts(texts(n, length, seed))


def save_model(name, folder):
    """The folder of a small random model of an architecture of the zoo, with the tokenizer."""
    zoo.make(name).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
