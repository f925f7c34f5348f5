"""The named server over a client's life: found once, lost and found again; what is wrong is told once."""

from pathlib import Path

import pytest

from localdflash.lsp.engine_completer import PATIENCE, Asker
from localdflash.lsp.foreign import llama_server as llama_module
from localdflash.lsp.foreign import remote_completer as module
from localdflash.lsp.foreign.named import NamedEngine
from localdflash.lsp.foreign.remote_completer import ForeignCompleter
from tests.lsp.foreign.made_up import BODY, Answer, Said, llama, llama_said, openai, serving


class Client:
    """A client of a server, and what it was told and what was logged."""

    def __init__(self, url: str, key_file: Path | None = None) -> None:
        self.told: list[str] = []
        self.said: list[str] = []
        self.completer = ForeignCompleter(NamedEngine(url, key_file), self.said.append, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete(BODY)])


async def test_what_it_is_is_found_out_once() -> None:
    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url)
        assert [await client.ask() for _ in range(3)] == ["rn x"] * 3
        assert len(server.bodies("/props")) == 1
        assert client.told == []
        client.completer.close()


async def test_the_model_is_named_with_its_server() -> None:
    async with serving(llama()) as server:
        client = Client(server.url + "/v1")
        assert await client.completer.model() == f"Qwen2.5-Coder-1.5B-Q8_0 at 127.0.0.1:{server.port}"
        assert client.said == [f"suggestions come from Qwen2.5-Coder-1.5B-Q8_0 at {server.url}"]
        client.completer.close()


async def test_a_server_elsewhere_is_named_as_one_that_code_is_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_loopback", lambda host: False)

    async with serving(llama()) as server:
        client = Client(server.url)
        await client.completer.model()
        (said,) = client.said
        assert said.endswith(f"at {server.url}: the code around the cursor is sent there")
        client.completer.close()


@pytest.mark.parametrize("later", [openai("rn y\n", models=("new",)), llama(llama_said("return y\n"), model="new")])
async def test_a_server_that_was_started_anew_is_found_again_with_its_new_model(
    later: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_module, "FRESH", 0.0)

    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url)
        assert await client.ask() == "rn x"
    async with serving(later, port=server.port):
        assert await client.ask() == "rn y"
        assert await client.completer.model() == f"new at 127.0.0.1:{server.port}"
    assert client.told == []
    client.completer.close()


async def test_nobody_there_is_told_once_and_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(llama(llama_said("return x\n"))) as server:
        pass
    client = Client(server.url)
    assert [await client.ask() for _ in range(3)] == [""] * 3
    (told,) = client.told
    assert told == f"{server.url} cannot be reached: Connection refused"
    async with serving(llama(llama_said("return x\n")), port=server.port):
        assert await client.ask() == ""
        monkeypatch.setattr(client.completer, "_not_before", 0.0)
        assert await client.ask() == "rn x"
    assert client.told == [told, ""]
    client.completer.close()


async def test_a_server_that_refuses_every_request_is_not_asked_for_every_key() -> None:
    async with serving(llama(completion=Said({"error": {"message": "no room"}}, 500))) as server:
        client = Client(server.url)
        for _ in range(5):
            assert await client.ask() == ""
        assert client.told == ["no room"]
        assert len(server.bodies("/completion")) == len(server.bodies("/props")) == 1
        client.completer.close()
    assert ForeignCompleter.refused_patience == PATIENCE > Asker.refused_patience


async def test_the_key_comes_from_its_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    key.chmod(0o600)

    async with serving(llama(llama_said("return x\n")), key="sesame") as server:
        assert await Client(server.url).ask() == ""
        client = Client(server.url, key)
        assert await client.ask() == "rn x"
        client.completer.close()


async def test_a_key_that_others_may_read_is_not_sent(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    key.chmod(0o644)

    async with serving(llama(), key="sesame") as server:
        client = Client(server.url, key)
        assert await client.ask() == ""
        (told,) = client.told
        assert "others may read this key" in told
        assert server.asked == []
