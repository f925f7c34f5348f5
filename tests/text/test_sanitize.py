import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.sanitize import sanitize

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
INJECTIONS = {
    "clear screen": f"{ESC}[2J{ESC}[H",
    "colour": f"{ESC}[31mred{ESC}[0m",
    "cursor up and erase": f"{ESC}[1A{ESC}[2K",
    "alternate screen": f"{ESC}[?1049h",
    "mouse reporting": f"{ESC}[?1003h",
    "bracketed paste end": f"{ESC}[201~",
    "private modes off": f"{ESC}[!p",
    "status report": f"{ESC}[6n",
    "device attributes": f"{ESC}[c",
    "answerback": "\x05",
    "title": f"{ESC}]0;owned{BEL}",
    "title with ST": f"{ESC}]2;owned{ST}",
    "icon": f"{ESC}]1;owned{BEL}",
    "palette": f"{ESC}]4;1;?{BEL}",
    "link": f"{ESC}]8;;http://example.com{ST}here{ESC}]8;;{ST}",
    "notification": f"{ESC}]9;hello{BEL}",
    "notification 777": f"{ESC}]777;notify;a;b{BEL}",
    "clipboard": f"{ESC}]52;c;cm0gLXJmIH4={BEL}",
    "clipboard read": f"{ESC}]52;c;?{ST}",
    "iterm file": f"{ESC}]1337;File=name=eA==:AAAA{BEL}",
    "unterminated osc": f"{ESC}]0;never ended",
    "dcs": f"{ESC}P$q m{ST}",
    "sixel": f"{ESC}Pq#0;2;0;0;0{ST}",
    "tmux passthrough": f"{ESC}Ptmux;{ESC}{ESC}]52;c;AA=={BEL}{ST}",
    "apc": f"{ESC}_Gf=24;AAAA{ST}",
    "pm": f"{ESC}^private{ST}",
    "sos": f"{ESC}Xstring{ST}",
    "reset": f"{ESC}c",
    "charset": f"{ESC}(0",
    "shift out": "\x0e",
    "shift in": "\x0f",
    "keypad": f"{ESC}=",
    "esc alone": ESC,
    "csi in one byte": "\x9b2J",
    "osc in one byte": "\x9d52;c;AA==\x9c",
    "dcs in one byte": "\x90q\x9c",
    "apc in one byte": "\x9f\x9c",
    "pm in one byte": "\x9e\x9c",
    "sos in one byte": "\x98\x9c",
    "next line": "a\x85b",
    "reverse index": "\x8d",
    "nul": "a\0b",
    "backspace": "rm\b\bls",
    "bell": BEL,
    "vertical tab": "a\x0bb",
    "form feed": "a\x0cb",
    "cancel": "\x18",
    "substitute": "\x1a",
    "delete": "\x7f",
    "overwritten line": "harmless\rrm -rf",
    "bidi override": "\u202egnp.exe",
    "bidi embedding": "\u202a\u202b\u202c\u202d",
    "bidi isolate": "\u2066a\u2067b\u2068c\u2069",
    "bidi marks": "\u200e\u200f\u061c",
    "zero width": "pass\u200bword\u200c\u2060\ufeff",
    "soft hyphen": "a\u00adb",
    "joined emoji": "\U0001f468\u200d\U0001f469",
    "tag characters": "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all"),
    "variation selectors that carry bytes": "a\U000e0101\U000e01ef",
    "line separators": "a\u2028b\u2029c",
    "annotations": "\ufff9a\ufffab\ufffb",
    "invisible operators": "f\u2061x\u2062y\u2063z\u2064",
    "deprecated format": "\u206a\u206f",
    "blank letters": "\u115f\u1160\u3164\uffa0",
    "mongolian separator": "\u180e",
    "surrogate": "a\ud800b",
}
SAFE = re.compile(r"[\n\t\x20-\x7e\xa0-\U0010ffff]*")


@pytest.mark.parametrize("text", INJECTIONS.values(), ids=INJECTIONS.keys())
def test_nothing_obeyed_or_unseen_is_left(text: str) -> None:
    shown = sanitize(text)
    assert shown != text
    assert SAFE.fullmatch(shown)
    assert shown.isprintable() or "\n" in shown
    assert sanitize(shown) == shown


@given(st.text())
def test_any_text_becomes_safe_and_stays_so(text: str) -> None:
    shown = sanitize(text)
    assert SAFE.fullmatch(shown)
    shown.encode()
    assert sanitize(shown) == shown


@given(st.text(), st.text())
def test_pieces_make_no_difference(first: str, second: str) -> None:
    assert sanitize(first) + sanitize(second) == sanitize(first + second)


@pytest.mark.parametrize(
    "text", ["", "def f():\n\treturn 'é'\n", "错误 😋 ❤️ 🇩🇪 e\u0301", "مرحبا שלום", "a\u00a0b ⟦U+202E⟧ ␛"]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert sanitize(text) is text or sanitize(text) == text


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
    ],
)
def test_how_it_looks(text: str, shown: str) -> None:
    assert sanitize(text) == shown
