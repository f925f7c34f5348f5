import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.errors import ModelError
from localdflash.registry import Registry, load_registry, local_files, missing_files, shipped_file
from localdflash.strict_toml import key_lines

HASH = "0123456789abcdef" * 4
HEAD = 'schema = 1\n\n[[pair]]\nid = "mine"\ndescription = "A pair of mine"\nbackends = ["llama.cpp"]\n'
FACTS = """\
architecture = "qwen3"
licence = "MIT"
memory_gb = 2.5
context = 4096
layers = 36
fim = "qwen"
notes = ["one", "two"]
"""
TARGET = f"""
[pair.target]
repository = "owner/name-GGUF"
file = "target-Q4_K_M.gguf"
quantization = "Q4_K_M"
sha256 = "{HASH}"
"""
DRAFTER = """
[pair.drafter]
kind = "dflash"
repository = "owner/name-DFlash"
file = "sub/model.safetensors"
block_size = 16
taps = [1, 9, 17]
"""
VALID = HEAD + FACTS + TARGET + DRAFTER

# Replacements in VALID (old, new, old, new, ...), and what the complaint says. It must name the line with `HERE`.
BAD: list[tuple[tuple[str, ...], str]] = [
    # keys
    (("schema = 1", "schema = 1\nshema = 2  # HERE"), "shema: unknown key; did you mean 'schema'?"),
    (("[[pair]]", "[[pairs]]  # HERE"), "pairs: unknown key; did you mean 'pair'?"),
    (('licence = "MIT"', 'license = "MIT"  # HERE'), "pair.license: unknown key; did you mean 'licence'?"),
    (("notes =", 'zebra = "striped"  # HERE\nnotes ='), "pair.zebra: unknown key"),
    (("[pair.drafter]", "[pair.draftr]  # HERE"), "pair.draftr: unknown key; did you mean 'drafter'?"),
    (("quantization", "quantisation"), "unknown key; did you mean 'quantization'?"),
    (("taps", "tap"), "unknown key; did you mean 'taps'?"),
    (("notes =", '"red \\u001b[31m" = 1  # HERE\nnotes ='), "pair.'red \\x1b[31m': unknown key"),
    # what must be there
    ((VALID, "# HERE"), "missing key 'schema'"),
    (("[[pair]]", "[[pair]]  # HERE", 'id = "mine"', ""), "missing key 'id'"),
    (("[[pair]]", "[[pair]]  # HERE", "description =", "#"), "missing key 'description'"),
    (("[[pair]]", "[[pair]]  # HERE", "backends =", "#"), "missing key 'backends'"),
    (("[[pair]]", "[[pair]]  # HERE", TARGET, ""), "has no [pair.target]"),
    (("[pair.drafter]", "[pair.drafter]  # HERE", "kind =", "#"), "missing key 'kind'"),
    (("[pair.target]", "[pair.target]  # HERE", 'repository = "owner/name-GGUF"', ""), "missing key 'repository'"),
    (("[pair.target]", "[pair.target]  # HERE", 'file = "target', "#"), "missing key 'file'"),
    (
        ("[pair.target]", "[pair.target]  # HERE", 'repository = "owner/name-GGUF"', "", 'file = "target', "#"),
        "expected either repository and file, or path",
    ),
    (("[pair.target]", '[pair.target]  # HERE\npath = "x.gguf"'), "expected either repository and file, or path"),
    # ids and words
    (('"mine"', '"Mine"  # HERE'), "pair.id: expected an id"),
    (('"mine"', '"my pair"  # HERE'), "expected an id"),
    (('"mine"', '".mine"  # HERE'), "expected an id"),
    (('"mine"', '"../mine"  # HERE'), "expected an id"),
    (('"mine"', '"miné"  # HERE'), "expected an id"),
    (('"mine"', f'"{"a" * 65}"  # HERE'), "at most 64 characters"),
    (('"mine"', '""  # HERE'), "expected one line of printable text"),
    (('"mine"', '"mine\\u0000"  # HERE'), "printable"),
    (('"mine"', "8  # HERE"), "expected text, found a whole number"),
    (('"mine"', "1979-05-27  # HERE"), "expected text, found a date or time"),
    (('"qwen3"', '"qwen 3"  # HERE'), "expected a name"),
    (('"qwen"', '["qwen"]  # HERE'), "expected text, found an array"),
    (('"A pair of mine"', '"red \\u001b[31m"  # HERE'), "printable"),
    (('"A pair of mine"', '"turned \\u202e"  # HERE'), "printable"),
    (('"A pair of mine"', '"two\\nlines"  # HERE'), "one line"),
    (('"A pair of mine"', f'"{"long" * 100}"  # HERE'), "at most 300"),
    (('["one", "two"]', '"one"  # HERE'), "pair.notes: expected an array, found text"),
    (('["one", "two"]', '[ # HERE\n  "]",\n  1,\n]'), "pair.notes: expected text, found a whole number"),
    (('["llama.cpp"]', '["llamacpp"]  # HERE'), "did you mean 'llama.cpp'?"),
    (('["llama.cpp"]', '"torch"  # HERE'), "expected an array"),
    (('"dflash"', '"dflash3"  # HERE'), "expected one of dflash, dflash2, found 'dflash3'"),
    # numbers
    (("schema = 1", "schema = 2  # HERE"), "reads schema 1"),
    (("schema = 1", "schema = '1'  # HERE"), "expected a whole number, found text"),
    (("schema = 1", "schema = true  # HERE"), "expected a whole number, found true or false"),
    (("2.5", "-1  # HERE"), "expected 0.01 to 10000, found -1"),
    (("2.5", "nan  # HERE"), "found nan"),
    (("2.5", "inf  # HERE"), "found inf"),
    (("2.5", "'2 GB'  # HERE"), "expected a number, found text"),
    (("2.5", "false  # HERE"), "expected a number, found true or false"),
    (("4096", "0  # HERE"), "expected 64 to"),
    (("4096", "4096.0  # HERE"), "expected a whole number, found a number"),
    (("4096", f"0x{'f' * 5000}  # HERE"), "pair.context"),
    (("layers = 36", "layers = 0  # HERE"), "expected 1 to"),
    (("block_size = 16", "block_size = 1  # HERE"), "expected 2 to 64"),
    (("block_size = 16", "block_size = 65  # HERE"), "expected 2 to 64"),
    (("[1, 9, 17]", "[]  # HERE"), "ascending"),
    (("[1, 9, 17]", "[9, 1]  # HERE"), "ascending"),
    (("[1, 9, 17]", "[1, 1]  # HERE"), "ascending blocks, each once"),
    (("[1, 9, 17]", "[-1]  # HERE"), "expected 0 to"),
    (("[1, 9, 17]", "[1, 36]  # HERE"), "block 36 is not below the target's 36 layers"),
    (("[1, 9, 17]", "[1, '2']  # HERE"), "expected a whole number, found text"),
    (("[1, 9, 17]", "[[1]]  # HERE"), "expected a whole number, found an array"),
    (("[1, 9, 17]", "{a = 1}  # HERE"), "expected an array, found a table"),
    # repositories, files, hashes
    (("owner/name-GGUF", "name"), "expected a repository, owner/name"),
    (("owner/name-GGUF", "a/b/c"), "expected a repository"),
    (("owner/name-GGUF", "../name"), "expected a repository"),
    (("owner/name-GGUF", "owner/.."), "expected a repository"),
    (("owner/name-GGUF", "owner/na me"), "expected a repository"),
    (("owner/name-GGUF", "owner/näme"), "expected a repository"),
    (("owner/name-GGUF", "https://example.org/x"), "expected a repository"),
    (("owner/name-GGUF", "owner/" + "n" * 200), "expected a repository"),
    (("target-Q4_K_M.gguf", "../target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "a/../../target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "/etc/target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "C:\\\\target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "C:target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "\\\\\\\\server\\\\target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "./target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "a//target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "x" * 300 + ".gguf"), "at most 300"),
    (("target-Q4_K_M.gguf", "target.safetensors"), "expected a .gguf file, found 'target.safetensors'"),
    (("sub/model.safetensors", "model.bin"), "expected a .gguf or .safetensors file"),
    (("sub/model.safetensors", "model.safetensors/"), "expected a file inside"),
    ((HASH, HASH[:-1]), "64 lower-case hexadecimal digits"),
    ((HASH, HASH.upper()), "64 lower-case hexadecimal digits"),
    # shapes
    ((VALID, "schema = 1\npair = 1  # HERE"), "pair: expected an array, found a whole number"),
    ((VALID, "schema = 1\npair = [  # HERE\n1]"), "pair: expected a table, found a whole number"),
    (("[[pair]]", "[pair]  # HERE"), "pair: expected an array, found a table"),
    (("notes =", "drafter = 7  # HERE\nnotes =", DRAFTER, ""), "pair.drafter: expected a table"),
    # syntax
    (('"mine"', '"mine  # HERE'), "not valid TOML"),
    (("layers = 36", "layers = 36\nlayers = 37  # HERE"), "not valid TOML"),
    (("layers = 36", "layers 36  # HERE"), "not valid TOML"),
    (("[pair.drafter]", "[pair.target]  # HERE"), "not valid TOML"),
    (("[1, 9, 17]\n", "[1,\n9  # HERE"), "not valid TOML"),
]


def edited(replacements: tuple[str, ...]) -> tuple[str, int]:
    """VALID with replacements, and the line of the mark, else the line where the first replacement ends."""
    text = VALID
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    mark = "HERE" if "HERE" in text else replacements[1]
    return text, text[: text.index(mark)].count("\n") + 1


@pytest.fixture
def user_file(home: Path) -> Path:
    file = home / "config" / "models.toml"
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize(("replacements", "message"), BAD, ids=[f"{bad[0][1]:.24}-{bad[1]:.24}" for bad in BAD])
def test_bad_entries_are_refused_with_their_line(replacements: tuple[str, ...], message: str, user_file: Path) -> None:
    text, line = edited(replacements)
    user_file.write_text(text)
    with pytest.raises(ModelError) as caught:
        load_registry()
    said = str(caught.value)
    assert said.startswith(f"{user_file}:{line}: "), said
    assert message in said
    assert "\n" not in said


def test_the_base_of_the_bad_entries_is_good(user_file: Path) -> None:
    user_file.write_text(VALID)
    pair = load_registry().pair("mine")
    assert (pair.memory_gb, pair.context, pair.layers, pair.notes) == (2.5, 4096, 36, ("one", "two"))
    assert (pair.target.repository, pair.target.quantization, pair.target.sha256) == ("owner/name-GGUF", "Q4_K_M", HASH)
    assert pair.drafter
    assert (pair.drafter.kind, pair.drafter.format, pair.drafter.taps) == ("dflash", "safetensors", (1, 9, 17))
    assert pair.origin == user_file


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_lines_are_counted_with_any_line_end(end: str, user_file: Path) -> None:
    text, line = edited(("4096", "0 # HERE"))
    user_file.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(ModelError, match=f":{line}: pair.context"):
        load_registry()


def test_an_id_may_come_once_in_a_file(user_file: Path) -> None:
    second = VALID.removeprefix("schema = 1\n").replace('id = "mine"', 'id = "mine"  # HERE')
    user_file.write_text(VALID + second)
    line = (VALID + second)[: (VALID + second).index("HERE")].count("\n") + 1
    with pytest.raises(ModelError) as caught:
        load_registry()
    assert str(caught.value) == f"{user_file}:{line}: pair.id: 'mine' is already defined on line 4"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"schema = 1\n# \xff\n", ":2: not UTF-8"),
        (b"\xef\xbb\xbfschema = 1\n", ":1: not valid TOML"),
        (b"schema = 1\n\x00", ":2: not valid TOML"),
        (b"", ":1: missing key 'schema'"),
        (b"schema = 1\na = " + b"[" * 100_000, "nested too deeply"),
        (b"schema = " + b"1" * 5000, "not valid TOML"),
        (b"#" * (1 << 20) + b"\n", "at most 1048576 are read"),
    ],
    ids=["latin-1", "bom", "nul", "empty", "deep", "long number", "large"],
)
def test_unreadable_files_are_one_line_errors(data: bytes, message: str, user_file: Path) -> None:
    user_file.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_registry()
    assert message in str(caught.value)
    assert str(user_file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs and links")
@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
def test_what_is_not_a_file_is_refused_at_once(kind: str, user_file: Path) -> None:
    match kind:
        case "folder":
            user_file.mkdir()
        case "fifo":
            os.mkfifo(user_file)
        case _:
            user_file.symlink_to("nowhere")
    with pytest.raises(ModelError, match=r"models\.toml"):
        load_registry()


def test_a_user_entry_replaces_a_shipped_one_whole(user_file: Path) -> None:
    shipped = load_registry()
    user_file.write_text((HEAD + TARGET).replace('"mine"', '"qwen3-8b"'))
    merged = load_registry()
    assert list(merged.pairs) == list(shipped.pairs)
    pair = merged.pair("qwen3-8b")
    assert (pair.description, pair.drafter, pair.layers, pair.licence) == ("A pair of mine", None, None, None)
    assert merged.pair("qwen3-4b") == shipped.pair("qwen3-4b")


def test_a_user_entry_is_added_after_the_shipped_ones(user_file: Path) -> None:
    shipped = load_registry()
    user_file.write_text(VALID)
    assert list(load_registry().pairs) == [*shipped.pairs, "mine"]


def test_the_working_folder_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "workspace"
    for folder in (workspace, workspace / "config", workspace / "localdflash", workspace / ".localdflash"):
        folder.mkdir()
        (folder / "models.toml").write_text(VALID)
    (workspace / "embedded").write_bytes(b"GGUF")
    monkeypatch.chdir(workspace)
    registry = load_registry()
    assert "mine" not in registry.pairs
    assert registry.resolve("embedded").origin == shipped_file()


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("qwen3-9b", "qwen3-8b"), ("Qwen3-8B", "qwen3-8b"), ("gemma4-31b", "gemma-4-31b"), ("embeded", "embedded")],
)
def test_a_near_id_is_guessed(asked: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"no pair '{asked}'; did you mean '{meant}'\\?"):
        load_registry().resolve(asked)


