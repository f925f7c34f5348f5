"""Marked edits: «old|new» are the user's changes, in order; ‹old|new› is the expected proposal."""

import re

from localdflash.code.next_edit.propose import Proposer

_MADE = re.compile("«(.*?)[|](.*?)»", re.DOTALL)
_PROPOSED = re.compile("‹(.*?)[|](.*?)›", re.DOTALL)


def steps(marked: str) -> list[str]:
    """Return the texts before and after each edit."""
    text = _PROPOSED.sub(r"\1", marked)
    found = []
    while True:
        found.append(_MADE.sub(r"\1", text))
        if not _MADE.search(text):
            return found
        text = _MADE.sub(r"\2", text, count=1)


def proposed(language: str, texts: list[str], proposer: Proposer | None = None) -> str | None:
    """Return the text once the proposal is accepted; None without one."""
    found = (proposer or Proposer(language)).propose(texts)
    if found is None:
        return None
    proposal, source = found
    assert source.text == texts[-1]
    return source.apply(proposal)


def check(language: str, marked: str) -> None:
    """Assert that exactly the marked text is proposed."""
    texts = steps(marked)
    expected = _PROPOSED.sub(r"\2", _MADE.sub(r"\2", marked)) if _PROPOSED.search(marked) else None
    assert proposed(language, texts) == expected


def all_proposed(language: str, texts: list[str], most: int = 100) -> str:
    """Return the text once every proposal is accepted."""
    proposer = Proposer(language)
    for _ in range(most):
        following = proposed(language, texts, proposer)
        if following is None:
            return texts[-1]
        texts = [*texts[-3:], following]
    raise AssertionError(f"more than {most} proposals")


def final_texts(language: str, marked: str) -> tuple[str, str, str]:
    """Return the texts after the user's changes, with all marked proposals, and with all that are made."""
    texts = steps(marked)
    expected = _PROPOSED.sub(r"\2", _MADE.sub(r"\2", marked))
    return texts[-1], expected, all_proposed(language, texts)
