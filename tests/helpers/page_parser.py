"""Reading pages as a browser would, without one."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Parsed(HTMLParser):
    """A page taken apart: its elements, the text that is shown, scripts and styles.

    Elements that are closed in the wrong order or not at all are in ``mistakes``.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.styles, self.mistakes = [], [], [], []
        self.shown, self._open = [], []
        self.feed(html)
        self.close()
        self.mistakes += [f"{name} is never closed" for name in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.mistakes.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts[-1] += data
        elif inside == "style":
            self.styles.append(data)
        else:
            self.shown.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.shown).split())

    def all(self, tag, **attributes):
        return [
            given
            for name, given in self.elements
            if name == tag and all(given.get(key) == value for key, value in attributes.items())
        ]


def check_stands_alone(page):
    """Nothing in a page is fetched from elsewhere, and nothing is executed but its own scripts."""
    parsed = Parsed(page.html)
    assert parsed.mistakes == []
    addresses = [
        (tag, name, value)
        for tag, given in parsed.elements
        for name, value in given.items()
        if name in ("src", "href", "data", "srcset", "poster", "action", "formaction")
    ]
    # A link of the text leads elsewhere only when somebody follows it.
    inside = ("#", "data:image/")
    assert [
        one
        for one in addresses
        if not str(one[2]).startswith((*inside, "https://") if one[0] == "a" else inside)
    ] == []
    assert parsed.all("link") == parsed.all("iframe") == parsed.all("object") == parsed.all("base") == []
    assert [style for style in parsed.styles if "url(" in style or "@import" in style] == []
    handlers = [name for _, given in parsed.elements for name in given if name.startswith("on")]
    assert handlers == []
    (policy,) = parsed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'")
    return parsed
