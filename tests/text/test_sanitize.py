import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.sanitize import sanitize

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
INJECTIONS = [
    *(f"{ESC}[2J{ESC}[H", f"{ESC}[201~", "\x05", f"{ESC}]0;owned{BEL}", f"{ESC}]52;c;cm0gLXJmIH4={BEL}", f"{ESC}c"),
    *(f"{ESC}]8;;http://example.com{ST}here{ESC}]8;;{ST}", f"{ESC}]0;never ended", "\x0e", ESC),
    f"{ESC}Ptmux;{ESC}{ESC}]52;c;AA=={BEL}{ST}",  # tmux passes it through
    *("\x9b2J", "\x90q\x9c", "\x98\x9c"),  # CSI, DCS and SOS in one byte
    *("a\x85b", "a\0b", "rm\b\bls", "a\x0cb", "\x1a", "harmless\rrm -rf", "a\ud800b"),
    *("\u202egnp.exe", "\u200e\u200f\u061c", "pass\u200bword\u200c\u2060\ufeff", "a\u00adb"),
    "\U0001f468\u200d\U0001f469",  # joined emoji
    "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all"),  # tag characters
    *("a\U000e0101\U000e01ef", "a\u2028b\u2029c", "f\u2061x\u2062y\u2063z\u2064", "\u115f\u1160\u3164\uffa0", "\u180e"),
]
SAFE = re.compile(r"[\n\t\x20-\x7e\xa0-\U0010ffff]*")


def test_control_and_invisible_characters_are_removed() -> None:
    for text in INJECTIONS:
        shown = sanitize(text)
        assert shown != text
        assert SAFE.fullmatch(shown), text
        assert shown.isprintable() or "\n" in shown, text
        assert sanitize(shown) == shown, text


@given(st.text(), st.text())
def test_sanitising_does_not_depend_on_chunking(first: str, second: str) -> None:
    shown = sanitize(first + second)
    assert SAFE.fullmatch(shown)
    shown.encode()
    assert sanitize(shown) == shown == sanitize(first) + sanitize(second)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "␛[31m"),
        ("\x7f", "␡"),
        ("a\r\nb\rc", "a\nbc"),
        ("x\u202ey", "x⟦U+202E⟧y"),
        ("\U000e0041", "⟦U+E0041⟧"),
        *((text, text) for text in ("", "def f():\n\treturn 'é'\n", "错误 😋 ❤️ 🇩🇪 e\u0301", "مرحبا שלום", "a\u00a0b")),
    ],
)
def test_unsafe_characters_are_spelled_out_and_others_unmodified(text: str, shown: str) -> None:
    assert sanitize(text) == shown
