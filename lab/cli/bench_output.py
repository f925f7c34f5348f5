"""Options, output files, progress and daemon connection of the subcommands of `localdflash bench`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from localdflash.base.errors import UsageError
from localdflash.cli.options import requested_engine
from localdflash.cli.output import say
from localdflash.lab import result_file
from localdflash.lab.cli.progress_line import ProgressLine
from localdflash.models.config import load_config
from localdflash.models.registry import defaults
from localdflash.text.sanitize import printable

if TYPE_CHECKING:
    from localdflash.server.client import Client
    from localdflash.server.engine_spec import PairRole

TICK_SECONDS = 1.0  # between updates of the progress line

Command = TypeVar("Command", bound=Callable[..., Any])


def limit_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option `--limit`."""
    return click.option("--limit", type=click.IntRange(1), help=help_text)


json_option = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file."
)
picture_option = click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result as a .png or .svg."
)
suite_option = click.option(
    "--suite",
    type=click.Choice(("auto", "code", "chat")),
    default="auto",
    help="Prompts: code completions, or chats. auto: chats for a model without FIM tokens.",
)
repeats_option = click.option(
    "--repeats",
    type=click.IntRange(1, 20),
    help="Runs of each prompt in each mode. Default: 1 for chats, 2 for code completions, or 1 below --limit 4.",
)


def choose_chat_pair(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; if `pair` is empty, with the user's chat pair."""
    return {**options, "pair": options["pair"] or defaults.chat_pair(load_config())}


class BenchProgress:
    """Context manager that shows progress on stderr from a thread; a `lab.bench.pace.Watcher`."""

    def __init__(self) -> None:
        self._line, self._ended = ProgressLine(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="benchmark progress", daemon=True)
        self._began, self._planned, self._done, self._description = time.monotonic(), 0.0, 0.0, "loading"

    def plan(self, seconds: float, line: str) -> None:
        """Print a line that describes the run, and start the clock of `seconds` planned seconds."""
        self._line.clear()
        say(line)
        self._began, self._planned, self._description = time.monotonic(), seconds, "starting"

    def done(self, seconds: float, description: str) -> None:
        """Record that `seconds` more of the planned seconds are done."""
        self._done, self._description = self._done + seconds, description

    def count(self, number: int, total: int, description: str) -> None:
        """Record that `number` of `total` items are done; the remaining time is extrapolated."""
        elapsed = time.monotonic() - self._began
        if not self._planned and total > 1:
            from localdflash.lab.bench.pace import describe_duration

            self._line.clear()
            say(f"{total} {description}: about {describe_duration(elapsed * total / number)}.")
        self._planned, self._done = elapsed * total / number, elapsed
        self._description = f"{number}/{total} {description}"

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            elapsed = time.monotonic() - self._began
            share = min(self._done / self._planned, 1.0) if self._planned else 0.0
            left = f", about {self._planned - self._done:.0f} s left" if 0 < share < 1 else ""
            self._line.move(share, printable(f"{elapsed:.0f} s{left}: {self._description}"))

    def __enter__(self) -> "BenchProgress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._line.clear()


def check_outputs(json_file: Path | None, picture: Path | None = None) -> None:
    """Create the folders of the output files; raise an error if a file cannot be written. Call it before measuring."""
    if picture:
        from localdflash.lab.bench.typing_picture import check_picture_path

        check_picture_path(picture)
        picture.parent.mkdir(parents=True, exist_ok=True)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.open("a").close()


@contextmanager
def save_result(
    json_file: Path | None,
    show: Callable[[dict[str, Any]], None],
    picture: Path | None = None,
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield an empty result; at the end, also after Ctrl-C or an error, write, draw and show it unless it is empty.

    A closed stdout does not prevent the files, and a full disk does not prevent the tables.
    """
    result = dict[str, Any]()
    try:
        yield result
    finally:
        if result:
            try:
                result_file.write(json_file, result)
                if picture and draw:
                    draw(result, picture)
            finally:
                show(result)


def connect_own_engine(ctx: click.Context, options: dict[str, Any], role: "PairRole | None") -> "Client":
    """Connect to the daemon, starting it if needed; UsageError if the settings name a remote server.

    It serves the pair of `role`, "chat" or "completion". None: the pair in `options`, for both.
    """
    from localdflash.server.spawn import ensure_daemon

    if load_config().server.url:
        raise UsageError(
            f"bench {ctx.info_name}: measures localdflash's own engine; remove [server] url from the settings"
        )
    return ensure_daemon(requested_engine(ctx, options, role), say)
