"""Shell completion of arguments: ids of pairs, names of roles, files; see docs/install.md."""

import click
from click.shell_completion import CompletionItem


def pairs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the registered pairs whose id starts with the typed text; if none does, files."""
    from localdflash.models.registry.registry import load_registry

    known = load_registry().pairs.values()
    found = [CompletionItem(pair.id, help=pair.description) for pair in known if pair.id.startswith(incomplete)]
    return found or file(ctx, parameter, incomplete)


def roles(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the roles, shipped or the user's, whose name starts with the typed text."""
    from localdflash.chat.roles import list_roles

    return [CompletionItem(name) for name in list_roles() if name.startswith(incomplete)]


def file(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file name."""
    return [CompletionItem(incomplete, type="file")]