@pytest.mark.parametrize("asked", ["", "zzz", "\x1b[31m", "a\nb", "\ud800"])
def test_an_id_that_is_near_nothing(asked: str) -> None:
    with pytest.raises(ModelError, match="models list") as caught:
        load_registry().resolve(asked)
    assert str(caught.value).isprintable()


# The shipped registry


def test_shipped_entries() -> None:
    document = tomllib.loads(shipped_file().read_text())
    pairs = load_registry().pairs
    assert list(pairs) == [entry["id"] for entry in document["pair"]]
    assert next(iter(pairs)) == "embedded"
    for wanted in ("qwen3-4b", "qwen3-8b", "qwen3-coder-30b-a3b", "qwen3.6-27b", "gpt-oss-20b", "llama-3.1-8b"):
        assert wanted in pairs


@pytest.mark.parametrize("pair_id", load_registry().pairs)
def test_every_shipped_entry_says_what_a_user_needs(pair_id: str) -> None:
    pair = load_registry().pair(pair_id)
    assert len(pair.description) <= 60
    assert pair.memory_gb
    assert pair.architecture
    assert pair.drafter
    assert pair.backends or pair.notes, "a pair that nothing runs says why"
    if pair.drafter.kind == "dflash2":
        assert not pair.backends
    if pair.target.repository:
        assert pair.target.quantization
        assert pair.target.quantization in pair.target.file
        assert pair.drafter.repository
        assert pair.drafter.repository.startswith("z-lab/")


