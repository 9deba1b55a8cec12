"""Tables are printed in a hundred letters, the answer first; what has no room is named."""

import numpy as np
import pandas as pd

import topic_probe as tp
from topic_probe.tables import WIDTH, as_text


def contrast(n=2, **more):
    """Heads with numbers of every kind."""
    ones = np.ones(n)
    index = {"stack": ("self",) * n, "layer": tuple(range(n)), "head": tuple(range(n))}
    interval = np.array([[1.25, 2.5]] * (n - 1) + [[np.nan, np.nan]])
    numbers = {"interval": interval, "p_value": ones / 1000, "q_value": ones / 100, "spread": ones / 7}
    return tp.Contrast(3 * ones, 2 * ones, ones / 3, 12345 * ones, 123456 * ones, 1234567 * ones, index=index,
                       effect_size_interval=interval, **(numbers | more))  # fmt: skip


def test_the_number_its_interval_p_q_effect_size_and_pairs_come_first_and_the_rest_is_named():
    header, first, last, *note = as_text(contrast().to_dataframe()).splitlines()
    assert header.split() == [
        "stack", "layer", "head", "ratio", "interval", "p_value", "q_value", "effect_size", "n_pairs",
        "topic_ratio",
    ]  # fmt: skip
    assert (
        first
        == " self      0     0      6 [1.25, 2.5]    0.001     0.01        11.67 123456/1234567        6.273"
    )
    assert last.split()[4] == "NaN"
    assert " ".join(note).startswith("(further columns, in to_dataframe() and with --wide: same_word, ")
    assert "effect_size_low" in " ".join(note)
    assert "ratio_low" not in " ".join(note)


def test_a_difference_with_an_interval_comes_before_the_ratio():
    header = as_text(contrast(statistic="difference").to_dataframe()).splitlines()[0].split()
    assert header[3:5] == ["difference", "interval"]


def test_no_line_is_longer_than_a_screen_and_nothing_is_lost_in_wide_ones():
    frame = contrast().to_dataframe()
    assert max(map(len, as_text(frame).splitlines())) <= WIDTH
    wide = as_text(frame, wide=True).splitlines()
    assert wide[0].split() == list(frame.columns)
    assert len(wide) == 3


def test_a_table_that_fits_keeps_its_columns_and_their_order():
    frame = pd.DataFrame({"difference": [0.5], "name": ["x"], "ratio": [12345.678]})
    assert as_text(frame).split() == ["difference", "name", "ratio", "0.5", "x", "1.235e+04"]


def test_numbers_of_one_contrast_are_floats():
    overall = contrast()[0]
    assert f"{overall.ratio:.3f} {overall.topic_ratio:.1f} {overall.difference:.2f}" == "6.000 6.3 1.67"
    assert all(isinstance(one, float) for one in (overall.ratio, overall.p_value, overall.effect_size))
