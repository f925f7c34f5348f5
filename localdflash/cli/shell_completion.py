"""What shells are told that click cannot know: the ids of pairs, names of roles, and where a file is meant.

A shell asks by running `localdflash` with _LOCALDFLASH_COMPLETE set, see docs/install.md.
"""

import click
from click.shell_completion import CompletionItem


def pairs(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Pairs of the registry whose id begins so; where there is none, files."""
    from localdflash.models.registry.registry import load_registry

    known = load_registry().pairs.values()
    found = [CompletionItem(pair.id, help=pair.description) for pair in known if pair.id.startswith(begun)]
    return found or file(ctx, parameter, begun)


def roles(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Named instructions, shipped and the user's own."""
    from localdflash.chat.roles import list_roles as known

    return [CompletionItem(name) for name in known() if name.startswith(begun)]


def file(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Have the shell complete the name of a file."""
    return [CompletionItem(begun, type="file")]
