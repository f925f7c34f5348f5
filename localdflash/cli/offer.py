"""The offer to pull the pairs of chat and completions: made once, on a terminal, where no other pair is chosen.

A refusal is remembered.
"""

import sys
from contextlib import suppress
from pathlib import Path

import click

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import create_private, data_folder
from localdflash.models.config import load_config
from localdflash.models.registry.defaults import CHAT, chat_pair, worth_pulling
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.text.sanitize import printable

QUESTION = "The chat's model is not here yet: {about}, {megabytes:.0f} MB.\nFetch it? Without it a smaller one answers."


def offer_better_pair(pair: str) -> str:
    """Return the chat's pair, after the user was asked whether to pull better ones; `pair` if the chat has its own."""
    from localdflash.models.registry.hub import offline

    config = load_config()
    if config.server.url or answer_file().exists() or offline():
        return pair
    found = worth_pulling(config)
    if not found or found[0].id != CHAT:
        return pair
    if _agreed(found[0]):
        _pull(found)
    with suppress(OSError, LocaldflashError):  # then it is asked again
        create_private(answer_file().parent)
        answer_file().touch()
    return chat_pair(config)


def better_pair_hint(pair: str) -> str:
    """Return how to get the chat's usual pair where a smaller one answers for want of it, else ""."""
    from localdflash.models.load_options import Options

    found = worth_pulling(load_config()) if pair == Options().pair else []
    if not found or found[0].id != CHAT:
        return ""
    return f"; `localdflash models pull {CHAT}` gets a better one, {_megabytes(found[0]):.0f} MB"


def answer_file() -> Path:
    """Return the file that is there once the offer was answered."""
    return data_folder() / "pull-offered"


def _agreed(pair: PairEntry) -> bool:
    about = f"{pair.description.partition(',')[0]} ({pair.licence})"
    return click.confirm(QUESTION.format(about=printable(about), megabytes=_megabytes(pair)), default=None, err=True)


def _megabytes(pair: PairEntry) -> float:
    package = pair.target.package
    return (package.size if package else pair.target.size or 0) / 1e6


def _pull(pairs: list[PairEntry]) -> None:
    """Pull them; a failure is told, and the chat begins without."""
    from localdflash.cli.pull import shown
    from localdflash.models.registry import fetching

    for pair in pairs:
        try:
            with shown() as report:
                fetching.pull(pair, report)
        except LocaldflashError as error:
            print(printable(f"{error} (`localdflash models pull {pair.id}`)"), file=sys.stderr)
            return
