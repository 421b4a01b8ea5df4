"""Asks a user's delete policy, in a process of its own, so that nothing of it is the broker's.

Rules:

* The class is named by the node's own settings alone; nobody sets it over the wire.
* It's loaded from Python's path, and not from the folder that the broker was started in. A node
  whose policy can't be loaded doesn't start.
* A question has a number of segments at most and a time within which to be answered; a process that
  takes longer is killed. A policy that fails or takes too long deletes nothing, and is asked again
  in the next round.
* An answer is a number of the oldest segments; the log itself decides which of them still are what
  they were, and are below the high watermark.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from typing import IO, Final

from kraftpy.core.config.kinds import shorten
from kraftpy.frozen import NamedTuple
from kraftpy.storage.deleting.policies import LogFacts
from kraftpy.storage.files import StorageError

logger = logging.getLogger(__name__)

KEY: Final = "kraftpy.delete.policy.class"
EXIT_REFUSED: Final = 1
TIMEOUT_S: Final = 10.0
SEGMENTS_OF_LOG_MAX: Final = 100
_SEGMENTS_MAX: Final = 5_000
_ANSWER_BYTES_MAX: Final = 1 << 20


class ReportedSegment(NamedTuple):
    """A segment as the process is told of it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    bytes_behind: int
    newest_ms: int


class _Asked(NamedTuple):
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]
    since_s: float


class PolicyProcess:
    """A user's delete policy; `ask` begins, `poll` tells what it said. On the event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked: _Asked | None = None
        self._logs: list[tuple[LogFacts, list[ReportedSegment]]] = []
        self._count = 0

    def check(self) -> None:
        """Waits until it's known that the policy can be made. Raises StorageError."""
        try:
            asked = self._start(b"")
        except OSError as error:
            raise StorageError(f"{KEY}={self._path} can't be asked: {error}") from error
        try:
            code: int | None = asked.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        answer, why = self._end(asked)
        if code != 0 or answer is None:
            raise StorageError(
                f"{KEY}={self._path} can't be used: {why or f'it took more than {TIMEOUT_S:g} s'}. "
                "Install what has it where kraftpy is installed, or set PYTHONPATH to its folder"
            )

    # -- asking

    @property
    def busy(self) -> bool:
        """Whether it has been asked, and hasn't answered."""
        return self._asked is not None

    @property
    def full(self) -> bool:
        """Whether it's to be asked now, before it's told of more."""
        return self._count >= _SEGMENTS_MAX

    def tell(self, log: LogFacts, segments: list[ReportedSegment]) -> None:
        """Tells it of a log, for the next question."""
        self._logs.append((log, segments))
        self._count += len(segments)

    def ask(self, now_ms: int) -> None:
        """Asks what may go of what it has been told of."""
        question = json.dumps({"now_ms": now_ms, "logs": self._logs})
        self._logs, self._count = [], 0
        try:
            self._asked = self._start(question.encode())
        except OSError as error:
            logger.error("can't ask %s=%s, will try again: %s", KEY, self._path, error)

    def _start(self, question: bytes) -> _Asked:
        # Files and not pipes: neither side ever waits for the other.
        output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - kept
        with tempfile.TemporaryFile() as asked:
            asked.write(question)
            asked.seek(0)
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "kraftpy.storage.deleting",
                    self._path,
                    str(os.getpid()),
                ],
                stdin=asked,
                stdout=output,
                stderr=errors,
            )
        return _Asked(process, output, errors, time.monotonic())

    def poll(self) -> list[int] | None:
        """How many segments may go of each log that the question was about; None if not known."""
        asked = self._asked
        if asked is None:
            return None
        late = time.monotonic() - asked.since_s > TIMEOUT_S
        if asked.process.poll() is None and not late:
            return None
        self._asked = None
        code = asked.process.poll()
        answer, why = self._end(asked)
        if answer is None or code != 0:
            logger.error(
                "%s=%s failed, nothing is deleted because of it in this round: %s",
                KEY,
                self._path,
                why or f"it took more than {TIMEOUT_S:g} s",
            )
            return []
        return answer

    def _end(self, asked: _Asked) -> tuple[list[int] | None, str]:
        """The answer, and what it said beside."""
        asked.process.kill()
        asked.process.wait()
        with asked.output, asked.errors:
            asked.output.seek(0)
            asked.errors.seek(0)
            text = asked.output.read(_ANSWER_BYTES_MAX)
            why = shorten(asked.errors.read(4096).decode(errors="replace").strip(), 500)
        try:
            answer = json.loads(text)
        except ValueError:
            return None, why
        sound = isinstance(answer, list) and all(type(each) is int and each >= 0 for each in answer)
        return (answer if sound else None), why

    def kill(self) -> None:
        """Ends what is under way, and forgets what it was told."""
        self._logs, self._count = [], 0
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._end(asked)
