"""An editor whose settings name a remote server: its suggestions, its status, its warnings."""

from pathlib import Path
from typing import Any

import pytest

from tests.lsp.conftest import until
from tests.lsp.remote.made_up import llama, serving, vllm
from tests.lsp.test_server import inserted
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

SOURCE = "def add(first, second):\n    retu\n"


async def test_an_editor_gets_suggestions_without_starting_a_daemon(
    editor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(llama("rn", " first + second\n")) as server:
        monkeypatch.setenv("LOCALDFLASH_SERVER_URL", server.url)
        with daemons.short_home(monkeypatch) as home:
            async with editor(home=home, options={"status": True}) as e:
                e.open(SOURCE)
                assert inserted(await e.ask(1, 8)) == "    return first + second"
                await until(lambda: any(status.model for status in e.statuses))
                status = await e.status()
                assert (status.kind, status.tau) == ("Normal", None)
                assert status.model == f"Qwen2.5-Coder-1.5B-Q8_0 at 127.0.0.1:{server.port}"
                assert e.said == []
                assert daemons.daemons(home) == []


async def test_a_failure_is_in_the_status_before_the_first_key(editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(vllm(markers=())) as server:
        monkeypatch.setenv("LOCALDFLASH_SERVER_URL", server.url)
        async with editor(options={"status": True}) as e:
            await until(lambda: e.said)
            (said,) = e.said
            assert "does not fill in the middle" in said
            status = await e.status()
            assert (status.kind, status.message in said) == ("Error", True)


async def test_secret_files_reach_no_server(editor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serving(vllm("rn x\n")) as server:
        monkeypatch.setenv("LOCALDFLASH_SERVER_URL", server.url)
        async with editor(root=tmp_path.as_uri()) as e:
            for name in (".env", "id_rsa", "secrets.py"):
                uri = (tmp_path / name).as_uri()
                e.open("canary_1 = 1\n" * 3, uri)
                assert await e.ask(1, 0, uri=uri, manual=True) is None
            main = (tmp_path / "main.py").as_uri()
            e.open(SOURCE, main)
            assert inserted(await e.ask(1, 8, uri=main)) == "    return x"
        assert server.bodies("/v1/completions")
        assert "canary" not in str(server.asked)
