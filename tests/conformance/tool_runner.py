"""Many runs of Kafka's tools in one JVM: its start takes longer than most of them."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from tests.apache_kafka import TOOLS
from tests.conformance.foreign import java_program

_TIMEOUT_S = 60.0


class Ended(NamedTuple):
    """What a tool left: its exit code and what it printed."""

    code: int
    out: str
    err: str


class ToolRunner:
    """A JVM that runs tools; `with ToolRunner(log)` ends it."""

    def __init__(self, log: Path, command: Sequence[str] | None = None) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command or java_program("ToolRunner"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._log = log

    def __enter__(self) -> ToolRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def end(self) -> None:
        """Let the JVM end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_TIMEOUT_S)

    def run(self, tool: str, *args: str) -> Ended:
        """Run a tool to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\x01".join((TOOLS[tool], *args)).encode() + b"\n")
        stdin.flush()
        deadline = time.monotonic() + _TIMEOUT_S
        code, size = struct.unpack(">ii", self._read(stdout, 8, deadline))
        out = self._read(stdout, size, deadline)
        (size,) = struct.unpack(">i", self._read(stdout, 4, deadline))
        return Ended(code, out.decode(), self._read(stdout, size, deadline).decode())

    def _read(self, stream: IO[bytes], size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([stream], [], [], left)[0], f"no answer in {_TIMEOUT_S:.0f} s"
            part = os.read(stream.fileno(), size - len(data))
            assert part, f"the JVM ended:\n{self._log.read_text()}"
            data += part
        return data
