"""Settings that come from defaults, a file and the environment."""

import json
import os
from pathlib import Path


class SettingsError(Exception):
    """A setting is unknown or has the wrong type."""


class Settings:
    """Values with a fixed set of names and types."""

    def __init__(self, prefix, **defaults):
        self.prefix = prefix
        self._defaults = defaults
        self._values = dict(defaults)
        self._origins = {name: "default" for name in defaults}

    def _convert(self, name, value):
        """Convert a value to the type of the default with the same name."""
        if name not in self._defaults:
            raise SettingsError(f"unknown setting: {name}")
        expected = type(self._defaults[name])
        if expected is bool and isinstance(value, str):
            return value.lower() in ("1", "true", "yes", "on")
        try:
            return expected(value)
        except (TypeError, ValueError):
            raise SettingsError(f"{name} must be of type {expected.__name__}") from None

    def set(self, name, value, origin="code"):
        """Change a setting and remember where the new value came from."""
        self._values[name] = self._convert(name, value)
        self._origins[name] = origin

    def load_file(self, path):
        """Read settings from a JSON file. Nothing happens if it does not exist."""
        path = Path(path)
        if not path.exists():
            return
        with path.open(encoding="utf-8") as stream:
            data = json.load(stream)
        for name, value in data.items():
            self.set(name, value, origin=str(path))

    def load_environment(self, environ=None):
        """Read settings from variables such as ``APP_DEBUG``."""
        environ = os.environ if environ is None else environ
        for name in self._defaults:
            variable = f"{self.prefix}_{name}".upper()
            if variable in environ:
                self.set(name, environ[variable], origin=f"${variable}")

    def __getattr__(self, name):
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def describe(self):
        """Return one line for each setting with its value and its origin."""
        lines = []
        for name in sorted(self._values):
            value = self._values[name]
            lines.append(f"{name} = {value!r}  ({self._origins[name]})")
        return "\n".join(lines)
