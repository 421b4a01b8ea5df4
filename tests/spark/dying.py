"""`kraftpy`, killed with -9 at a stage of a load: `python -m tests.spark.dying STAGE ...`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kraftpy.pipeline.load
import kraftpy.pipeline.log
import kraftpy.pipeline.table
from kraftpy.cli.app import app
from kraftpy.pipeline.folder import put_if_absent
from kraftpy.pipeline.lake import Lake
from kraftpy.pipeline.parquet import Target, write_files

STAGES = ("planned", "first file", "all files", "version named", "committed")


def _die(driver: int | None = None) -> None:
    os.kill(driver or os.getpid(), signal.SIGKILL)


def _dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        function(*args, **more)
        _die()

    return call


def _dying_tasks(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first task that has a file kills the driver."""
    driver = os.getpid()

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        for described in write_files(target)(batches):
            _die(driver)
            yield described

    return write


def _name_version(path: Path, data: bytes) -> bool:
    done = put_if_absent(path, data)
    if path.parent.name == "versions":
        _die()
    return done


def main(stage: str, arguments: list[str]) -> None:
    """Run the command; it doesn't come back if it gets to the stage."""
    if stage == "planned":
        Lake.freeze = _dying_after(Lake.freeze)  # type: ignore[method-assign]
    elif stage == "first file":
        kraftpy.pipeline.table.write_files = _dying_tasks
    elif stage == "all files":
        load = kraftpy.pipeline.load
        load.write_table = _dying_after(load.write_table)  # type: ignore[attr-defined]
    elif stage == "version named":
        kraftpy.pipeline.log.put_if_absent = _name_version
    elif stage == "committed":
        Lake.commit = _dying_after(Lake.commit)  # type: ignore[method-assign]
    app(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
