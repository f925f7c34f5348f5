"""Watch the indexed folders of all roots with one watchdog observer. Files are never polled.

On Linux three watchdog classes are replaced: the originals would also watch `node_modules`, and hide a lack of watches.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog import events
from watchdog.events import DirMovedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

MAX_FOLDERS = 20_000  # watched folders per root; all programs of a user share one limit of watches
EVENTS: list[type[FileSystemEvent]] = [
    *(events.DirCreatedEvent, events.DirDeletedEvent, DirMovedEvent, events.FileClosedEvent, events.FileCreatedEvent),
    *(events.FileDeletedEvent, events.FileModifiedEvent, FileMovedEvent),
]
_REMEDIES = {
    errno.ENOSPC: "raise the limit with: sudo sysctl fs.inotify.max_user_watches=524288",
    errno.EMFILE: "raise the limit with: sudo sysctl fs.inotify.max_user_instances=1024",
}


@dataclass(frozen=True)
class WatchListener:
    """Callbacks that watchdog's threads call; they must return at once."""

    changed: Callable[[str, bool, bool], None]  # path, whether it was moved away, whether it is a folder
    is_watched: Callable[[str], bool]  # whether to watch a folder
    lost: Callable[[], None]  # events were lost: any file may have changed
    failed: Callable[[OSError], None]  # the system has no more watches


def start_watching(roots: Iterable[str], listener: WatchListener) -> BaseObserver:
    """Watch the folders below the roots that `is_watched` accepts; OSError if the system cannot watch them."""
    observer = _observer(listener)
    try:
        for root in roots:
            observer.schedule(_Handler(listener), root, recursive=True, event_filter=EVENTS)
        observer.start()
    except BaseException:
        stop_watching(observer)
        raise
    return observer


def stop_watching(observer: BaseObserver) -> None:
    """Stop watching; the listener is not called afterwards."""
    observer.stop()
    if observer.is_alive():
        observer.join(1.0)


def format_warning(error: OSError) -> str:
    """Return the warning that changes are not noticed, with the reason and a remedy."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if remedy := _REMEDIES.get(error.errno or 0):
        reason, remedy = f"inotify: {reason}", f"{remedy}; "
    return (
        f"changes of files are not noticed ({reason}); {remedy or ''}until then a file is read again when it is opened"
        " or saved"
    )


class _Handler(FileSystemEventHandler):
    def __init__(self, listener: WatchListener) -> None:
        self._changed = listener.changed

    def on_any_event(self, event: FileSystemEvent) -> None:
        is_move = isinstance(event, DirMovedEvent | FileMovedEvent)
        self._changed(os.fsdecode(event.src_path), is_move, event.is_directory)
        if is_move:
            self._changed(os.fsdecode(event.dest_path), False, event.is_directory)


if sys.platform == "linux":
    from watchdog.observers.inotify import InotifyEmitter, InotifyObserver, InotifyWatchGroup
    from watchdog.observers.inotify_c import WatchDescriptor

    @dataclass
    class _Group(InotifyWatchGroup):
        """Watches of the folders below one root that `is_watched` accepts, at most `MAX_FOLDERS`."""

        listener: WatchListener = field(kw_only=True)

        def on_queue_overflow(self) -> None:
            super().on_queue_overflow()
            self.listener.lost()

        def _add_all_callbacks(self, path: bytes) -> None:
            stack = [path]
            while stack and len(self._active_callbacks_by_path) < MAX_FOLDERS:
                folder = stack.pop()
                if folder != self.path and not self.listener.is_watched(os.fsdecode(folder)):
                    continue
                self._add_callback(folder)
                with suppress(OSError), os.scandir(folder) as entries:
                    stack += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
                time.sleep(0)

        def _add_callback(self, path: bytes) -> None:
            """Override: a folder that is already watched, perhaps under another name, is not an error."""
            try:
                with self._inotify_fd._lock:
                    watch = self._inotify_fd._get_or_create_watch(path, self.event_mask)
                    watch.callbacks[self._id] = self
            except OSError as error:
                if path == self.path:
                    raise
                if error.errno in _REMEDIES:
                    self.listener.failed(error)
                return  # any other error: the folder was deleted meanwhile or is not readable
            self._active_callbacks_by_path[path] = watch.wd
            self._active_callbacks_by_watch[watch.wd] = path

        def _remove_watch_internally(self, wd: WatchDescriptor) -> None:
            """Override: a folder may have been watched under several names."""
            path = self._active_callbacks_by_watch.pop(wd, b"")
            if self._active_callbacks_by_path.get(path) == wd:
                del self._active_callbacks_by_path[path]

    class _Emitter(InotifyEmitter):
        def __init__(self, *args: Any, listener: WatchListener, **options: Any) -> None:
            super().__init__(*args, **options)
            self._listener = listener

        def on_thread_start(self) -> None:
            mask, root = self.get_event_mask_from_filter(), os.fsencode(self.watch.path)
            self._inotify = _Group(self._inotify_fd, root, mask, is_recursive=True, listener=self._listener)

    class _LinuxObserver(InotifyObserver):
        def __init__(self, listener: WatchListener) -> None:
            super().__init__()
            self._emitter_class = _Emitter
            self._emitter_kwargs["listener"] = listener


def _observer(listener: WatchListener) -> BaseObserver:
    if sys.platform == "linux":
        return _LinuxObserver(listener)
    else:  # noqa: RET505 - type checkers read only one branch
        from watchdog.observers import Observer

        observer = Observer()
        if isinstance(observer, PollingObserver):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return observer
