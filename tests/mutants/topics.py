"""Topics: the words kept of a matrix, groups and forms, nulls, the sparse table, the lists that come along."""

from mutant import Mutant

_TOPICS = "topic_probe/topics/topics.py"
_INCIDENCE = "topic_probe/topics/incidence.py"
_TESTS = "tests/topics/test_topics.py"
_SPARSE = "tests/topics/test_incidence.py"

MUTANTS = [
    Mutant(
        "a word that several topics keep goes to the least likely one",
        _TOPICS,
        "best = np.lexsort((topics, -weights, entries))",
        "best = np.lexsort((topics, weights, entries))",
        _TESTS,
    ),
    Mutant(
        "shuffling leaves every word its topics",
        _TOPICS,
        "torch.stack([order.argsort()[place], topic], dim=1)",
        "torch.stack([place, topic], dim=1)",
        _TESTS,
    ),
    Mutant(
        "shuffling deals with the same seed whatever is asked for",
        _TOPICS,
        "torch.Generator().manual_seed(seed))\n        place",
        "torch.Generator().manual_seed(0))\n        place",
        _TESTS,
    ),
    Mutant(
        "an entry without a topic is taken for the next word",
        _TOPICS,
        "torch.where(self.words[place] == ids, place, -1)",
        "torch.where(self.words[place] >= ids, place, -1)",
        _TESTS,
    ),
    Mutant(
        "compounds do not move up with a padded vocabulary",
        _TOPICS,
        "self.words - self.vocabulary_size + n),",
        "self.words),",
        _TESTS,
    ),
    Mutant(
        "stems are not taken",
        _TOPICS,
        "form(text, self.one_word) or row",
        "form(text) or row",
        _TESTS,
    ),
    Mutant(
        "top words come with the least likely first",
        _TOPICS,
        "order = np.lexsort((rows, -weights, topics))",
        "order = np.lexsort((rows, weights, topics))",
        _TESTS,
    ),
    Mutant(
        "two vocabularies with the same words in another order have one hash",
        "topic_probe/topics/lookup.py",
        "items = sorted((index, str(token))",
        "items = sorted((0, str(token))",
        _TESTS,
    ),
    Mutant(
        "words are not looked up behind a space",
        "topic_probe/topics/lookup.py",
        'dict.fromkeys([*texts, *(f" {text}" for text in texts)])',
        "dict.fromkeys(texts)",
        _TESTS,
    ),
    Mutant(
        "groups that share several topics are counted for each",
        _INCIDENCE,
        "- self._several @ values",
        "- 0 * (self._several @ values)",
        _SPARSE,
    ),
    Mutant(
        "a large table forgets the topics of other numbers than the last of 63",
        _INCIDENCE,
        "found |= (topics.take(one)",
        "found = (topics.take(one)",
        _SPARSE,
    ),
    Mutant(
        "lists that were changed are taken",
        "topic_probe/topics/builtin.py",
        "if hashlib.sha256(content).hexdigest() != self.sha256:",
        "if not content:",
        "tests/topics/test_builtin.py",
    ),
    Mutant(
        "lists lose their first word",
        "topic_probe/topics/builtin.py",
        "for of, name, *words in rows if of == language",
        "for of, name, _, *words in rows if of == language",
        "tests/topics/test_builtin.py",
    ),
    Mutant(
        "a built-in family forgets what is done with split words",
        _TOPICS,
        '"split_words": split_words, "forms": forms}',
        '"forms": forms}',
        "tests/topics/test_builtin.py",
    ),
    Mutant(
        "a share is taken of the columns",
        _TOPICS,
        "math.floor(size * fraction + 0.5)",
        "math.floor(n_columns * fraction + 0.5)",
        _TESTS,
    ),
    Mutant(
        "half a token is rounded down",
        _TOPICS,
        "math.floor(size * fraction + 0.5)",
        "math.floor(size * fraction)",
        _TESTS,
    ),
    Mutant(
        "tokens of the minimal probability are kept",
        _TOPICS,
        "np.nonzero(kept > min_probability)",
        "np.nonzero(kept >= min_probability)",
        _TESTS,
    ),
    Mutant(
        "rows are divided by their maximum",
        "topic_probe/topics/lists.py",
        "table / totals",
        "table / table.max(axis=1, keepdims=True)",
        _TESTS,
    ),
    Mutant(
        "words of the same first topic are one group",
        _TOPICS,
        "tuple(topics[start:stop])",
        "tuple(topics[start : start + 1])",
        _SPARSE,
    ),
]
