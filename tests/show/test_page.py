import math

import numpy as np
import pytest
from page_parser import Parsed

from topic_probe.show.page import environment, make_page, number


def text(value):
    return environment().from_string("{{ value }}").render(value=value)


def test_text_becomes_the_same_text_whatever_it_holds():
    nasty = "<script>alert(1)</script> \"'&amp; \u202eright to left שלום 🐸"
    shown = Parsed(f"<p>{text(nasty)}</p>")
    assert shown.text == nasty
    assert shown.scripts == []
    assert Parsed(f'<p title="{text(nasty)}"></p>').elements == [("p", {"title": nasty})]


def test_numbers_are_short_and_undefined_ones_are_a_dash():
    given = (math.nan, None, -math.inf, 0.0, -0.25, 1234567, np.int64(12), 1 / 3, 1e-9)
    assert [number(value) for value in given] == [
        "–", "–", "−∞", "0", "−0.25", "1,234,567", "12", "0.3333", "1e−09",
    ]  # fmt: skip


def test_a_page_is_saved_whole_and_never_over_another_unasked(tmp_path):
    page = make_page("page.html", "A <title> ä")
    path = page.save(tmp_path / "new" / "page.html")
    assert path.read_bytes() == page.html.encode()
    with pytest.raises(FileExistsError, match="is not overwritten unasked"):
        make_page("page.html", "B").save(path)
    assert path.read_bytes() == page.html.encode()
