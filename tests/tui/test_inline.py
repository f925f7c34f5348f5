"""Markup inside a block, and how runs are cut into rows."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from localdflash.tui.inline import MAX_MARKUP_CHARS, followable, inline
from localdflash.tui.styled_lines import StyledRun, wrap
from tests.tui.markdown_samples import copied


def test_styles_nest() -> None:
    assert inline("a **b *c* `d`** ~~e~~") == (
        StyledRun("a "),
        StyledRun("b ", "strong"),
        StyledRun("c", "strong emphasis"),
        StyledRun(" ", "strong"),
        StyledRun("d", "strong code"),
        StyledRun(" "),
        StyledRun("e", "strike"),
    )


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https:"])
def test_other_urls_are_shown_and_never_followed(url: str) -> None:
    runs = inline(f"[text](<{url}>)")
    assert {run.link for run in runs} == {""}
    assert "".join(run.text for run in runs) == ("text" + (f" ({url})" if url else ""))


def test_a_url_with_characters_that_nobody_sees_is_not_followed() -> None:
    assert followable("https://x.org/a\u202eb") == ""
    assert followable("https://x.org/a b") == ""
    assert followable("HTTPS://x.org") == "HTTPS://x.org"


def test_urls_in_text_are_links_without_what_ends_the_sentence() -> None:
    assert inline("see (https://x.org/a_b?c=1).") == (
        StyledRun("see ("),
        StyledRun("https://x.org/a_b?c=1", "link", "https://x.org/a_b?c=1"),
        StyledRun(")."),
    )


def test_entities_are_decoded_and_still_safe() -> None:
    assert inline("&lt;&copy;&#8238;&#10;x") == (StyledRun("<©⟦U+202E⟧ x"),)


def test_what_is_too_long_or_tangled_is_shown_as_typed() -> None:
    long = "**a** " * (MAX_MARKUP_CHARS // 5)
    assert inline(long) == (StyledRun(long),)
    assert inline("[" * 500) == (StyledRun("[" * 500),)
    assert inline("[\n   ]" * 500) == (StyledRun("[\n]" * 500),)


# Wrapping

_TEXT = st.text("ab  \n日本e\u0301❤\ufe0f😀é—", max_size=60)
_RUNS = st.lists(st.builds(StyledRun, _TEXT.filter(bool), st.sampled_from(("", "strong"))), max_size=5)


@settings(max_examples=100, deadline=None)
@given(_RUNS, st.integers(1, 20), st.booleans())
def test_wrapped_rows_fit_and_give_the_text_back(runs: list[StyledRun], width: int, words: bool) -> None:
    lines = wrap(runs, width, words=words)
    text = "".join(run.text for run in runs)
    assert copied(lines) == text + "\n"
    assert all(cell_len(line.text) <= max(width, 2) for line in lines)
    styled = "".join(run.style[:1] * len(run.text) or " " * len(run.text) for line in lines for run in line.runs)
    assert len(styled) == sum(len(line.text) for line in lines)


@settings(max_examples=60, deadline=None)
@given(_RUNS, st.integers(2, 20))
def test_no_row_begins_with_what_combines(runs: list[StyledRun], width: int) -> None:
    for before, after in pairwise(wrap(runs, width)):
        if before.joined == "" and after.text and before.text:
            assert after.text[0] not in "\u0301\ufe0f"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=20), st.integers(6, 30))
def test_rows_are_as_full_as_they_can_be(words: list[str], width: int) -> None:
    """Greedy, compared with words put down one by one."""
    expected = [words[0]]
    for word in words[1:]:
        if len(expected[-1]) + 1 + len(word) <= width:
            expected[-1] += f" {word}"
        else:
            expected.append(word)
    assert [line.text for line in wrap([StyledRun(" ".join(words))], width)] == expected