@pytest.mark.parametrize("pair_id", [pair.id for pair in load_registry().pairs.values() if pair.layers])
def test_taps_follow_the_published_formula(pair_id: str) -> None:
    # round(1 + i (N - 4) / (n - 1)) for n taps of N blocks, as the published checkpoints have it
    pair = load_registry().pair(pair_id)
    if pair.drafter is None or pair.drafter.taps is None or pair.layers is None:
        return
    n = len(pair.drafter.taps)
    assert pair.drafter.taps == tuple(round(1 + i * (pair.layers - 4) / (n - 1)) for i in range(n))


# Files


def shadow(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def mine(user_file: Path) -> Registry:
    user_file.write_text(VALID)
    return load_registry()


def test_missing_files_are_named_with_where_they_go(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    with pytest.raises(ModelError) as caught:
        local_files(mine.pair("mine"))
    assert str(caught.value) == (
        "files of 'mine' are missing: "
        f"download owner/name-GGUF/target-Q4_K_M.gguf into {models}/owner/name-GGUF; "
        f"download owner/name-DFlash/sub/model.safetensors and config.json into {models}/owner/name-DFlash/sub"
    )
    assert not models.exists()


def test_local_files(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    target = shadow(models / "owner" / "name-GGUF" / "target-Q4_K_M.gguf")
    with pytest.raises(ModelError, match="missing: download owner/name-DFlash"):
        local_files(mine.pair("mine"))
    safetensors = shadow(models / "owner" / "name-DFlash" / "sub" / "model.safetensors")
    local = local_files(mine.pair("mine"))
    assert (local.target, local.drafter_gguf, local.drafter_safetensors) == (target, None, safetensors)
    assert (local.id, local.fim, local.context) == ("mine", "qwen", 4096)
    gguf = shadow(safetensors.with_suffix(".gguf"))
    assert local_files(mine.pair("mine")).drafter_gguf == gguf
    safetensors.unlink()
    assert local_files(mine.pair("mine")).drafter_safetensors is None
    target.unlink()
    target.mkdir()
    assert missing_files(mine.pair("mine")) == (mine.pair("mine").target,)


def test_a_drafter_that_nothing_runs_is_left_out(user_file: Path, home: Path) -> None:
    user_file.write_text(VALID.replace('"dflash"', '"dflash2"'))
    shadow(home / "cache" / "models" / "owner" / "name-GGUF" / "target-Q4_K_M.gguf")
    shadow(home / "cache" / "models" / "owner" / "name-DFlash" / "sub" / "model.safetensors")
    local = local_files(load_registry().pair("mine"))
    assert (local.drafter_gguf, local.drafter_safetensors) == (None, None)


def test_a_pair_that_no_backend_runs_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no backend runs 'qwen3.6-27b' yet; see `localdflash models show"):
        local_files(load_registry().pair("qwen3.6-27b"))


def test_paths_of_a_user_entry_start_at_its_file(user_file: Path, tmp_path: Path) -> None:
    entry = HEAD + "[pair.target]\npath = 'weights/t.gguf'\n[pair.drafter]\nkind = 'dflash'\npath = '{}'\n"
    drafter = tmp_path / "elsewhere" / "d.gguf"
    user_file.write_text(entry.format(drafter))
    pair = load_registry().pair("mine")
    with pytest.raises(ModelError, match=r"no file at .*t\.gguf: put it there, or correct the entry"):
        local_files(pair)
    local = local_files_after(pair.target.path, drafter)
    assert (local.target, local.drafter_gguf) == (user_file.parent / "weights" / "t.gguf", drafter)


def local_files_after(*files: Path) -> Any:
    for file in files:
        shadow(file)
    return local_files(load_registry().pair("mine"))


def test_embedded_is_inside_the_package() -> None:
    import localdflash

    pair = load_registry().resolve("embedded")
    folder = Path(localdflash.__file__).parent / "embedded"
    assert pair.target.path == folder / "target.gguf"
    assert pair.drafter
    assert pair.drafter.path == folder / "drafter.safetensors"


@pytest.mark.parametrize(
    ("target", "beside", "drafter"),
    [
        ("target.gguf", [], None),
        ("target.gguf", ["drafter.gguf"], "gguf"),
        ("my-target-q4.gguf", ["my-drafter-q4.safetensors"], "safetensors"),
        ("model.gguf", ["model.safetensors", "drafter.gguf"], None),
    ],
)
def test_a_pair_by_path(target: str, beside: list[str], drafter: str | None, tmp_path: Path) -> None:
    path = shadow(tmp_path / target)
    for name in beside:
        shadow(tmp_path / name)
    pair = load_registry().resolve(str(path))
    assert pair.id == str(path)
    assert (pair.drafter.format if pair.drafter else None) == drafter
    local = local_files(pair)
    assert local.target == path
    assert [local.drafter_gguf, local.drafter_safetensors].count(None) == (1 if drafter else 2)


def test_a_relative_path_and_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shadow(tmp_path / "target.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    registry = load_registry()
    for spec in ("target.gguf", "./target.gguf", "~/target.gguf"):
        assert registry.resolve(spec).target.path == path


@pytest.mark.parametrize("spec", ["no.gguf", "./embedded", "/", "~nobody/x.gguf", "a/b", "a\\b", "x\x00.gguf"])
def test_a_path_that_is_no_model(spec: str) -> None:
    with pytest.raises(ModelError, match=r"no such .gguf file"):
        load_registry().resolve(spec)


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
