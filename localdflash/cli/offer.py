"""Offer to download the default chat pair and completion pair, once, on a terminal. The answer is remembered."""

from contextlib import suppress
from pathlib import Path

import click

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import create_private, data_folder
from localdflash.cli.output import say
from localdflash.models.config import load_config
from localdflash.models.registry.defaults import CHAT, chat_pair, missing_default_pairs
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.text.sanitize import printable

QUESTION = (
    "The chat model is not here yet: {about}, {megabytes:.0f} MB.\nDownload it? Otherwise a smaller model answers."
)


def offer_better_pair(pair: str) -> str:
    """Offer to download the default pairs. Return the chat pair to use; it is `pair` if nothing was offered."""
    from localdflash.models.registry.hub import offline_variable

    config = load_config()
    if config.server.url or answer_file().exists() or offline_variable():
        return pair
    pairs = missing_default_pairs(config)
    if not pairs or pairs[0].id != CHAT:
        return pair
    about = printable(f"{pairs[0].description.partition(',')[0]} ({pairs[0].licence})")
    question = QUESTION.format(about=about, megabytes=_megabytes(pairs[0]))
    if click.confirm(question, default=None, err=True):
        _pull(pairs)
    with suppress(OSError, LocaldflashError):  # then the next chat asks again
        create_private(answer_file().parent)
        answer_file().touch()
    return chat_pair(config)


def better_pair_hint(pair: str) -> str:
    """If the embedded pair answers because the default chat pair is missing, return how to get that; else ""."""
    from localdflash.models.load_options import Options

    pairs = missing_default_pairs(load_config()) if pair == Options().pair else []
    if not pairs or pairs[0].id != CHAT:
        return ""
    return f"; `localdflash models pull {CHAT}` gets a better one, {_megabytes(pairs[0]):.0f} MB"


def answer_file() -> Path:
    """Return the path of a file that exists once the offer was answered."""
    return data_folder() / "pull-offered"


def _megabytes(pair: PairEntry) -> float:
    package = pair.target.package
    return (package.size if package else pair.target.size or 0) / 1e6


def _pull(pairs: list[PairEntry]) -> None:
    from localdflash.cli.pull import open_report
    from localdflash.models.registry import fetching

    for pair in pairs:
        try:
            with open_report() as report:
                fetching.pull(pair, report)
        except LocaldflashError as error:
            say(f"{error} (`localdflash models pull {pair.id}`)")
            return
