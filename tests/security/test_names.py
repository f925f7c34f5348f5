"""Names from outside never lead out of the models folder, and mean one file on every file system."""

import string
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.convert import convert
from localdflash.base.errors import ModelError
from localdflash.models.registry import fetching
from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import load_registry
from localdflash.models.registry.safe_names import Repository

REGISTRY = load_registry()
BAD_FILES = [
    *("", " ", ".", "..", "/", "\\", "x", "x.bin", ".gguf", ".x.gguf", "x.gguf/", "x.gguf ", " x.gguf", "x.gguf."),
    *("../x.gguf", "a/../x.gguf", "a/..", "a/../../../x.gguf", "./x.gguf", "a/./x.gguf", "a//x.gguf", "..x.gguf"),
    *("/x.gguf", "//x.gguf", "~/x.gguf", "~root/x.gguf", "$HOME/x.gguf", "%2e%2e/x.gguf", "a\\x.gguf", "..\\x.gguf"),
    *("C:x.gguf", "C:/x.gguf", "c:\\..\\x.gguf", "a/C:x.gguf", "x.gguf:stream", "\\\\server\\share\\x.gguf"),
    *("x\0.gguf", "x.gguf\0.bin", "x\n.gguf", "x\t.gguf", "x\x1b[31m.gguf", "x\x7f.gguf", "x\x9b.gguf", "\ud800.gguf"),
    *("x\u202efugg.gguf", "x\u200b.gguf", "\ufeffx.gguf", "x\u0301.gguf", "\u0445.gguf", "x\uff0e.gguf", "x y.gguf"),
    *("x" * 350 + ".gguf", "a/" * 200 + "x.gguf", "a/b/c/d/e/x.gguf"),
    *("con.gguf", "NUL.gguf", "com1.gguf", "con/x.gguf"),
    *("x?.gguf", "x*.gguf", "x|y.gguf", "x<y>.gguf", 'x"y.gguf', "x'y.gguf", "x;y.gguf", "x@y.gguf", "con.x.gguf"),
]
BAD_REPOSITORIES = [
    *("", "x", "/", "a/", "/a", "../a", "a/..", "./a", "a/.b", ".a/b", "a/b.", "a-/b", "a/b--c", "a/b..c", "a b/c"),
    *("a\\b/c", "C:/c", "a/con", "NUL/a", "aux.x/a", "a\0/b", "a/b\u202e", "\u0430/b", "a" * 200 + "/b", "~/b"),
    *("https://huggingface.co/a", "git@hf.co:a/b", "a/b?x", "a/b#x", "datasets:a/b"),
]
BAD_REVISIONS = ["", " ", "..", "../x", "a\\b", "-x", ".x", "x.", "a b", "a\0", "a\u202e", "x" * 101, "a#b"]


def refused(spec: str) -> None:
    with pytest.raises(ModelError) as caught:
        REGISTRY.resolve(spec)
    assert str(caught.value).isprintable() or "\ud800" in spec
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_bad_names_are_refused() -> None:
    for file in BAD_FILES:
        refused(f"hf:owner/name/{file}")
    for revision in BAD_REVISIONS:
        refused(f"hf:owner/name@{revision}/x.gguf")
    for repository in BAD_REPOSITORIES:
        refused(f"hf:{repository}/x.gguf")  # a/b/c is none here: that is folder c of a/b
        with pytest.raises(ModelError, match="expected"):
            convert(repository, Repository, "x")


# Characters that have ever led astray, and plain ones, so that good names come up too.
ALPHABET = st.sampled_from([*string.ascii_letters[:6], *"01/\\.:@-_~ \0\n\u202e\u00e9%$*", "..", "con", "nul", ".gguf"])


@given(st.lists(ALPHABET, max_size=12).map("".join), st.lists(ALPHABET, max_size=12).map("".join))
def test_no_name_leaves_the_models_folder(repository: str, file: str) -> None:
    for spec in (f"hf:{repository}/{file}", f"hf:{repository}/{file}.gguf", f"hf:owner/name/{file}.gguf"):
        try:
            pair = REGISTRY.resolve(spec)
        except ModelError:
            continue
        inside = pair.target.path.relative_to(models_folder())
        assert pair.target.path.resolve().is_relative_to(models_folder().resolve())
        assert inside.as_posix() == f"{pair.target.repository}/{pair.target.file}"
        windows = PureWindowsPath(str(inside).replace("/", "\\"))
        assert not windows.is_absolute()
        assert not windows.drive
        assert not windows.is_reserved()
        assert windows.parts == inside.parts
        assert all(len(part.encode()) < 220 and part[-1] not in ". " for part in inside.parts)
        assert str(inside).isascii()
        assert str(inside).isprintable()


@pytest.mark.parametrize("part", ["Owner", "NAME", "X.gguf"])
def test_names_that_differ_only_in_case_are_different_files(part: str) -> None:
    pair = load_registry().resolve("hf:owner/name/x.gguf")
    twin = models_folder().joinpath(*(part if part.casefold() == own else own for own in ("owner", "name", "x.gguf")))
    twin.parent.mkdir(parents=True)
    twin.write_bytes(b"another")
    with pytest.raises(ModelError, match="differs only in case"):
        fetching.plan_removal(pair, load_registry())
    assert twin.read_bytes() == b"another"


@pytest.mark.parametrize("level", [1, 2])
def test_a_link_out_of_the_models_folder_is_not_followed(level: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "name").mkdir(parents=True)
    victims = [outside / "x.gguf", outside / "name" / "x.gguf"]
    for victim in victims:
        victim.write_bytes(b"mine")
    link = models_folder().joinpath(*("owner", "name")[:level])
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    pair = load_registry().resolve("hf:owner/name/x.gguf")
    with pytest.raises(ModelError, match="a link that leads out of"):
        fetching.plan_removal(pair, load_registry())
    assert all(victim.exists() for victim in victims)
