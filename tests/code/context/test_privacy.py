"""A canary in files that may not be used reaches no definition, no part of a prompt, no warning and no log."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from watchdog.observers import inotify_c

from localdflash.code.context.context import OpenFile
from localdflash.code.context.denied import SECRET_FILES, SECRET_FOLDERS, is_secret
from localdflash.code.context.edits import EditHistory
from localdflash.code.context.gather import gather
from tests.code.context.conftest import PATIENCE, Opened, Opens, until

CANARY = "CANARY_7f3a"
TEXT = f'def {CANARY}():\n    """{CANARY}"""\n    return "{CANARY}"\n'
CURRENT = f"import secrets\nfrom hidden import {CANARY}\nfrom plain import visible\n\n\nx = {CANARY}()\nvisible()\n"
DENIED = [
    *("secrets.py", "credentials.py", "credentials_store.py", ".env.py", "secret.go", "api_key.py", ".ssh/config.py"),
    *(".aws/a.py", "deep/.gnupg/a.py", ".config/gcloud/a.py", "id_rsa.py", "Secrets.PY", "deep/er/SECRETS.py"),
]


def everything(opened: Opened, others: list[OpenFile], edits: EditHistory | None = None) -> str:
    """Return all text that can leave the index: definitions, context, warnings."""
    current = [
        OpenFile(opened.root / "main.py", "main.py", "python", text)
        for text in (CURRENT, CURRENT.replace(CANARY, "unknown"))
    ]
    names = (CANARY, "unknown", "visible")
    found = [opened.workspace.find(name, language) for name in names for language in ("python", "go", "typescript")]
    parts = [
        gather(opened.workspace, one, line, others, edits.diffs(8) if edits else [], 100_000)
        for one in current
        for line in (0, 6)
    ]
    return repr((found, parts, opened.warnings))


def opened_with(opened: Opened, name: str) -> OpenFile:
    """Return the same file as an open document that resembles the current one."""
    return OpenFile(opened.root / name, name, "python", CURRENT + TEXT)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert CANARY not in caplog.text


PLAIN = {"plain.py": "def visible():\n    pass\n", "main.py": ""}


def test_secret_files(open_workspace: Opens) -> None:
    rules = {".gitignore": "!*", ".localdflashignore": "!secrets.py"}  # no rule takes a secret off the list
    opened = open_workspace(PLAIN | dict.fromkeys(DENIED, TEXT) | rules)
    edits = EditHistory()
    for name in DENIED:
        edits.changed(name, name, 0, [CANARY], [f"{CANARY} 2"], 0.0)
        opened.workspace.refresh(opened.root / name)
        assert not opened.workspace.allowed(opened.root / name)
    assert opened.workspace.settled(PATIENCE)
    untitled = OpenFile(None, ".env", "", CURRENT + TEXT)
    text = everything(opened, [untitled, *(opened_with(opened, name) for name in DENIED)], edits)
    assert "def visible()" in text
    assert CANARY not in text
    assert edits.replaced_texts(9) == []


@pytest.mark.parametrize("rules", [".gitignore", ".localdflashignore", "deep/.gitignore", "deep/.localdflashignore"])
def test_ignored_files(open_workspace: Opens, rules: str) -> None:
    opened = open_workspace(PLAIN | {"deep/er/hidden.py": TEXT, rules: "hidden.*"})
    name = "deep/er/hidden.py"
    edits = EditHistory()
    edits.changed(name, name, 0, [CANARY], [f"{CANARY} 2"], 0.0)
    text = everything(opened, [opened_with(opened, name)], edits)
    assert "def visible()" in text
    assert CANARY not in text
    assert not opened.workspace.allowed(opened.root / name)
    assert not opened.workspace.allowed_name(name)
    (opened.root.parent / "way").symlink_to(opened.root)
    assert not opened.workspace.allowed(opened.root.parent / "way" / name)
    assert not opened.workspace.allowed(opened.root / "x" / ".." / name)


def test_what_is_ignored_later_is_forgotten(open_workspace: Opens) -> None:
    opened = open_workspace(PLAIN | {"hidden.py": TEXT})
    assert CANARY in repr(opened.workspace.find(CANARY, "python"))
    opened.write(".localdflashignore", "hidden.py")
    assert until(lambda: not opened.workspace.allowed(opened.root / "hidden.py"))
    assert until(lambda: CANARY not in everything(opened, [opened_with(opened, "hidden.py")]))


def test_rules_above_the_root_are_read_again_once_they_are_saved(open_workspace: Opens, root: Path) -> None:
    (root / ".git").mkdir()
    opened = open_workspace({"pkg/hidden.py": TEXT}, [root / "pkg"])
    assert CANARY in repr(opened.workspace.find(CANARY, "python"))
    opened.workspace.refresh(opened.write(".localdflashignore", "hidden.py"))
    assert until(lambda: not opened.workspace.allowed(root / "pkg/hidden.py"))
    assert until(lambda: CANARY not in repr(opened.workspace.find(CANARY, "python")))


@pytest.mark.parametrize("folder", [False, True])
def test_links_out_of_the_root(open_workspace: Opens, root: Path, folder: bool) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "hidden.py").write_text(TEXT)
    (root / "hidden.py").symlink_to(outside / "hidden.py")
    (root / "linked").symlink_to(outside)
    opened = open_workspace(PLAIN)
    name = "linked/hidden.py" if folder else "hidden.py"
    opened.workspace.refresh(root / name)
    assert opened.workspace.settled(PATIENCE)
    assert not opened.workspace.allowed(root / name)
    assert CANARY not in everything(opened, [opened_with(opened, name)])


def test_a_link_to_a_secret_within_the_root(open_workspace: Opens, root: Path) -> None:
    opened = open_workspace(PLAIN | {"secrets.py": TEXT})
    (root / "innocent.py").symlink_to("secrets.py")
    opened.workspace.refresh(root / "innocent.py")
    assert opened.workspace.settled(PATIENCE)
    assert not opened.workspace.allowed(root / "innocent.py")
    assert CANARY not in everything(opened, [opened_with(opened, "innocent.py")])


def test_a_secret_document_has_no_context_itself(open_workspace: Opens) -> None:
    opened = open_workspace(PLAIN)
    for name in (".env", "secrets.py", ".ssh/config"):
        current = OpenFile(opened.root / name, name, "python", CURRENT)
        assert gather(opened.workspace, current, 0, [], [], 10_000) == []


def test_secret_files_are_not_even_opened(open_workspace: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_names: set[str] = set()
    original = os.open

    def open_file(path: str, *arguments: int, **options: int | None) -> int:
        opened_names.add(os.path.basename(path))
        return original(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_file)
    names = [one.replace("*", "x") for one in SECRET_FILES]
    secret = [*(f"x/{folder}/in.py" for folder in SECRET_FOLDERS), *(f"y/{name}" for name in names)]
    opened = open_workspace(PLAIN | dict.fromkeys(secret, TEXT))
    for name in secret:
        opened.workspace.refresh(opened.root / name)
    assert opened.workspace.settled(PATIENCE)
    assert "plain.py" in opened_names
    assert opened_names.isdisjoint({*SECRET_FOLDERS, *names, "in.py"})


def test_warnings_show_names_that_are_clean(open_workspace: Opens, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = root / "a\x1b]0;title\x07\n\u202e"
    odd.mkdir()
    (odd / "a.py").write_text(TEXT)
    monkeypatch.setattr("localdflash.code.context.index.MAX_FILES", 0)

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(inotify_c.InotifyFD, "_create_inotify_fd", fail)
    opened = open_workspace({}, [odd])
    assert len(opened.warnings) == 2
    assert all(line.isprintable() for line in opened.warnings)
    assert CANARY not in repr(opened.warnings)


SECRET = [
    *(".env", ".env.local", ".ENV", ".Env.Production", "prod.env", ".envrc", ".dev.vars", "a/b/.env"),
    *("server.pem", "server.KEY", "x.p12", "x.pfx", "x.kdbx", "x.jks", "ca.crt", "x.gpg", "x.ppk"),
    *("id_rsa", "id_rsa.pub", "ID_ED25519", "authorized_keys"),
    *(".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".htpasswd"),
    *("credentials", "credentials.json", "Credentials.toml", "secrets.yaml", "secrets.py", "my-credentials.json"),
    *("prod.tfvars", "prod.tfvars.json", "terraform.tfstate", "service-account.json", "service-account-7.json"),
    *(".aws/config", "home/.ssh/config", ".gnupg/x", ".kube/config", ".docker/config.json", ".config/gcloud/x.db"),
    *(".env~", ".env.bak", ".env.swp", "#.env#", ".#.env", "server.key.bak", "server.key.old", ".server.key.swp"),
    *("id_rsa~", "secrets.yml.orig", ".bash_history", "auth.json", "api-key", ".ssh"),
    "/home/someone/.ssh/id_other/deep/file.py",
]
NO_SECRET = [
    *("main.py", "environment.py", "env.py", "keys.py", "key.py", "monkey.py", "secret_santa.py", "tokens.py"),
    *("credential_store/main.py", "credentials-service/main.py", "a/secrets/main.py", "ssh.py", "config.json"),
    *("src/aws/x.py", "kube/config.py", "pem.py", "docs/env.md", "tokenizer.json", "", "history.py"),
]


def test_secret_names() -> None:
    assert [name for name in SECRET if not is_secret(PurePath(name))] == []
    assert [name for name in NO_SECRET if is_secret(PurePath(name))] == []
    names = [pattern.replace("*", "xy") for pattern in SECRET_FILES]
    assert all(is_secret(PurePath("some", one)) for name in names for one in (name.upper(), f"{name}~"))
