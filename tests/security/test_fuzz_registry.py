"""Fuzzer of models.toml: its pairs have safe names, or one error line names the file."""

import re
import time
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import Registry, shipped_file
from localdflash.models.registry.registry_file import read_pairs
from tests.security.fuzzing import fuzz, long_enough
from tests.support.registry_entries import HEAD, TARGET, VALID

SEEDS = [VALID.encode(), (HEAD + TARGET).encode(), shipped_file().read_bytes()[:6000]]
SAFE_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")

TEXTS = [
    *("mine", "../x.gguf", "/etc/passwd", "a/b", "x.gguf", "x.safetensors", "con.gguf", "a" * 400, "dflash", "~"),
    *("llama.cpp", "torch", "0" * 64, "main", "\x1b[2J", "\u202e", "a\0b", "C:\\x.gguf", "", "~nobody/x.gguf"),
]
VALUES = [
    *(repr(text) for text in TEXTS),
    *(str(number) for number in (0, 1, -1, 16, 63, 4096, 2**31, 2**63, 2**64, "9" * 4000, "9" * 5000)),
    *("true", "1979-05-27", "07:32:00", "nan", "+inf", "0b1", "_", "0x" + "f" * 5000, "[]", "{}", "[[1], {a.b = 2}]"),
]
LINES = [
    *("[[pair]]", "[pair]", "[pair.target]", "[pair.drafter]", "[target]", "[[pair.target]]", "schema = 1", "x.y = 1"),
    *("# comment", "", "'''", '"""', "[", "]]", "a =", "= 1", "\ufeff", "\r", "\x0c", 'kind = ""', "taps = [1]"),
    *("a = " + "[" * depth + "]" * depth for depth in (10, 400, 600)),
    *(".".join("a" * parts) + " = 1" for parts in (3, 100, 3000)),
]

# Parts of a valid file are dropped, doubled, moved or replaced.
PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([value.encode() for value in VALUES]),
    st.sampled_from([f"\n{line}\n".encode() for line in LINES]),
    st.sampled_from([b'"', b"'", b"\\", b"\n", b"[", b"]", b"{", b"}", b"=", b"#", b".", b"\0", b"\xff", b"\xc3"]),
)
DAMAGE = st.tuples(st.integers(0, 4095), st.sampled_from([0, 0, 1, 4, 40]), PIECES)
DAMAGES = st.lists(DAMAGE, min_size=1, max_size=1) | st.lists(DAMAGE, min_size=1, max_size=5)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    content = draw(st.sampled_from(SEEDS))
    for place, dropped, put in draw(DAMAGES):
        at = place * len(content) // 4096
        content = content[:at] + put + content[at + dropped :]
    if not draw(st.integers(0, 3)):
        first, second = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
        content = content[:second] + content[first:second] + content[second:]
    return content


def check(file: Path, content: bytes) -> dict[str, PairEntry] | None:
    """Return the pairs, or None if the file is refused in one printable line."""
    file.write_bytes(content)
    start = time.thread_time()
    try:
        pairs = read_pairs(file, file.parent)
    except ModelError as error:
        line = str(error)
    else:
        for pair in pairs.values():
            is_safe(pair, file)
        return pairs
    finally:
        assert time.thread_time() - start < 2
    assert line.isprintable()
    assert len(line) < len(str(file)) + 700
    assert line.startswith(f"{file}: ")
    return None


def is_safe(pair: PairEntry, file: Path) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", pair.id)
    assert pair.description.isprintable()
    for source in pair.sources:
        if source.repository:
            assert SAFE_NAME.fullmatch(source.file)
            assert SAFE_NAME.fullmatch(source.repository)
            assert ".." not in PurePosixPath(source.file).parts
    registry = Registry({pair.id: pair})
    assert registry.resolve(pair.id) == pair
    with pytest.raises(ModelError):
        registry.pair(pair.id + "x")


@pytest.mark.nightly
@long_enough
def test_fuzz(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    outcomes = {"read": 0, "refused": 0}

    def one(content: bytes) -> None:
        outcomes["refused" if check(file, content) is None else "read"] += 1

    fuzz(mutated(), one)
    assert min(outcomes.values()) > 0, outcomes


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    for line in (
        "x = " + "[" * 495 + "]" * 495,
        ".".join("x" * 2000) + " = 1",
        "[" + ".".join("x" * 2000) + "]",
        ".".join("x" * 500_000) + " = 1",  # tomllib takes minutes and gigabytes
        "x = " + "{x.x.x.x = " * 300 + "1" + "}" * 300,
        "x = [" + "{x.x.x.x = \n" * 300,
    ):
        assert check(file, b"schema = 1\n" + line.encode()) is None
        with pytest.raises(ModelError, match=r"nested too deeply \(at line \d+\)"):
            read_pairs(file, tmp_path)


def test_dots_in_text_and_numbers_are_not_nesting(tmp_path: Path) -> None:
    text = VALID.replace("A pair of mine", "a." * 100).replace("# ", "# " + "." * 100)
    assert check(tmp_path / "models.toml", (text + "# " + "[." * 100).encode())
