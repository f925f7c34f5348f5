"""A queue of changed paths; each is returned at most once per `PAUSE`, however often it changes."""

import threading
import time

PAUSE = 0.2  # seconds from a file's first change to its next look


class Changes:
    """Filled from any thread, emptied by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._closed = False
        self._busy = False

    def put(self, path: str, *, gone: bool = False, pause: float = PAUSE) -> None:
        """Queue a changed path. `gone`: what has that name now, on a disk that ignores case, is another file."""
        with self._changed:
            due = time.monotonic() + pause
            self._due[path] = min(self._due.get(path, due), due)
            (self._gone.add if gone else self._gone.discard)(path)
            self._changed.notify_all()

    def take(self) -> list[tuple[str, bool]]:
        """Wait for paths that are due: each with whether it is gone. Empty when closed."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._closed:
                now = time.monotonic()
                if ready := [path for path, due in self._due.items() if due <= now]:
                    self._busy = True
                    taken = [(path, path in self._gone) for path in ready]
                    for path in ready:
                        del self._due[path]
                        self._gone.discard(path)
                    return taken
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return []

    def settled(self, timeout: float) -> bool:
        """Wait until the queue is empty and nothing is being processed; False after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._due or self._busy), timeout)

    def start(self) -> None:
        """Mark the thread that takes as busy, until it takes again."""
        self._busy = True

    def close(self) -> None:
        """Let the thread that takes end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
