"""The configured server over a client's life: found once, lost and found again; a failure is reported once."""

from pathlib import Path

import pytest

from localdflash.lsp.foreign import finding as module
from localdflash.lsp.foreign import llama_server as llama_module
from localdflash.lsp.foreign.finding import RemoteCompleter
from localdflash.lsp.foreign.named import RemoteServer
from tests.lsp.foreign.made_up import BODY, Answer, llama, llama_said, openai, serving


class Client:
    def __init__(self, url: str, key_file: Path | None = None) -> None:
        self.told: list[str] = []
        self.said: list[str] = []
        self.completer = RemoteCompleter(RemoteServer(url, key_file), self.said.append, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete(BODY)])


async def test_the_server_is_detected_once_and_named_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url + "/v1")
        assert [await client.ask() for _ in range(3)] == ["rn x"] * 3
        assert len(server.bodies("/props")) == 1
        assert await client.completer.model() == f"Qwen2.5-Coder-1.5B-Q8_0 at 127.0.0.1:{server.port}"
        client.completer.close()
        assert (client.told, client.said) == ([], [f"suggestions come from Qwen2.5-Coder-1.5B-Q8_0 at {server.url}"])
        monkeypatch.setattr(module, "is_loopback", lambda host: False)
        remote = Client(server.url)
        await remote.completer.model()
        assert remote.said[0].endswith(f"at {server.url}: the code around the cursor is sent there")
        remote.completer.close()


@pytest.mark.parametrize("later", [openai("rn y\n", models=("new",)), llama(llama_said("return y\n"), model="new")])
async def test_a_server_that_was_started_anew_is_found_again_with_its_new_model(
    later: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_module, "RECHECK_SECONDS", 0.0)

    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url)
        assert await client.ask() == "rn x"
    async with serving(later, port=server.port):
        assert await client.ask() == "rn y"
        assert await client.completer.model() == f"new at 127.0.0.1:{server.port}"
    assert client.told == []
    client.completer.close()


@pytest.mark.parametrize(("mode", "text", "told"), [(0o600, "rn x", ""), (0o644, "", "readable by other users")])
async def test_the_key_comes_from_a_private_file(tmp_path: Path, mode: int, text: str, told: str) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    key.chmod(mode)
    async with serving(llama(llama_said("return x\n")), key="sesame") as server:
        client = Client(server.url, key)
        assert await client.ask() == text
        assert told in "".join(client.told)
        assert bool(server.asked) == bool(text)
        client.completer.close()
