"""Queue of changed paths. Each path is returned at most once per `PAUSE_SECONDS`."""

import threading
import time

PAUSE_SECONDS = 0.2  # from a file's first change until it is read


class ChangeQueue:
    """Queue that any thread fills and one thread empties."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._closed = False
        self._busy = False

    def put(self, path: str, *, gone: bool = False, pause: float = PAUSE_SECONDS) -> None:
        """Queue a path. `gone`: it was renamed away, even if a disk that ignores case still has a file of that name."""
        with self._changed:
            due = time.monotonic() + pause
            self._due[path] = min(self._due.get(path, due), due)
            (self._gone.add if gone else self._gone.discard)(path)
            self._changed.notify_all()

    def take(self) -> list[tuple[str, bool]]:
        """Wait for paths that are due; return each with its `gone`. Return [] once the queue is closed."""
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
        """Wait until the queue is empty and no path is being processed; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._due or self._busy), timeout)

    def start(self) -> None:
        """Mark the consumer as busy until its next `take`."""
        self._busy = True

    def close(self) -> None:
        """Let the consumer's `take` return."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
