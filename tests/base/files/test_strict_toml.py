import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.files.strict_toml import key_lines, read_toml

# Lines of keys: an independent oracle writes the line into every value.

names = st.sampled_from(["a", "b", "c.d", "e f", "#", "[x]", '"', "x = 1"])
strings = st.text(st.sampled_from("ab#[]{}=\"'\\\n,. é"), max_size=8)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[tuple[str | int, ...], int]]:
    """A document of root keys and arrays of tables with a table inside, and the line of every key."""
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}

    def emit(text: str, *where: str | int) -> None:
        for _ in range(draw(st.integers(0, 2))):
            lines.append(draw(st.sampled_from(["", "# [no] table = {", "   ", '\t# \'x """ ['])))
        expected.setdefault(where, len(lines) + 1)
        lines.extend(text.split("\n"))

    def keys(*where: str | int) -> None:
        for name in draw(st.lists(names, unique=True, max_size=4)):
            emit(f"{quoted(name)} = {draw(values())}", *where, name)

    keys()
    for i in range(draw(st.integers(0, 3))):
        emit("[[ pair ]] # [[other]]", "pair", i)
        keys("pair", i)
        if draw(st.booleans()):
            emit('[pair."in.ner"]', "pair", i, "in.ner")
            keys("pair", i, "in.ner")
    return "\n".join(lines), expected


@st.composite
def values(draw: st.DrawFn) -> str:
    text = draw(strings)
    forms = [quoted(text), "1.5", "true", f"[ {quoted(text)}, # ]\n  [2,\n 3], ]", f"{{ k = {quoted(text)} }}"]
    forms.append('"""' + text.replace("\\", "\\\\").replace('"""', "").rstrip('"') + '"""')
    forms.append("'''" + text.replace("'", "") + "'''")
    return draw(st.sampled_from(forms))


@given(documents())
def test_lines_of_keys(document: tuple[str, dict[tuple[str | int, ...], int]]) -> None:
    text, expected = document
    tomllib.loads(text)
    found = key_lines(text)
    assert {where: found[where] for where in expected} == expected


def test_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[model]\r\nthreads = 2\r\n")
    model = read_toml(file).table("model")
    assert model
    assert (model.line("threads"), model.optional("threads", lambda value: value)) == (2, 2)
