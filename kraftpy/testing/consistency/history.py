"""The recorded history of a run: JSON lines that several processes write and checkers read.

Rules:

* The first line is the header: workload, seed, options, versions, how to run it again.
* Every other line is an operation's event, a fault, or a phase. All times are nanoseconds on one
  monotonic clock: an operation's beginning is taken before anything is sent, its end after the
  answer is in, so that what the times call one-after-the-other really was.
* A process is one client session. It may have several operations under way, told apart by `op`. A
  client that is replaced, or that starts again, is a new process. A process never goes back in
  time; the lines of different processes may be a little out of order.
* An operation is invoked, and then ends with ok (it took effect), fail (it did not, and never
  will) or info (nobody knows). One without an end is as good as info. An ok without `op` is
  something that happened at one moment (a callback): it has no invocation.
* A line goes out with one write() in append mode and begins with the line break that ends the
  one before. So a writer that is killed in the middle damages its own line only, which the
  reader counts and passes over. Any other damage is an error that names the line.

An event: {"time": 17, "process": 3, "op": 8, "type": "invoke", "f": "send", "value": [["t-0", 5]]},
with "error", "node" and "client" (as text) where there is something to say. What `value` holds is
in `shapes`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.shapes import SHAPES

FORMAT = 1
LINE_BYTES_MAX = 1 << 20
EVENTS_MAX = 40_000_000
_TEXT_CHARS_MAX = 10_000
_INT_MAX = 2**62

EVENT_TYPES = ("invoke", "ok", "fail", "info")
FAULT_PHASES = ("start", "end", "void", "point")
PHASES = ("load", "heal", "final")
"""Under load and faults; faults are over and the cluster recovers; all is read to the end."""


class HistoryError(ValueError):
    """A history that can't be read or written; says which line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What was run.

    `options` are the workload's and decide what is promised: "idempotence" (true: the producers are
    idempotent), "allowed" (names of anomalies that transactions may show).
    `again` is the command line that runs it again; `started_at` is ISO 8601.
    """

    workload: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    again: Sequence[str] = ()
    started_at: str = ""


class Event(NamedTuple):
    """One event of an operation; `op` is -1 for something that happened at one moment."""

    line: int
    time_ns: int
    process: int
    op: int
    type: str
    f: str
    value: Any
    error: str
    node: str
    client: str


class Fault(NamedTuple):
    """A fault that begins, ends, or happens at one moment ("point"); `id` joins begin and end.

    The `detail` of its beginning says what it is to be, that of its end what happened. One that
    ends as "void" was not what its name says: `detail` says why.
    """

    line: int
    time_ns: int
    name: str
    phase: str
    id: int
    targets: tuple[str, ...]
    detail: str


class Phase(NamedTuple):
    """From here on the run is in this one of `PHASES`."""

    line: int
    time_ns: int
    name: str


Entry = Event | Fault | Phase

_HEADER_FIELDS: dict[str, type] = {
    "history": int,
    "workload": str,
    "seed": int,
    "options": dict,
    "versions": dict,
    "again": list,
    "started_at": str,
}
_EVENT_FIELDS = {"time", "process", "op", "type", "f", "value", "error", "node", "client"}
_FAULT_FIELDS = {"time", "fault", "phase", "id", "targets", "detail"}


# -- writing


class HistoryWriter:
    """Appends to a history; any number of them, in any number of processes, may share the file.

    The first one gives the header and makes the file; the others leave it out and join. Methods
    may be called from several threads. Raises HistoryError where a line is too long or the disk
    is full, OSError where the file can't be opened (FileExistsError: there is a history already).
    """

    def __init__(
        self,
        path: str | Path,
        header: Header | None = None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        if header is not None:
            flags |= os.O_CREAT | os.O_EXCL
        self._fd = os.open(path, flags, 0o644)
        self._clock_ns = clock_ns
        self._ops = itertools.count()
        if header is not None:
            fields = {name: getattr(header, name) for name in _HEADER_FIELDS if name != "history"}
            self._write({"history": FORMAT, **fields}, first=True)

    def invoke(
        self, process: int, f: str, value: Any = None, *, node: str = "", client: str = ""
    ) -> int:
        """An operation is about to begin; returns the `op` that its end has to name."""
        op = next(self._ops)
        self._event(process, op, "invoke", f, value, "", node, client)
        return op

    def ok(self, process: int, op: int, f: str, value: Any = None, *, node: str = "") -> None:
        """It took effect."""
        self._event(process, op, "ok", f, value, "", node, "")

    def fail(
        self, process: int, op: int, f: str, error: str, value: Any = None, *, node: str = ""
    ) -> None:
        """It did not take effect and never will."""
        self._event(process, op, "fail", f, value, error, node, "")

    def info(
        self, process: int, op: int, f: str, error: str, value: Any = None, *, node: str = ""
    ) -> None:
        """It may have taken effect, or may yet."""
        self._event(process, op, "info", f, value, error, node, "")

    def note(
        self, process: int, f: str, value: Any = None, *, node: str = "", client: str = ""
    ) -> None:
        """Something happened just now: a callback."""
        self._event(process, None, "ok", f, value, "", node, client)

    def fault(
        self, name: str, phase: str, fault_id: int, targets: Sequence[str], detail: str = ""
    ) -> None:
        """A fault `start`s, `end`s (`void`: and was none), or happens at this `point`."""
        fields = {"fault": name, "phase": phase, "id": fault_id, "targets": list(targets)}
        fields["detail"] = detail[:_TEXT_CHARS_MAX]
        self._write({"time": self._clock_ns(), **fields})

    def phase(self, name: str) -> None:
        """The run enters one of `PHASES`."""
        self._write({"time": self._clock_ns(), "phase": name})

    def close(self) -> None:
        os.write(self._fd, b"\n")
        os.close(self._fd)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _event(
        self,
        process: int,
        op: int | None,
        kind: str,
        f: str,
        value: Any,
        error: str,
        node: str,
        client: str,
    ) -> None:
        fields: dict[str, Any] = {"time": self._clock_ns(), "process": process}
        if op is not None:
            fields["op"] = op
        fields |= {"type": kind, "f": f}
        if value is not None:
            fields["value"] = value
        texts = {"error": error, "node": node, "client": client}
        self._write(fields | {name: text[:_TEXT_CHARS_MAX] for name, text in texts.items() if text})

    def _write(self, fields: Mapping[str, Any], first: bool = False) -> None:
        line = json.dumps(fields, separators=(",", ":"), default=dict).encode()
        if len(line) >= LINE_BYTES_MAX:
            raise HistoryError(
                f"a line of {len(line)} bytes: the limit is {LINE_BYTES_MAX}; split the operation"
            )
        data = line if first else b"\n" + line
        written = os.write(self._fd, data)
        if written < len(data):
            raise HistoryError(
                f"only {written} of {len(data)} bytes were written: is the disk full?"
            )


# -- reading


class HistoryReader:
    """Streams a stored history, checking every line.

    `header` is there at once; `torn_lines` counts what killed writers left unfinished, complete
    when the iteration is. Raises HistoryError, and OSError where the file can't be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.torn_lines = 0
        with self.path.open("rb") as file:
            self.header = self._read_header(_read_line(file, 1, self.path))

    def __iter__(self) -> Iterator[Entry]:
        self.torn_lines = 0
        number = 1
        with self.path.open("rb") as file:
            _read_line(file, number, self.path)
            while line := _read_line(file, number + 1, self.path):
                number += 1
                if line == b"\n":
                    continue
                if number > EVENTS_MAX:
                    raise self._bad(number, f"a history has {EVENTS_MAX} lines at most")
                try:
                    fields = json.loads(line)
                except ValueError as error:
                    if not _is_torn(line, error):
                        raise self._bad(number, f"not JSON: {error}") from None
                    self.torn_lines += 1
                    continue
                yield self._entry(number, fields)

    def _bad(self, line: int, problem: str) -> HistoryError:
        return HistoryError(f"{self.path}, line {line}: {problem}")

    def _read_header(self, line: bytes) -> Header:
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise self._bad(1, f"no history begins like this: {error}") from None
        if not isinstance(fields, dict) or "history" not in fields:
            raise self._bad(1, 'no header: a history begins with {"history":1,"workload":...')
        if fields["history"] != FORMAT:
            raise self._bad(1, f"format {fields['history']!r}, and this version reads {FORMAT}")
        for name, kind in _HEADER_FIELDS.items():
            if type(fields.get(name)) is not kind:
                raise self._bad(
                    1, f"the header's {name!r} is missing or not of type {kind.__name__}"
                )
        if unknown := fields.keys() - _HEADER_FIELDS:
            raise self._bad(1, f"the header has no field {min(unknown)!r}")
        if not all(
            isinstance(text, str) for text in (*fields["versions"].values(), *fields["again"])
        ):
            raise self._bad(1, "the header's 'versions' and 'again' hold texts")
        fields.pop("history")
        return Header(**fields | {"again": tuple(fields["again"])})

    def _entry(self, line: int, fields: Any) -> Entry:
        if type(fields) is not dict:
            raise self._bad(line, "a line is a JSON object")
        time_ns = fields.get("time")
        if type(time_ns) is not int or not 0 <= time_ns < _INT_MAX:
            raise self._bad(line, f"'time' is {time_ns!r:.40} and should be nanoseconds")
        if "type" in fields:
            return self._event(line, time_ns, fields)
        if "fault" in fields:
            return self._fault(line, time_ns, fields)
        if fields.keys() == {"time", "phase"}:
            if fields["phase"] not in PHASES:
                raise self._bad(line, f"'phase' is none of {', '.join(PHASES)}")
            return Phase(line, time_ns, fields["phase"])
        raise self._bad(line, "neither an operation ('type') nor a 'fault' nor a 'phase'")

    def _event(self, line: int, time_ns: int, fields: dict[str, Any]) -> Event:
        get = fields.get
        process, op, kind, f, value = (
            get("process"),
            get("op", -1),
            get("type"),
            get("f"),
            get("value"),
        )
        if kind not in EVENT_TYPES:
            raise self._bad(line, f"'type' is {kind!r:.40}, none of {', '.join(EVENT_TYPES)}")
        if type(process) is not int or not 0 <= process < _INT_MAX:
            raise self._bad(line, f"'process' is {process!r:.40} and should be a whole number")
        if type(op) is not int or not -1 <= op < _INT_MAX:
            raise self._bad(line, f"'op' is {op!r:.40} and should be a whole number")
        if op < 0 and kind != "ok":
            raise self._bad(line, f"{kind} without 'op': only an ok can do without")
        shape = SHAPES.get(f) if type(f) is str else None
        if type(f) is not str or shape is None:
            raise self._bad(line, f"'f' is {f!r:.40}, which no workload knows")
        if problem := shape(kind, value):
            raise self._bad(line, problem)
        if op < 0 and value is None:
            raise self._bad(line, f"{f} without 'op' has no invocation, so it needs a 'value'")
        if len(fields) > 5 + ("value" in fields):
            if unknown := fields.keys() - _EVENT_FIELDS:
                raise self._bad(line, f"there is no field {min(unknown)!r:.40}")
            for name in ("error", "node", "client"):
                self._check_text(line, name, get(name, ""))
        return Event(
            line, time_ns, process, op, kind, f, value,
            get("error", ""), get("node", ""), get("client", ""),
        )  # fmt: skip

    def _fault(self, line: int, time_ns: int, fields: dict[str, Any]) -> Fault:
        if unknown := fields.keys() - _FAULT_FIELDS:
            raise self._bad(line, f"a fault has no field {min(unknown)!r:.40}")
        self._check_text(line, "fault", fields["fault"])
        self._check_text(line, "detail", fields.get("detail", ""))
        if fields.get("phase") not in FAULT_PHASES:
            raise self._bad(line, f"'phase' of a fault is none of {', '.join(FAULT_PHASES)}")
        fault_id, targets = fields.get("id"), fields.get("targets")
        if type(fault_id) is not int:
            raise self._bad(line, f"'id' is {fault_id!r:.40} and should be a whole number")
        if type(targets) is not list:
            raise self._bad(line, "'targets' is a list of texts")
        for target in targets:
            self._check_text(line, "targets", target)
        return Fault(
            line, time_ns, fields["fault"], fields["phase"], fault_id, tuple(targets),
            fields.get("detail", ""),
        )  # fmt: skip

    def _check_text(self, line: int, name: str, text: Any) -> None:
        if type(text) is not str or len(text) > _TEXT_CHARS_MAX:
            raise self._bad(line, f"{name!r} is no text of up to {_TEXT_CHARS_MAX} characters")


def _read_line(file: BinaryIO, number: int, path: Path) -> bytes:
    line = file.readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        raise HistoryError(f"{path}, line {number}: longer than {LINE_BYTES_MAX} bytes")
    return line


def _is_torn(line: bytes, error: ValueError) -> bool:
    """Whether this is the beginning of an object and nothing else is wrong with it."""
    text = line.rstrip(b"\n")
    if not text.startswith(b"{"):
        return False
    if not text.endswith(b"}"):
        return True
    return isinstance(error, json.JSONDecodeError) and error.pos >= len(text.decode())
