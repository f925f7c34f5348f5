"""Dialog to choose another model: it lists models, shows whether they fit, and downloads them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import on, work
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.typed_paths import absolute_pair, absolute_path
from localdflash.models.weights.gguf import is_gguf
from localdflash.tui.screens.dialog import ChoiceList, Field, ListDialog, one_line, two_rows

if TYPE_CHECKING:
    from localdflash.chat.model_list import ModelRow, PullProgress

Rows = Callable[[], Awaitable[Sequence["ModelRow"]]]  # lists the models
Fit = Callable[[str], Awaitable[Sequence[str]]]  # returns lines on whether a model fits
Describe = Callable[[str], Awaitable["ModelRow"]]  # describes a path or an hf: name
Pull = Callable[[str, Callable[["PullProgress"], None]], Coroutine[Any, Any, str]]  # downloads a model, returns its id
FIT_DELAY_SECONDS = 0.2  # from highlighting a row to computing its fit
LOOKUP_DELAY_SECONDS = 0.4  # from the last key to looking up the typed name
MIN_RATED_SHARE = 0.01  # share of a file after which its download rate is shown
HUB_PREFIX = "hf:"
KEYS = "Enter loads the model, downloading it first if needed   Esc closes"
DOWNLOAD_KEYS = "Esc stops; the next download resumes from there"


class ModelPicker(ListDialog[str]):
    """List of models under a field that narrows it, or takes a path or an hf: name; the result is an id or a path."""

    DEFAULT_CSS = """
    ModelPicker {
        #fit { height: auto; max-height: 50%; color: $foreground; }
        &.-low #fit { max-height: 2; }
    }
    """

    def __init__(self, rows: Rows, fit: Fit, describe: Describe, pull: Pull, current: str = "") -> None:
        super().__init__("Models", KEYS)
        self._rows, self._compute_fit, self._describe, self._pull = rows, fit, describe, pull
        self._current = current
        self._all: Sequence[ModelRow] = ()
        self._shown: Sequence[ModelRow] = ()
        self._fits: dict[str, Sequence[str]] = {}
        self._pulling: asyncio.Task[str] | None = None

    def body(self) -> Iterable[Widget]:
        """Yield the field, the list, and the fit of the highlighted model."""
        hint = "Part of a name, the path of a .gguf file, or hf:owner/name"
        yield Field(placeholder=hint, select_on_focus=False)  # keeps the text after a download
        yield ChoiceList()
        yield Static("Looking for models…", id="fit", markup=False)

    def on_mount(self) -> None:
        """Load the list."""
        self._load()

    @work
    async def _load(self) -> None:
        try:
            self._all = await self._rows()
        except LocaldflashError as error:
            self._say(str(error))
            return
        if not self.is_attached:
            return
        self._narrow()
        at = next((i for i, row in enumerate(self._shown) if row.id == self._current), None)
        if at is not None:
            self.choices.highlighted = at

    @on(Input.Changed)
    def _narrow(self) -> None:
        """Show the models that match the typed text, or describe a typed path or hub name."""
        self.workers.cancel_group(self, "typed")
        typed = self._typed
        if _is_path_or_hub_name(typed):
            self._show([])
            self._look_up(typed)
            return
        self._show([row for row in self._all if typed.lower() in f"{row.id} {row.description}".lower()])
        if self._all and not self._shown:
            self._say(f"No model has this name: {typed}")

    def _show(self, rows: "Sequence[ModelRow]") -> None:
        self._shown = rows
        self.choices.show(two_rows(_title(row), self._describe_row(row)) for row in rows)

    @work(exclusive=True, group="typed")
    async def _look_up(self, typed: str) -> None:
        """Describe a typed path or hub name."""
        if not typed.startswith(HUB_PREFIX) and not absolute_path(typed).is_file():
            self._say(f"There is no file at {absolute_path(typed)}")
            return
        self._say(f"Looking at {typed} …")
        await asyncio.sleep(LOOKUP_DELAY_SECONDS)
        try:
            row = await self._describe(absolute_pair(typed))
        except LocaldflashError as error:
            self._say(str(error))
            return
        if self.is_attached and self._typed == typed:
            self._show([row])

    @property
    def _typed(self) -> str:
        return self.query_one(Field).value.strip()

    def _describe_row(self, row: "ModelRow") -> str:
        place = "on this machine" if row.is_downloaded else f"not downloaded{row.download and f', {row.download}'}"
        state = "loaded now" if row.id == self._current else place
        needs = row.memory and f"about {row.memory} of memory"
        recommended = row.recommended and f"recommended here, {row.recommended}"
        parts = (row.why_not, row.description) if row.why_not else (recommended, state, needs, row.description)
        return " · ".join(filter(None, parts))

    @on(OptionList.OptionHighlighted)
    def _row_highlighted(self) -> None:
        if row := self._highlighted:
            self._find_fit(row)

    @property
    def _highlighted(self) -> "ModelRow | None":
        at = self.choices.highlighted
        return None if at is None or at >= len(self._shown) else self._shown[at]

    @work(exclusive=True, group="fit")
    async def _find_fit(self, row: "ModelRow") -> None:
        if row.why_not:
            self._say(_refusal(row))
            return
        if row.id not in self._fits:
            self._say(_how_to_get(row), "Does it fit? …")
            await asyncio.sleep(FIT_DELAY_SECONDS)
            try:
                self._fits[row.id] = await self._compute_fit(row.id)
            except LocaldflashError as error:
                self._fits[row.id] = [str(error)]
        if self.is_attached and row == self._highlighted and not self._pulling:
            self._say(_how_to_get(row), *self._fits[row.id])

    def action_move(self, rows: int) -> None:
        """Move the highlight, except during a download."""
        if not self._pulling:
            super().action_move(rows)

    def action_close(self) -> None:
        """Stop the download, if there is one; otherwise close without a change."""
        if self._pulling:
            self._pulling.cancel()
        else:
            super().action_close()

    @on(Input.Submitted)
    def _entered(self) -> None:
        if self._highlighted:
            self._choose(self._highlighted)
        elif self._typed.startswith(HUB_PREFIX):
            self._fetch(self._typed)
        elif _is_path_or_hub_name(self._typed) and absolute_path(self._typed).is_file():
            self.dismiss(absolute_pair(self._typed))  # without waiting for its description

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(self._shown[event.option_index])

    def _choose(self, row: "ModelRow") -> None:
        if row.why_not:
            self._say(_refusal(row))
        elif row.is_downloaded:
            self.dismiss(row.id)
        else:
            self._fetch(row.id)

    @work(group="pull")
    async def _fetch(self, name: str) -> None:
        """Download a model and close with it; on an error show the message and keep the dialog open."""
        if self._pulling:
            return
        self.workers.cancel_group(self, "fit")
        self._say(f"Asking for {name} …")
        self._change_keys(DOWNLOAD_KEYS, typing=False)
        self._pulling = asyncio.create_task(self._pull(name, DownloadProgress(self._say).move))
        try:
            pulled = await self._pulling
        except LocaldflashError as error:
            self._say(str(error))
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) and own.cancelling():
                raise
            self._say("Stopped: Enter resumes the download.")
        else:
            self.dismiss(pulled)
            return
        finally:
            self._pulling = None
        if self.is_attached:
            self._change_keys(KEYS, typing=True)

    def _change_keys(self, keys: str, *, typing: bool) -> None:
        self.query_one("#keys", Static).update(keys)
        field = self.query_one(Field)
        field.disabled = self.choices.disabled = not typing
        if typing:
            field.focus()

    def _say(self, *lines: str) -> None:
        if self.is_attached:
            self.query_one("#fit", Static).update("\n".join(one_line(line) for line in lines if line))


class DownloadProgress:
    """Progress of a download in two lines, with rate and time left; restarts with each file."""

    WIDTH = 24

    def __init__(self, say: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._activity, self._began, self._first = "", 0.0, 0  # `_first`: bytes done when the activity began

    def move(self, progress: "PullProgress") -> None:
        """Show the progress."""
        from localdflash.models.memory.parts import format_bytes

        what = f"{progress.doing} {progress.name.rpartition('/')[2]}"
        if what != self._activity:
            self._activity, self._began, self._first = what, self._clock(), progress.done
        share = progress.done / progress.total if progress.total else 0.0
        filled = round(share * self.WIDTH)
        bar = "█" * filled + "░" * (self.WIDTH - filled)
        parts = [
            f"{bar} {share:.0%}".replace("%", " %"),
            f"{format_bytes(progress.done)} of {format_bytes(progress.total)}",
        ]
        seconds, received = self._clock() - self._began, progress.done - self._first
        if seconds > 0 and received > progress.total * MIN_RATED_SHARE:
            rate = received / seconds
            parts += [f"{format_bytes(rate)}/s", f"{_duration((progress.total - progress.done) / rate)} left"]
        self._say(what[:1].upper() + what[1:], " · ".join(parts))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _is_path_or_hub_name(typed: str) -> bool:
    """Return whether the text is the path of a model file or a hub name, not a name in the list."""
    is_hub_or_gguf_name = typed.startswith(HUB_PREFIX) or typed.lower().endswith(".gguf")
    return is_hub_or_gguf_name or ("/" in typed and is_gguf(absolute_path(typed)))


def _title(row: "ModelRow") -> str:
    """Return the row's title: the model's name, or the file name of a path."""
    return Path(row.id).name if Path(row.id).is_absolute() else row.id


def _how_to_get(row: "ModelRow") -> str:
    size = f": {row.download}" if row.download else ""
    return "" if row.is_downloaded else f"Not downloaded{size}. Enter downloads it, then loads it."


def _refusal(row: "ModelRow") -> str:
    return f"{row.id} cannot run here: {row.why_not}"
