from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.registry import records
from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import Registry, load_registry, local_files, missing_files, shipped_file
from tests.support.registry_entries import ADAPTED, DRAFTER, HASH, HEAD, PACKAGE, TARGET, VALID, WAITING, register


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
    with pytest.raises(ModelError, match=r"run `localdflash models pull mine --drafter hf:a/b@v1/c.gguf`"):
        local_files(mine.resolve("mine", "hf:a/b@v1/c.gguf"))


def test_local_files(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    target = shadow(models / "owner" / "name-GGUF" / "target-Q4_K_M.gguf")
    with pytest.raises(ModelError, match=r"\(download owner/name-DFlash"):
        local_files(mine.pair("mine"))
    shadow(models / "owner" / "name-DFlash" / "sub" / "config.json")
    safetensors = shadow(models / "owner" / "name-DFlash" / "sub" / "model.safetensors")
    local = local_files(mine.pair("mine"))
    assert (local.target, local.drafter_gguf, local.drafter_safetensors) == (target, None, safetensors)
    assert (local.id, local.fim) == ("mine", "qwen")
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


# Replacements in VALID (old, new, old, new, ...), and the error after the file's name; "@": after the pair's name.
HUB, IN_PARTS = 'repository = "owner/name-GGUF"', "t-00001-of-00003.gguf"
BAD: list[tuple[tuple[str, ...], str]] = [
    (("schema = 1", "schema = 1\nshema = 2"), "'shema': unexpected key; did you mean 'schema'?"),
    ((VALID, ""), "schema: missing"),
    (("schema = 1", "schema = 2"), "schema: expected 1; update localdflash"),
    ((VALID, "schema = 1\npair = 1"), "pair: expected array, got int"),
    (("[pair.drafter]", "[pair.draftr]"), "@'draftr': unexpected key; did you mean 'drafter'?"),
    (("[pair.drafter]", "[pair.sampling]\ntop_p = 0\n[pair.drafter]"), "@sampling.top_p: expected float >= 1e-06"),
    ((TARGET, ""), "@target: missing"),
    ((HUB, ""), "@target: expected exactly one of the keys repository, path, package, base"),
    ((HUB, f'{HUB}\npath = "x.gguf"'), "@target: expected exactly one of the keys"),
    (('"mine"', '"Mine"'), "pair 'Mine': id: expected an id of a-z"),
    (("A pair of mine", "A pair\\nof mine"), "@description: expected one line of printable text"),
    (("A pair of mine", " "), "@description: expected text"),
    (('["one", "two"]', '"one"'), "@notes: expected array, got str"),
    (
        ('["llama.cpp"]', '["lama.cpp"]'),
        "@backends: expected one of cpu, cuda, llama.cpp, torch, found 'lama.cpp'; did",
    ),
    (("4096", "0"), "@context: expected int >= 64"),
    (("4096", f"0x{'f' * 5000}"), "@context: expected int <= 100000000"),
    (("4096", "1979-05-27"), "@context: expected int, got date"),
    (("[1, 9, 17]", "[1, 36]"), "@drafter.taps: block 36 is outside the target's 36 layers"),
    (("[1, 9, 17]", "[9, 1]"), "@drafter.taps: expected ascending, distinct blocks"),
    ((DRAFTER, ADAPTED.replace("target", "drafter")), "@drafter: expected exactly one of the keys"),
    (("owner/name-GGUF", "../name"), "@target.repository: expected a repository, owner/name"),
    (("target-Q4_K_M.gguf", "../target.gguf"), "@target.file: expected a file inside the repository, without '..', a"),
    (("target-Q4_K_M.gguf", "target.safetensors"), "@target.file: expected a .gguf file, found 'target.safetensors'"),
    (("target-Q4_K_M.gguf", "NUL.gguf"), "@target.file: expected a file inside the repository, without"),
    (("target-Q4_K_M.gguf", IN_PARTS), "@target.sha256: cannot pin a model in several files; pin its revision"),
    (("target-Q4_K_M.gguf", IN_PARTS.replace("1", "2", 1)), f"@target.file: expected the first part, {IN_PARTS}"),
    (('sha256 = "', 'revision = "../x"\nsha256 = "'), "@target.revision: expected a commit or the name of a branch"),
    ((HUB + '\nfile = "target', 'path = "t.gguf"\nrevision = "main"\n# "'), "@target.'revision': unexpected key"),
    ((HASH, HASH[:-1]), "@target.sha256: expected 64 lower-case hexadecimal digits"),
    ((TARGET, PACKAGE, '"made-up"', '"../made-up"'), "@target.package: expected the name of a package"),
    ((TARGET, PACKAGE, 'version = "1.0"', 'version = "1.0"\nrevision = "v"'), "@target.'revision': unexpected key"),
    *(((TARGET, PACKAGE, f"\n{key} = ", "\n# "), f"@target.{key}: missing") for key in ("version", "sha256")),
    ((TARGET, ADAPTED, '"embedded"', '"nobody"'), "@target.base: no pair 'nobody' is defined above"),
    ((TARGET, ADAPTED, '"embedded"', '"smollm2-135m-code"'), "@target.base: 'smollm2-135m-code' is a merged target"),
    ((TARGET, ADAPTED, "a.safetensors", "a.gguf"), "@target.adapter: expected a .safetensors file, found 'a.gguf'"),
    *(((TARGET, ADAPTED, f"\n{key} =", "\n#"), f"@target.{key}: missing") for key in ("adapter", "sha256")),
    (("schema = 1\n", VALID), "@id: already defined; use another id"),
    (("layers = 36", "layers = 36\nlayers = 37"), "not valid TOML: Cannot overwrite a value (at line 12, column 12)"),
    (("[[pair]]", "[[pair]]\n\0"), "not valid TOML: Invalid statement (at line 4, column 1)"),
    ((VALID, "schema = 1\na = " + "[" * 100_000), "not valid TOML: nested too deeply (at line 2)"),
    ((VALID, "schema = " + "1" * 5000), "not valid TOML: Exceeds the limit"),
    ((VALID, "#" * (1 << 20) + "\n"), "too large (expected at most 1048576 bytes, got 1048577)"),
]


@pytest.mark.parametrize(
    ("replacements", "message"), BAD, ids=[f"{number}-{bad[1]:.30}" for number, bad in enumerate(BAD)]
)
def test_bad_entries_are_refused_in_one_line(replacements: tuple[str, ...], message: str, user_file: Path) -> None:
    text = VALID
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    user_file.write_text(text)
    with pytest.raises(ModelError) as caught:
        load_registry()
    assert str(caught.value).startswith(f"{user_file}: {message}".replace("@", "pair 'mine': "))
    assert "\n" not in str(caught.value)


def test_a_file_of_another_encoding_is_refused(user_file: Path) -> None:
    user_file.write_bytes(b"schema = 1\n# \xff\n")
    with pytest.raises(ModelError, match=r"not UTF-8 \(at line 2\); save the file as UTF-8"):
        load_registry()


def test_a_target_that_is_made_here_is_read(user_file: Path) -> None:
    user_file.write_text(VALID.replace(TARGET, ADAPTED))
    pairs = load_registry().pairs
    target = pairs["mine"].target
    assert target.adapted
    assert target.adapted.base == pairs["embedded"].target
    assert target.adapted.adapter == str(user_file.parent / "a.safetensors")
    assert target.path == models_folder() / "adapted" / "taught.gguf"
