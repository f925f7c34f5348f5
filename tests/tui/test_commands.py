import pytest

from localdflash.base.errors import UsageError
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.commands import COMMANDS, parse


def test_every_command_does_something() -> None:
    for command in COMMANDS:
        assert callable(getattr(ChatApp, f"action_{command.name}")), command


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/NEW", "new", ""),
        ("/set temperature 0.5", "set", "temperature 0.5"),
        ("/resume box", "chats", "box"),
        ("/rename  a name ", "rename", "a name"),
    ],
)
def test_a_command(line: str, name: str, argument: str) -> None:
    found = parse(line)
    assert found
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize("line", ["hello", "/etc/hosts is odd", "/ new", "/new\nand more"])
def test_a_message(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/retyr", "there is no /retyr; did you mean /retry?"),
        ("/stop now", "/stop takes nothing after it"),
    ],
)
def test_what_is_no_command(line: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(line)
    assert str(error.value) == told
