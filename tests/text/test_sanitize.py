import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.sanitize import sanitize

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
INJECTIONS = {
    "clear screen": f"{ESC}[2J{ESC}[H",
    "bracketed paste end": f"{ESC}[201~",
    "answerback": "\x05",
    "title": f"{ESC}]0;owned{BEL}",
    "link": f"{ESC}]8;;http://example.com{ST}here{ESC}]8;;{ST}",
    "clipboard": f"{ESC}]52;c;cm0gLXJmIH4={BEL}",
    "unterminated osc": f"{ESC}]0;never ended",
    "tmux passthrough": f"{ESC}Ptmux;{ESC}{ESC}]52;c;AA=={BEL}{ST}",
    "reset": f"{ESC}c",
    "shift out": "\x0e",
    "esc alone": ESC,
    "csi in one byte": "\x9b2J",
    "dcs in one byte": "\x90q\x9c",
    "sos in one byte": "\x98\x9c",
    "next line": "a\x85b",
    "nul": "a\0b",
    "backspace": "rm\b\bls",
    "form feed": "a\x0cb",
    "substitute": "\x1a",
    "overwritten line": "harmless\rrm -rf",
    "bidi override": "\u202egnp.exe",
    "bidi marks": "\u200e\u200f\u061c",
    "zero width": "pass\u200bword\u200c\u2060\ufeff",
    "soft hyphen": "a\u00adb",
    "joined emoji": "\U0001f468\u200d\U0001f469",
    "tag characters": "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all"),
    "variation selectors that carry bytes": "a\U000e0101\U000e01ef",
    "line separators": "a\u2028b\u2029c",
    "invisible operators": "f\u2061x\u2062y\u2063z\u2064",
    "blank letters": "\u115f\u1160\u3164\uffa0",
    "mongolian separator": "\u180e",
    "surrogate": "a\ud800b",
}
SAFE = re.compile(r"[\n\t\x20-\x7e\xa0-\U0010ffff]*")


def test_nothing_that_a_terminal_obeys_or_hides_is_left() -> None:
    for name, text in INJECTIONS.items():
        shown = sanitize(text)
        assert shown != text, name
        assert SAFE.fullmatch(shown), name
        assert shown.isprintable() or "\n" in shown, name
        assert sanitize(shown) == shown, name


@given(st.text(), st.text())
def test_any_text_becomes_safe_in_any_pieces(first: str, second: str) -> None:
    shown = sanitize(first + second)
    assert SAFE.fullmatch(shown)
    shown.encode()
    assert sanitize(shown) == shown == sanitize(first) + sanitize(second)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "␛[31m"),
        ("a\x00b", "a␀b"),
        ("\x7f", "␡"),
        ("\x9b", "⟦U+009B⟧"),
        ("a\r\nb\rc", "a\nbc"),
        ("x\u202ey", "x⟦U+202E⟧y"),
        ("\U000e0041", "⟦U+E0041⟧"),
        ("\udc80", "⟦U+DC80⟧"),
        *((text, text) for text in ("", "def f():\n\treturn 'é'\n", "错误 😋 ❤️ 🇩🇪 e\u0301", "مرحبا שלום", "a\u00a0b")),
    ],
)
def test_unsafe_characters_are_spelled_out_and_others_kept(text: str, shown: str) -> None:
    assert sanitize(text) == shown
