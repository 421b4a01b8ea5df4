"""`kraftpy pipeline mirror`, whose second batch kills it with -9 at a stage.

`python -m tests.spark.dying_mirrors STAGE pipeline mirror ...`
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

import kraftpy.spark.copying as module
from kraftpy.cli.app import app
from kraftpy.spark.settings import write_settings
from tests.spark.dying_sinks import dying

STAGES = ("begun", "some rows sent", "all rows sent", "marked", "committed")


def dying_sink(stage: str, driver: int) -> type[module.CopyingSink]:
    """The sink, whose tasks kill the driver and themselves at the stage."""

    def die() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    class Writer(module.CopyingWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            context = TaskContext.get()
            assert context is not None
            if context.getLocalProperty("streaming.sql.batchId") != "1":
                return super().write(iterator)
            with dying(stage, die):
                written = super().write(iterator)
            if stage == "committed":
                die()
            return written

    class Sink(module.CopyingSink):
        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802
            return Writer(write_settings(self.options, by_topic=True))

    return Sink


if __name__ == "__main__":
    module.CopyingSink = dying_sink(sys.argv[1], os.getpid())  # type: ignore[misc]
    app(sys.argv[2:])
