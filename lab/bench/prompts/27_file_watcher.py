"""Notice changes of files by looking at them again and again."""

import os
import threading


class FileWatcher:
    """Call a function when files below a directory change."""

    def __init__(self, root, callback, interval=1.0, suffixes=None):
        self.root = root
        self.callback = callback
        self.interval = interval
        self.suffixes = tuple(suffixes) if suffixes else None
        self._snapshot = {}
        self._stop = threading.Event()
        self._thread = None

    def scan(self):
        """Return a dictionary of the modification times of all watched files."""
        snapshot = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                if self.suffixes and not name.endswith(self.suffixes):
                    continue
                path = os.path.join(folder, name)
                try:
                    snapshot[path] = os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue
        return snapshot

    def check(self):
        """Compare the files with the last snapshot and report each difference to the
        callback. Return the number of changes.
        """
        current = self.scan()
        changes = []
        for path, modified in current.items():
            if path not in self._snapshot:
                changes.append(("created", path))
            elif self._snapshot[path] != modified:
                changes.append(("modified", path))
        for path in self._snapshot.keys() - current.keys():
            changes.append(("deleted", path))
        self._snapshot = current
        for kind, path in changes:
            self.callback(kind, path)
        return len(changes)

    def _run(self):
        while not self._stop.wait(self.interval):
            self.check()

    def start(self):
        """Take a first snapshot and watch from a background thread."""
        if self._thread is not None:
            raise RuntimeError("the watcher is already running")
        self._snapshot = self.scan()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """Stop the background thread and wait until it has ended."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
