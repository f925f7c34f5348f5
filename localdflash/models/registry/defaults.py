"""Which pair answers where no command line says so: the chat has one, completions have another.

Each takes one with real weights where that is on this machine: the chat one that talks, completions the same model
with an adapter that taught it to fill in code at the cursor. The engine holds both where they fit into memory.
"""

from typing import TYPE_CHECKING

from localdflash.models.config import DEFAULT, Config

if TYPE_CHECKING:  # every command asks for its default pair, few need the registry for that
    from localdflash.models.registry.pair_entry import PairEntry

CHAT, CODE = "smollm2-135m", "smollm2-135m-code"


def chat_pair(config: Config) -> str:
    """Return the chat's pair: `chat.pair`, else `model.pair` where that is set, else `CHAT` where it is here."""
    if pair := _chosen(config, config.chat.pair):
        return pair
    return config.model.pair if _missing(CHAT) else CHAT


def completion_pair(config: Config) -> str:
    """The pair of completions: `completion.pair`, else `model.pair` where that is set, else `CODE` where it is here."""
    if pair := _chosen(config, config.completion.pair):
        return pair
    return config.model.pair if _missing(CODE) else CODE


def worth_pulling(config: Config) -> "list[PairEntry]":
    """Return the pairs that chat and completions would take if they were here; none where another one is chosen."""
    chosen = {CHAT: _chosen(config, config.chat.pair), CODE: _chosen(config, config.completion.pair)}
    return [found for pair, other in chosen.items() if not other and (found := _missing(pair))]


def _missing(pair: str) -> "PairEntry | None":
    """Return the entry of a pair, unless its files are here."""
    from localdflash.models.registry.registry import load_registry, missing_files

    found = load_registry().pair(pair)
    return found if missing_files(found) else None


def _chosen(config: Config, of_its_own: str | None) -> str | None:
    is_set = config.origins.get("model.pair", DEFAULT) != DEFAULT
    return of_its_own or (config.model.pair if is_set else None)
