"""Which pair answers where no command line says so: the chat has one, completions have another.

The chat takes one with real weights where that is on this machine, which cannot fill in code at a cursor. The engine
holds both where they fit into memory.
"""

from typing import TYPE_CHECKING

from localdflash.config import DEFAULT, Config

if TYPE_CHECKING:  # every command asks for its default pair, few need the registry for that
    from localdflash.pairs.pair import PairEntry

CHAT = "smollm2-135m"


def chat_pair(config: Config) -> str:
    """The chat's pair: `chat.pair`, else `model.pair` where that is set, else `CHAT` where it is here."""
    if pair := _chosen(config):
        return pair
    return config.model.pair if _missing() else CHAT


def completion_pair(config: Config) -> str:
    """The pair of completions: `completion.pair`, else `model.pair`."""
    return config.completion.pair or config.model.pair


def worth_pulling(config: Config) -> "PairEntry | None":
    """The pair that the chat would take if it were here; None if it is, or if another one is chosen."""
    return None if _chosen(config) else _missing()


def _missing() -> "PairEntry | None":
    """The entry of `CHAT`, unless its files are here."""
    from localdflash.pairs.registry import load_registry, missing_files

    found = load_registry().pair(CHAT)
    return found if missing_files(found) else None


def _chosen(config: Config) -> str | None:
    is_set = config.origins.get("model.pair", DEFAULT) != DEFAULT
    return config.chat.pair or (config.model.pair if is_set else None)
