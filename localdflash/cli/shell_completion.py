"""Shell completion of pair ids, role names and files; docs/install.md says how to turn it on."""

import click
from click.shell_completion import CompletionItem


def pairs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the registered pairs whose id starts with the typed text; if there are none, complete a file name."""
    from localdflash.models.registry.registry import load_registry

    known = load_registry().pairs.values()
    found = [CompletionItem(pair.id, help=pair.description) for pair in known if pair.id.startswith(incomplete)]
    return found or file(ctx, parameter, incomplete)


def roles(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the roles whose name starts with the typed text."""
    from localdflash.chat.roles import list_roles

    return [CompletionItem(name) for name in list_roles() if name.startswith(incomplete)]


def file(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file name."""
    return [CompletionItem(incomplete, type="file")]
