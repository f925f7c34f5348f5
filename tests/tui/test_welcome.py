from localdflash.tui.welcome import Welcome, tries
from tests.tui.stage import Stage, playing, shown


async def text_of(welcome: Welcome, size: tuple[int, int] = (120, 24)) -> str:
    app = Stage(welcome)
    async with playing(app, size):
        assert app.query_one("#welcome") is welcome
        return " ".join(shown(app).split())


async def test_the_first_run_is_explained_and_has_three_things_to_try() -> None:
    text = await text_of(Welcome(first_run=True))
    assert text.startswith("localdflash, a coding assistant")
    for said in (*tries(), "runs on this machine", "nothing you type leaves it", "localdflash models list", "/model"):
        assert said in text
    for said in ("F1", "Ctrl+D", "--no-log", "drafter", "often wrong"):
        assert said in text


async def test_with_a_server_nothing_is_called_local() -> None:
    text = await text_of(Welcome(first_run=True, model="gpt", server="https://api.example.com/v1"))
    assert "what you send goes there" in text
    assert "https://api.example.com/v1" in text
    assert "localdflash models list" not in text  # names models of this machine
    assert "nothing you type leaves" not in text


async def test_another_model_is_named_and_not_called_small() -> None:
    text = await text_of(Welcome(first_run=True, model="/m/[b]q\x1bwen.gguf"))
    assert "[b]q" in text
    assert "\x1b" not in text
    assert "A small model" not in text
