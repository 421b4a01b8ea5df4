"""Members of groups with the Java client, in a JVM beside the worker: GroupMember.java does it.

Rules:

* The JVM is in the process group of its worker: both are killed and frozen together, and it ends
  when the worker does. One JVM serves the sessions of a worker, one after the other.
* What it asks its listener is noted before it goes on.
* It takes a JDK, and JARS in the environment: a folder with the jars of kafka-clients.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    GoneError,
    Place,
    Records,
    UnknownError,
    Watch,
)
from kraftpy.testing.process import BrokerError, LineProcess

JARS = "KRAFTPY_KAFKA_JARS"
_SOURCE = Path(__file__).with_name("GroupMember.java")
_OPTIONS = ["-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_START_TIMEOUT_S = 60.0


def is_there() -> bool:
    return bool(os.environ.get(JARS)) and shutil.which("javac") is not None


class _Jvm:
    def __init__(self) -> None:
        command = ["java", *_OPTIONS, "-cp", f"{os.environ[JARS]}/*", str(_SOURCE)]
        environment = {secured.JAVA_VARIABLE: secured.javas()}
        self._process = LineProcess(command, None, environment, new_session=False)

    def ask(self, watch: Watch, timeout_s: float, *words: object) -> str:
        """What it answers besides the name of the answer. UnknownError; GoneError: it has ended."""
        deadline = time.monotonic() + timeout_s
        self._write("\t".join(map(str, words)))
        while True:
            answer, _, text = self._read(deadline).partition("\t")
            match answer:
                case "assigned":
                    told = json.loads(text)
                    watch.assigned(told["keys"], told["epoch"], told["member"])
                case "revoked":
                    watch.revoked(json.loads(text)["keys"])
                case "lost":
                    watch.lost(json.loads(text)["keys"])
                case "failed":
                    raise UnknownError(text)
                case "done" | "records":
                    return text
                case _:
                    self.end()
                    raise GoneError(f"the JVM says {answer!r}")
            self._write("noted")

    def _write(self, line: str) -> None:
        try:
            self._process.write_line(line)
        except BrokerError:
            raise GoneError("the JVM has ended") from None

    def _read(self, deadline: float) -> str:
        try:
            return self._process.read_line(max(0.0, deadline - time.monotonic())).decode()
        except BrokerError as error:
            self.end()
            raise GoneError(f"the JVM doesn't answer: {error}") from None

    @property
    def ended(self) -> bool:
        return self._process.ended

    def end(self) -> None:
        self._process.kill()


class _Member:
    _jvm: _Jvm | None = None
    """The one of this process."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch) -> None:
        self._watch = _Epoch(watch)
        if _Member._jvm is None or _Member._jvm.ended:
            _Member._jvm = _Jvm()
        self._own = _Member._jvm
        times = SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS
        self._ask(_START_TIMEOUT_S, "open", bootstrap, group, topic, protocol, *times)

    def _ask(self, timeout_s: float, *words: object) -> str:
        return self._own.ask(self._watch, timeout_s, *words)

    @property
    def epoch(self) -> int:
        return self._watch.epoch

    def poll(self, timeout_s: float) -> Records:
        found: dict[str, list[int]] = json.loads(
            self._ask(6 * TIMEOUT_S, "poll", int(1000 * timeout_s))
        )
        return {key: [(offset, "") for offset in offsets] for key, offsets in found.items()}

    def commit(self, place: Place, offset: int) -> None:
        self._ask(2 * TIMEOUT_S, "commit", *place, offset)

    def close(self) -> None:
        """One that can't be closed ends with its JVM, without a word to its group."""
        try:
            self._ask(2 * TIMEOUT_S, "close")
        except UnknownError:
            self._own.end()


class _Epoch:
    """Remembers the epoch of the newest assignment."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.epoch = -1
        self.revoked = watch.revoked
        self.lost = watch.lost

    def assigned(self, keys: list[str], epoch: int, member_id: str) -> None:
        self.epoch = epoch
        self._watch.assigned(keys, epoch, member_id)


class _Java:
    member: Any = staticmethod(_Member)


ADAPTER = _Java()
