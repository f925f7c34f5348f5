from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.registry import records
from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import Registry, load_registry, local_files, missing_files, shipped_file
from tests.support.registry_entries import ADAPTED, HASH, HEAD, PACKAGE, TARGET, VALID, WAITING, register


@pytest.fixture
def user_file(home: Path) -> Path:
    file = home / "config" / "models.toml"
    file.parent.mkdir(parents=True)
    return file


def test_a_user_entry_replaces_a_shipped_one_whole(user_file: Path) -> None:
    shipped = load_registry()
    user_file.write_text((HEAD + TARGET).replace('"mine"', '"qwen3-8b"'))
    merged = load_registry()
    assert list(merged.pairs) == list(shipped.pairs)
    pair = merged.pair("qwen3-8b")
    assert (pair.description, pair.drafter, pair.layers, pair.licence) == ("A pair of mine", None, None, None)
    assert merged.pair("qwen3-4b") == shipped.pair("qwen3-4b")


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


# Files


def shadow(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def mine(user_file: Path) -> Registry:
    user_file.write_text(VALID)
    return load_registry()


def test_missing_files_are_named_with_their_paths(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    with pytest.raises(ModelError) as caught:
        local_files(mine.pair("mine"))
    assert str(caught.value) == (
        "files of 'mine' are missing: run `localdflash models pull mine` "
        f"(download owner/name-GGUF/target-Q4_K_M.gguf into {models}/owner/name-GGUF; "
        f"download owner/name-DFlash/sub/model.safetensors into {models}/owner/name-DFlash/sub; "
        f"download owner/name-DFlash/sub/config.json into {models}/owner/name-DFlash/sub)"
    )
    assert not models.exists()


def test_local_files(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    target = shadow(models / "owner" / "name-GGUF" / "target-Q4_K_M.gguf")
    with pytest.raises(ModelError, match=r"\(download owner/name-DFlash"):
        local_files(mine.pair("mine"))
    shadow(models / "owner" / "name-DFlash" / "sub" / "config.json")
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


def test_a_pair_that_no_backend_runs_is_refused(home: Path) -> None:
    register(home, WAITING)
    with pytest.raises(ModelError, match=r"no backend runs 'waiting' yet; see `localdflash models show"):
        local_files(load_registry().pair("waiting"))


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


@pytest.mark.parametrize("spec", ["no.gguf", "/", "~nobody/x.gguf", "x\x00.gguf"])
def test_path_without_a_model_is_refused(spec: str) -> None:
    with pytest.raises(ModelError, match=r"(no such|a folder, not a) .gguf file"):
        load_registry().resolve(spec)


# Verified files


def test_a_file_that_shrank_since_it_was_verified_is_not_loaded(mine: Registry) -> None:
    pair = mine.pair("mine")
    for source in pair.sources:
        records.add(shadow(source.path), "o/n", "0" * 40, "main", HASH)
    local_files(pair)
    for source in pair.sources[:2]:
        source.path.write_bytes(b"GGU")
        with pytest.raises(ModelError, match="expected 4 bytes, got 3"):
            local_files(pair)
        source.path.write_bytes(b"GGUF")


# Replacements in VALID (old, new, old, new, ...), and what the complaint says. It must name the line with `HERE`.
BAD: list[tuple[tuple[str, ...], str]] = [
    (("schema = 1", "schema = 1\nshema = 2  # HERE"), "shema: unknown key; did you mean 'schema'?"),
    (("[pair.drafter]", "[pair.draftr]  # HERE"), "pair.draftr: unknown key; did you mean 'drafter'?"),
    (("[pair.drafter]", "[pair.sampling]\ntop_p = 0  # HERE\n[pair.drafter]"), "top_p: expected"),
    ((VALID, "# HERE"), "missing key 'schema'"),
    (("[[pair]]", "[[pair]]  # HERE", TARGET, ""), "has no [pair.target]"),
    (("[pair.target]", "[pair.target]  # HERE", 'repository = "owner/name-GGUF"', ""), "missing key 'repository'"),
    (
        ("[pair.target]", "[pair.target]  # HERE", 'repository = "owner/name-GGUF"', "", 'file = "target', "#"),
        "expected either repository and file, or path",
    ),
    (('"mine"', '"Mine"  # HERE'), "pair.id: expected an id"),
    (('["one", "two"]', '"one"  # HERE'), "pair.notes: expected an array, found text"),
    (("schema = 1", "schema = 2  # HERE"), "unknown schema (expected 1)"),
    (("4096", "0  # HERE"), "expected 64 to"),
    (("4096", f"0x{'f' * 5000}  # HERE"), "pair.context"),
    (("[1, 9, 17]", "[1, 36]  # HERE"), "block 36 is outside the target's 36 layers"),
    (("owner/name-GGUF", "../name"), "expected a repository"),
    (("target-Q4_K_M.gguf", "../target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "/etc/target.gguf"), "expected a file inside the repository"),
    (("target-Q4_K_M.gguf", "target.safetensors"), "expected a .gguf file, found 'target.safetensors'"),
    (("target-Q4_K_M.gguf", "NUL.gguf"), "reserved"),
    (
        (f'sha256 = "{HASH}"', f'sha256 = "{HASH}"  # HERE', "target-Q4_K_M.gguf", "t-00001-of-00003.gguf"),
        "cannot pin a model in several files; pin its revision",
    ),
    (("target-Q4_K_M.gguf", "t-00002-of-00003.gguf"), "expected the first part, t-00001-of-00003.gguf"),
    (('sha256 = "', 'revision = "../x"  # HERE\nsha256 = "'), "expected a commit or the name of a branch"),
    (
        ('repository = "owner/name-GGUF"\nfile = "target', 'path = "t.gguf"\nrevision = "main"  # HERE\n# "'),
        "a path on this machine has no revision",
    ),
    ((HASH, HASH[:-1]), "64 lower-case hexadecimal digits"),
    ((TARGET, PACKAGE, '"made-up"', '"../made-up"  # HERE'), "expected the name of a package"),
    ((TARGET, PACKAGE, 'version = "1.0"', 'version = "1.0"\nrevision = "v"  # HERE'), "not allowed with package"),
    (
        (TARGET, PACKAGE, "[pair.target]", '[pair.target]  # HERE\npath = "x.gguf"'),
        "expected either repository and file, or path, or package, version and file",
    ),
    *(
        ((TARGET, PACKAGE, "[pair.target]", "[pair.target]  # HERE", f"\n{key} = ", "\n# "), f"missing key {key!r}")
        for key in ("version", "wheel_sha256", "sha256")
    ),
    ((TARGET, ADAPTED, '"embedded"', '"nobody"  # HERE'), "no pair 'nobody' is defined above"),
    ((TARGET, ADAPTED, '"embedded"', '"smollm2-135m-code"  # HERE'), "is a merged target"),
    *(
        ((TARGET, ADAPTED, "[pair.target]", "[pair.target]  # HERE", f"{key} =", "#"), f"missing key {key!r}")
        for key in ("adapter", "sha256")
    ),
    ((VALID, "schema = 1\npair = 1  # HERE"), "pair: expected an array, found a whole number"),
    (("layers = 36", "layers = 36\nlayers = 37  # HERE"), "not valid TOML"),
]


def edited(replacements: tuple[str, ...]) -> tuple[str, int]:
    """VALID with replacements, and the line of the mark, else the line where the first replacement ends."""
    text = VALID
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    mark = "HERE" if "HERE" in text else replacements[1]
    return text, text[: text.index(mark)].count("\n") + 1


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


def test_a_target_that_is_made_here_is_read(user_file: Path) -> None:
    user_file.write_text(VALID.replace(TARGET, ADAPTED))
    pairs = load_registry().pairs
    target = pairs["mine"].target
    assert target.adapted
    assert target.adapted.base == pairs["embedded"].target
    assert target.adapted.adapter == str(user_file.parent / "a.safetensors")
    assert target.path == models_folder() / "adapted" / "taught.gguf"


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
        (b"schema = 1\n\x00", ":2: not valid TOML"),
        (b"", ":1: missing key 'schema'"),
        (b"schema = 1\na = " + b"[" * 100_000, "nested too deeply"),
        (b"schema = " + b"1" * 5000, "not valid TOML"),
        (b"#" * (1 << 20) + b"\n", "too large (expected at most 1048576 bytes, got 1048577)"),
    ],
    ids=["latin-1", "nul", "empty", "deep", "long number", "large"],
)
def test_unreadable_files_are_one_line_errors(data: bytes, message: str, user_file: Path) -> None:
    user_file.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_registry()
    assert message in str(caught.value)
    assert str(user_file) in str(caught.value)
    assert "\n" not in str(caught.value)
