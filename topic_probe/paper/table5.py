"""Table 5: the same as Table 1 where a word may have several topics.

A word stays with every topic that keeps it, and two words have the same topic when they share one. The table is in an
appendix of the paper whose numbers are not part of this package, so none stand beside ours.
"""

from topic_probe.paper.table1 import Table, table_recipe

RECIPE = table_recipe(
    "table5",
    "same-topic words in pretrained models, several topics per word",
    "Table 5, Appendix E.3",
    Table(one_topic_per_word=False, printed={}, untrained="not printed here"),
)
