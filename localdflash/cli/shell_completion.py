"""Shell completion of arguments that click cannot know: ids of pairs, names of roles, files; see docs/install.md."""

import click
from click.shell_completion import CompletionItem


def pairs(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the pairs of the registry whose id begins so, or else files."""
    from localdflash.models.registry.registry import load_registry

    known = load_registry().pairs.values()
    found = [CompletionItem(pair.id, help=pair.description) for pair in known if pair.id.startswith(begun)]
    return found or file(ctx, parameter, begun)


def roles(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the roles whose name begins so, shipped and the user's."""
    from localdflash.chat.roles import list_roles

    return [CompletionItem(name) for name in list_roles() if name.startswith(begun)]


def file(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Have the shell complete the name of a file."""
    return [CompletionItem(begun, type="file")]
