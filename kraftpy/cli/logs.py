"""How a node logs: one line an event, whatever the event is about, as text or as JSON.

    2026-01-31 12:00:00,123 INFO kraftpy.server.node.processes: node-stopping node=1
    {"time": "2026-01-31T12:00:00.123Z", "level": "INFO", "logger": "kraftpy.server.node.processes",
     "node": 1, "pid": 4711, "event": "node-stopping", "message": "node-stopping node=1"}

Events (`kraftpy.events`) end in `key=value` pairs, which JSON has under "fields"; all other lines
are sentences.

Rule: names of groups, members and clients are whatever somebody chose, so unprintable characters
are escaped; nobody can write lines of their own into a log, and none of more than LINE_MAX_LENGTH.
In text, tracebacks keep their lines.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from kraftpy.events import Event
from kraftpy.wording import failure_text, printable

LINE_MAX_LENGTH = 4000
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LineFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line without a traceback; see `logging.Formatter`."""
        record.message = printable(_cut(record.message))
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Lines for programs: an object each, in ASCII; a traceback is one string of it."""

    def __init__(self, node_id: int | None) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        if self._node_id is not None:
            line["node"] = self._node_id
        line["pid"] = record.process
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            line["event"] = event.name
            line["fields"] = event.fields
        line["message"] = _cut(record.getMessage())
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _cut(message: str) -> str:
    if len(message) <= LINE_MAX_LENGTH:
        return message
    return f"{message[:LINE_MAX_LENGTH]}... ({len(message)} characters)"


class LogFile(logging.FileHandler):
    """A file that may become full: that is said once, in a sentence, and not for every line."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Says why a line isn't there; see `logging.Handler`."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            sys.stderr.write(
                f"kraftpy: cannot write the log {self.baseFilename}: {failure_text(error)}. Lines "
                "of it are missing from now on, until there is room again\n"
            )


def log_to(
    handler: logging.Handler,
    *,
    level: str = "info",
    log_format: str = "text",
    node_id: int | None = None,
) -> None:
    """From now on everything from `level` up goes there."""
    handler.setFormatter(JsonFormatter(node_id) if log_format == "json" else LineFormatter())
    logging.basicConfig(handlers=[handler], level=LEVELS[level])
