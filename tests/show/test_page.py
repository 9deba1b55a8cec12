import math
import threading

import numpy as np
import pytest
from page_parser import Parsed, check_stands_alone

from topic_probe.show.page import Page, Table, environment, make_page, number


def rendered(source, **content):
    """What a template makes of some content, as pages are made."""
    return environment().from_string('{% import "parts.html" as parts %}' + source).render(**content)


def text(value):
    return rendered("{{ value }}", value=value)


def test_text_becomes_the_same_text_whatever_it_holds():
    nasty = "<script>alert(1)</script> \"'&amp; \u202eright to left שלום 🐸"
    shown = Parsed(f"<p>{text(nasty)}</p>")
    assert shown.text == nasty
    assert shown.scripts == []
    assert Parsed(f'<p title="{text(nasty)}"></p>').elements == [("p", {"title": nasty})]


def test_control_characters_are_seen_and_half_characters_replaced():
    assert text("a\0b\x1b\x7f") == "a␀b␛␡"
    assert text("half \ud83d") == "half \ufffd"
    assert text("\ud83d").encode() == "\ufffd".encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "–"), (None, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (0.0, "0"), (-0.25, "−0.25"),
        (1234567, "1,234,567"), (np.int64(12), "12"), (45072.0, "45,072"), (1 / 3, "0.3333"), (1e-9, "1e−09"),
    ],
)  # fmt: skip
def test_numbers_are_short_and_undefined_ones_are_a_dash(value, shown):
    assert number(value) == shown


def test_a_table_keeps_its_cells_and_only_numbers_stand_right():
    parsed = Parsed(
        rendered(
            "{{ parts.table(it) }}", it=Table('the "label"', ("name", "<n>"), [["a&b", 1.5], ["–", None]])
        )
    )
    assert parsed.text == "name <n> a&b 1.5 – –"
    assert [given.get("class") for given in parsed.all("th")] == [None, "n"]
    assert parsed.all("div", role="region")[0]["aria-label"] == 'the "label"'


def test_nested_settings_are_all_there():
    settings = {"model": {"<name>": "x", "none": None}, "ids": list(range(50)), "empty": {}, "no": []}
    shown = Parsed(rendered("{{ parts.facts(settings) }}", settings=settings))
    assert shown.mistakes == []
    for part in ("<name> x", "none none", "38, 39 … and 10 more", "empty nothing", "no none"):
        assert part in shown.text


def test_a_page_is_saved_whole_and_never_over_another_unasked(tmp_path):
    page = make_page("page.html", "A <title> ä")
    path = page.save(tmp_path / "new" / "page.html")
    assert path.read_bytes() == page.html.encode()
    with pytest.raises(FileExistsError, match="exists and is not overwritten unasked"):
        make_page("page.html", "B").save(path)
    assert path.read_bytes() == page.html.encode()
    other = make_page("page.html", "B")
    other.save(path, overwrite=True)
    assert path.read_text() == other.html
    assert [held.name for held in path.parent.iterdir()] == ["page.html"]
    with pytest.raises(FileExistsError, match="is a folder, a file is needed: choose another path"):
        page.save(tmp_path)


def test_of_many_that_save_at_once_one_wins_and_the_file_is_whole(tmp_path):
    pages = [Page(f"{number_of}" * 100_000, "x") for number_of in range(8)]
    failed = []

    def save(page):
        try:
            page.save(tmp_path / "page.html")
        except FileExistsError:
            failed.append(page)

    threads = [threading.Thread(target=save, args=(page,)) for page in pages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 7
    assert (tmp_path / "page.html").read_text() in [page.html for page in pages]
    assert [held.name for held in tmp_path.iterdir()] == ["page.html"]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    page = Page('<head></head><p id=x>1 < 2 & "3"</p>\x7f', 'quote "')
    parsed = Parsed(page._repr_html_())
    (frame,) = parsed.all("iframe")
    # A link to a place in the page would else lead to that place of the notebook.
    assert frame["srcdoc"] == page.html.replace("<head>", '<head><base href="about:srcdoc">')
    assert frame["sandbox"] == "allow-scripts"
    assert [tag for tag, _ in parsed.elements] == ["iframe"]
    assert parsed.mistakes == []
    assert "Page 'quote" in repr(page)


def test_a_page_without_scripts_forbids_them():
    page = make_page("page.html", "A")
    check_stands_alone(page)
    assert "script-src" not in page.html
