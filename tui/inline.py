"""Turn the inline Markdown of a block into styled runs: emphasis, code, links, breaks."""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from localdflash.text.sanitize import sanitize
from localdflash.tui.styled_lines import StyledRun

MAX_MARKUP_CHARS, MAX_BRACKETS = 8_000, 400  # longer text is shown as typed: parsing takes quadratic time
TAB = "    "

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"<(?!https?:|mailto:)[a-zA-Z/!]")
_URL = re.compile(r"\bhttps?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}*]")
_CLICKABLE = re.compile(r"(?:https?://|mailto:)\S+", re.IGNORECASE)
_SCHEME_OR_SLASH = re.compile(r"^(?:https?://|mailto:)|/$", re.IGNORECASE)
_STYLES = {"strong": "strong", "em": "emphasis", "s": "strike"}


class Markdown(MarkdownIt):
    """CommonMark parser without HTML, which keeps URLs as written; `link_target` decides which may be opened."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False, "maxNesting": 100})
        self.enable("strikethrough")

    def validateLink(self, url: str) -> bool:  # noqa: D102, N802
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: D102, N802
        return url


def clean(text: str) -> str:
    """Return a piece of text as safe text on one line."""
    return sanitize(text).replace("\t", TAB).replace("\n", " ")


def link_target(url: str) -> str:
    """Return the URL if a click may open it, else ""."""
    return url if _CLICKABLE.fullmatch(url) and sanitize(url) == url else ""


def inline(content: str, style: str = "") -> tuple[StyledRun, ...]:
    """Return the runs of a block's text; `style` is added to each. A line feed in a run is a hard break.

    Long text is not cached: each version of a growing text would be kept.
    """
    if len(content) > MAX_MARKUP_CHARS or content.count("[") > MAX_BRACKETS:
        return (StyledRun("\n".join(clean(line.lstrip(" \t")) for line in content.split("\n")), style),)
    return _parse(content, style)


@lru_cache(1024)
def _parse(content: str, style: str) -> tuple[StyledRun, ...]:
    tokens: list[Token] = []
    markdown = _markdown()
    markdown.inline.parse(content, markdown, {}, tokens)
    return tuple(_Runs(style, "\n" if _TAG.match(content) else " ").build(tokens))  # HTML, shown as text, keeps lines


@cache
def _markdown() -> Markdown:
    return Markdown()


class _Runs:
    """Builder of styled runs: walks the inline tokens and tracks the open styles and link."""

    def __init__(self, style: str, softbreak: str) -> None:
        self._styles = [style] if style else []
        self._softbreak = softbreak
        self._url: str | None = None
        self._link_text = ""
        self._runs: list[StyledRun] = []

    def build(self, tokens: list[Token]) -> list[StyledRun]:
        for token in tokens:
            self._add_token(token)
        return self._runs

    def _add_token(self, token: Token) -> None:
        name = _STYLES.get(token.tag)
        if token.type in {"softbreak", "hardbreak"}:
            self._break("\n" if token.type == "hardbreak" else self._softbreak)
        elif token.type == "code_inline":
            self._add(clean(token.content), "code")
        elif token.type == "image":
            self._image(token)
        elif token.type == "link_open":
            self._url, self._link_text = str(token.attrGet("href") or ""), ""
            self._styles.append("link")
        elif token.type == "link_close":
            self._end_link()
        elif name and token.nesting > 0:
            self._styles.append(name)
        elif name and token.nesting < 0:
            self._styles.remove(name)
        else:
            self._text(token.content)

    def _text(self, text: str) -> None:
        for number, piece in enumerate(_BREAK.split(text)):
            if number:
                self._break("\n")
            for part, url in _with_urls(piece) if self._url is None else [(piece, "")]:
                self._add(clean(part), "link" if url else "", link_target(url))

    def _end_link(self) -> None:
        url, self._url = self._url or "", None
        self._styles.remove("link")
        if url and _bare(url) != _bare(self._link_text):
            self._add(f" ({clean(url)})", "muted")

    def _image(self, token: Token) -> None:
        url = str(token.attrGet("src") or "")
        self._add(f"[image: {clean(token.content)}]", "link", link_target(url))
        if url and self._url is None:
            self._add(f" ({clean(url)})", "muted")

    def _break(self, text: str) -> None:
        self._link_text += text
        self._runs.append(StyledRun(text, " ".join(self._styles)))

    def _add(self, text: str, style: str = "", link: str = "") -> None:
        self._link_text += text
        styles = " ".join(dict.fromkeys([*self._styles, style] if style else self._styles))
        link = link or link_target(self._url or "")
        last = self._runs[-1] if self._runs else None
        if last and last.text != "\n" and (last.style, last.link) == (styles, link):
            self._runs[-1] = StyledRun(last.text + text, styles, link)
        elif text:
            self._runs.append(StyledRun(text, styles, link))


def _with_urls(text: str) -> Iterator[tuple[str, str]]:
    """Yield pieces of a text, each with its URL: the piece itself, or "" for plain text."""
    done = 0
    for match in _URL.finditer(text):
        yield text[done : match.start()], ""
        yield match[0], match[0]
        done = match.end()
    yield text[done:], ""


def _bare(url: str) -> str:
    return _SCHEME_OR_SLASH.sub("", url)
