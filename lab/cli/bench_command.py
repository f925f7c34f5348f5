"""`localdflash bench`: four measurements, one subcommand each; without a subcommand it runs `speed`."""

import importlib

import click
from click.shell_completion import CompletionItem

from localdflash.base.errors import did_you_mean

SUBCOMMANDS = {  # name: (module, help line)
    "speed": ("bench_speed", "Speed, acceptance and identity on the prompt set; runs without a subcommand."),
    "server": ("bench_server", "Latency of the shared engine, alone and next to a streaming chat."),
    "typing": ("bench_typing", "Keystrokes saved when files are typed through the language server."),
    "infill": ("bench_infill", "Quality of infillings: exact match, edit similarity and pass@1."),
}


class BenchGroup(click.Group):
    """Group that imports a subcommand only when it is called, and runs `speed` if no subcommand is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = importlib.import_module(f"localdflash.lab.cli.{SUBCOMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click; also offers the options of `speed`."""
        if incomplete.startswith("-") and (speed := self.get_command(ctx, "speed")):
            return speed.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click; inserts `speed` if no subcommand is given."""
        if not args and ctx.resilient_parsing:  # shell completion offers the subcommands
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["speed", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click; suggests the nearest subcommand."""
        if args[0] not in SUBCOMMANDS:
            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], SUBCOMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=BenchGroup)
def command() -> None:
    """Measure speed, acceptance, latency and quality on this machine.

    Without a subcommand: `bench speed`, whose options may follow directly. Each subcommand has its own `--help`.
    """
