"""`kraftpy`, killed with -9 at a stage of a write: `python -m tests.spark.dying_writes STAGE ...`.

Also tasks that fail there: the same stages without the driver's death.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import kraftpy.pipeline.write as module
from kraftpy.cli.app import app
from kraftpy.pipeline.lake import Lake
from kraftpy.spark.delivery import Part
from kraftpy.spark.exactly_once import MarkingProducer
from tests.spark.dying import dying_after

IN_TASKS = ("some rows sent", "part sent", "part noted")
MARKED = "part marked"
"""With exactlyOnce: all of it is written and not committed."""
STAGES = ("planned", *IN_TASKS, "all parts", "committed")


class TaskError(Exception):
    """Made by the test."""


def failing_work(stage: str, fail: Callable[[], None]) -> type[module._Work]:
    """What tasks do, but `fail` is called when the first part gets to the stage."""

    class Work(module._Work):
        def run(self, chain: Any) -> Iterator[Any]:
            with patch.object(MarkingProducer, "commit_transaction", commit):
                yield from super().run(chain)

        def _parts(self, chain: Any) -> Iterator[tuple[int, Part]]:
            for number, part in super()._parts(chain):
                tables = _failing_rows(part) if stage == IN_TASKS[0] else part.tables
                yield number, Part(tables, mark(part))

    commit_transaction = MarkingProducer.commit_transaction

    async def commit(producer: MarkingProducer) -> None:
        if stage == MARKED:
            await producer.flush()
            fail()
        await commit_transaction(producer)

    def _failing_rows(part: Part) -> Iterable[Any]:
        for table in part.tables:
            yield table.slice(0, table.num_rows // 2)
            fail()
            yield table.slice(table.num_rows // 2)

    def mark(part: Part) -> Callable[[int], None]:
        def call(rows: int) -> None:
            if stage == "part sent":
                fail()
            part.mark(rows)
            if stage == "part noted":
                fail()

        return call

    return Work


def fail_task() -> None:
    raise TaskError("made by the test")


def _kill(driver: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(driver, signal.SIGKILL)
    time.sleep(60)  # the task is to come no further


def main(stage: str, arguments: list[str]) -> None:
    """Run the command; it doesn't come back if it gets to the stage."""
    driver = os.getpid()
    if stage == "planned":
        Lake.freeze = dying_after(Lake.freeze)  # type: ignore[method-assign]
    elif stage in (*IN_TASKS, MARKED):
        module._Work = failing_work(stage, partial(_kill, driver))  # type: ignore[misc]
    elif stage == "all parts":
        writer = module.Writer
        writer._send = dying_after(writer._send)  # type: ignore[method-assign]
    elif stage == "committed":
        Lake.commit = dying_after(Lake.commit)  # type: ignore[method-assign]
    app(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
