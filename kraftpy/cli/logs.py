"""How a node logs: one line an event, whatever the event is about.

Rule: names of groups, members and clients are whatever somebody chose, so what is no character to
be shown is escaped; nobody can write lines of their own into a log. Tracebacks keep their lines.
"""

from __future__ import annotations

import logging

from kraftpy.cli.common import printable

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """The format of all logs."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line without a traceback; see `logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def log_to(handler: logging.Handler) -> None:
    """From now on everything from INFO up goes there."""
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
