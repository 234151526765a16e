"""HTML as a browser reads it: tags with attributes, and the text of an element."""

import base64
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, text):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(text)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag):
        return "".join(self.texts[tag])


def svg_of(image):
    kind, data = image["src"].split(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode()
