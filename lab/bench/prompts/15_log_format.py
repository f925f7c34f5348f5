"""Formatters and filters for the standard logging module."""

import json
import logging
import sys

COLORS = {"DEBUG": "\033[2m", "WARNING": "\033[33m", "ERROR": "\033[31m"}
RESET = "\033[0m"


class ColorFormatter(logging.Formatter):
    """Color each message by its level."""

    def format(self, record):
        """Format a record and color it if its level has a color."""
        message = super().format(record)
        color = COLORS.get(record.levelname)
        return f"{color}{message}{RESET}" if color else message


class JsonFormatter(logging.Formatter):
    """Write each record as one JSON object on one line."""

    def __init__(self, fields=("levelname", "name"), **constants):
        super().__init__()
        self.fields = fields
        self.constants = constants

    def format(self, record):
        """Convert a record to JSON with the configured fields, its time, its message
        and the traceback if there is one.
        """
        data = dict(self.constants)
        for field in self.fields:
            data[field] = getattr(record, field, None)
        data["time"] = self.formatTime(record)
        data["message"] = record.getMessage()
        if record.exc_info:
            data["traceback"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str)


class RedactFilter(logging.Filter):
    """Replace secret words in messages before they are written."""

    def __init__(self, secrets, replacement="***"):
        super().__init__()
        self.secrets = [secret for secret in secrets if secret]
        self.replacement = replacement

    def filter(self, record):
        """Hide all secrets in the message and let the record pass."""
        message = record.getMessage()
        for secret in self.secrets:
            message = message.replace(secret, self.replacement)
        record.msg = message
        record.args = ()
        return True


def configure(level="INFO", as_json=False, stream=None):
    """Send the records of all loggers to ``stream``, standard error by default."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if as_json:
        handler.setFormatter(JsonFormatter())
    elif stream.isatty():
        handler.setFormatter(ColorFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
