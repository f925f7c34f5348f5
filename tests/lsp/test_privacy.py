"""Privacy of files: no request, log or file of ours holds text of secret, ignored or outside files."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

CANARY = "canary_7f3a"
MAIN = """from util import helper_of_ours
from ignored import canary_7f3a_one
from linked import canary_7f3a_two


def main():
    helper_of_ours(1)
{}
""".format(4 * " ")


def project(tmp_path: Path) -> Path:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    secret = f"def {CANARY}_one(x):\n    return '{CANARY}'\n"
    (root / "util.py").write_text("def helper_of_ours(number):\n    return number + 1\n")
    (root / ".gitignore").write_text("ignored.py\n")
    (root / ".localdflashignore").write_text("private/\n")
    (root / "private").mkdir()
    for name in ("ignored.py", "private/hidden.py", ".env", "id_rsa", "credentials.json", "secrets.py", "a.pem"):
        (root / name).write_text(secret)
    (outside / "other.py").write_text(secret.replace("_one", "_two"))
    os.symlink(outside / "other.py", root / "linked.py")
    os.symlink(outside, root / "folder")
    return root


async def test_what_git_ignores_is_only_sent_where_somebody_asks_there(editor: Any, tmp_path: Path) -> None:
    root = project(tmp_path)
    ignored, main = (root / "ignored.py").as_uri(), (root / "main.py").as_uri()
    text = (root / "ignored.py").read_text()
    async with editor(oracle=text + "return_this = 1\n", root=root.as_uri(), options={"status": True}) as e:
        e.open(text + "ret", ignored)
        assert await e.ask(2, 3, uri=ignored) is None
        status = await e.status()
        assert (status.kind, status.message) == ("Inactive", "no suggestions here: .gitignore names it; ask by hand")
        with daemons.client() as client:
            assert client.get("/oracle")["asked"] == []
            (item,) = (await e.ask(2, 3, uri=ignored, manual=True)).items
            assert item.insert_text == "return_this = 1"
            assert (await e.status()).kind == "Normal"
            (asked,) = client.get("/oracle")["asked"]
            assert asked["context"] == []
            e.edit(0, 0, f"{CANARY}_typed = 1\n", uri=ignored)
            e.open(MAIN.replace(CANARY, "xxxx"), main)
            await e.ask(7, 4, uri=main, manual=True)
            assert CANARY not in json.dumps(client.get("/oracle")["asked"][1:])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (".env", "x = 1\n", "its name is typical of files with secrets"),
        ("private/hidden.py", "x = 1\n", ".localdflashignore names it"),
        ("linked.py", "x = 1\n", "it is a link to a file outside of the project"),
        ("new.py", "x" * 6_000, "a line has more than 5000 characters"),
    ],
)
async def test_the_status_says_why_a_file_gets_nothing_even_by_hand(
    editor: Any, tmp_path: Path, name: str, text: str, why: str
) -> None:
    root = project(tmp_path)
    uri = (root / name).as_uri()
    async with editor(oracle=text, root=root.as_uri()) as e:
        e.open(text, uri)
        assert await e.ask(0, 3, uri=uri, manual=True) is None
        status = await e.status()
        assert (status.kind, status.message) == ("Inactive", f"no suggestions here: {why}")


async def test_no_text_of_denied_files_reaches_the_engine_or_a_file(editor: Any, tmp_path: Path, home: Path) -> None:
    root = project(tmp_path)
    main = (root / "main.py").as_uri()
    asked: list[dict[str, Any]] = []
    async with editor(oracle="nothing is known", root=root.as_uri()) as e:
        for name in (".env", "private/hidden.py", "secrets.py"):  # open, edited, asked about
            e.open((root / name).read_text(), (root / name).as_uri())
            e.edit(0, 0, f"{CANARY}_typed = 1\n", uri=(root / name).as_uri())
            e.edit(0, 0, "", removed=len(CANARY), uri=(root / name).as_uri())
            assert await e.ask(0, 0, uri=(root / name).as_uri(), manual=True) is None
        e.open(MAIN.replace(CANARY, "xxxx"), main)
        with daemons.client() as client:
            for _ in range(200):  # the workspace is read in the background, and looked at when nobody types
                await e.ask(7, 4, uri=main, manual=True)
                asked = client.get("/oracle")["asked"]
                if any("helper_of_ours(number)" in part["text"] for body in asked for part in body["context"]):
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail("the workspace was never looked at")
        written = b"".join(p.read_bytes() for p in Path(os.environ["LOCALDFLASH_HOME"]).rglob("*") if p.is_file())
        assert CANARY not in json.dumps(asked)
        assert CANARY.encode() not in written
        assert not [said for said in e.said if CANARY in said]
