"""Default pairs for chat and completion: the configured pair, else an installed default, else the embedded pair."""

from typing import TYPE_CHECKING

from localdflash.models.config import DEFAULT, Config

if TYPE_CHECKING:  # every command asks for its default pair, few need the registry for that
    from localdflash.models.registry.pair_entry import PairEntry

CHAT, CODE = "smollm2-135m", "smollm2-135m-code"


def chat_pair(config: Config) -> str:
    """Return the chat pair: `chat.pair`, else `model.pair`, else `CHAT` if it is installed."""
    return _configured(config, config.chat.pair) or (config.model.pair if _missing_entry(CHAT) else CHAT)


def completion_pair(config: Config) -> str:
    """Return the completion pair: `completion.pair`, else `model.pair`, else `CODE` if it is installed."""
    return _configured(config, config.completion.pair) or (config.model.pair if _missing_entry(CODE) else CODE)


def missing_default_pairs(config: Config) -> "list[PairEntry]":
    """Return the default pairs whose files are missing; none for roles whose pair is configured."""
    configured = {CHAT: _configured(config, config.chat.pair), CODE: _configured(config, config.completion.pair)}
    return [entry for pair, other in configured.items() if not other and (entry := _missing_entry(pair))]


def _missing_entry(pair: str) -> "PairEntry | None":
    """Return the entry of a pair if its files are missing, else None."""
    from localdflash.models.registry.registry import load_registry, missing_files

    entry = load_registry().pair(pair)
    return entry if missing_files(entry) else None


def _configured(config: Config, role_pair: str | None) -> str | None:
    is_set = config.origins.get("model.pair", DEFAULT) != DEFAULT
    return role_pair or (config.model.pair if is_set else None)
