"""`kraftpy`, killed with -9 at a stage of a load, rerun or compaction.

`python -m tests.spark.dying STAGE ...`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from os import link
from pathlib import Path
from typing import Any

import kraftpy.pipeline.compaction
import kraftpy.pipeline.load
import kraftpy.pipeline.log
import kraftpy.pipeline.table
from kraftpy.cli.app import app
from kraftpy.pipeline.folder import put_if_absent
from kraftpy.pipeline.groups import commit_ends
from kraftpy.pipeline.lake import Lake
from kraftpy.pipeline.parquet import Target, write_files

UNCOMMITTED = ("planned", "first batch", "first file", "all files", "version written")
REWRITTEN = "rewritten"
COMMITTED = ("version named", "committed", "before the group", "after the group")


def _die(driver: int | None = None) -> None:
    os.kill(driver or os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which this process doesn't survive."""

    def call(*args: Any, **more: Any) -> Any:
        function(*args, **more)
        _die()

    return call


def _dying_before(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_, **__: _die()


def _dying_tasks(stage: str) -> Callable[[Target], Callable[[Iterator[Any]], Iterator[Any]]]:
    """The first task that has a batch of records, or a file, kills the driver."""
    driver = os.getpid()

    def writer(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield batch
                if stage == "first batch":
                    _die(driver)

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            for described in write_files(target)(read(batches)):
                _die(driver)
                yield described

        return write

    return writer


def _name_version(path: Path, data: bytes) -> bool:
    done = put_if_absent(path, data)
    if path.parent.name == "versions":
        _die()
    return done


def _link_no_version(source: Path, target: Path) -> None:
    """The version's bytes are on the disk, its name isn't."""
    if target.parent.name == "versions":
        _die()
    link(source, target)


def main(stage: str, arguments: list[str]) -> None:
    """Run the command; it doesn't come back if it gets to the stage."""
    if stage == "planned":
        Lake.freeze = dying_after(Lake.freeze)  # type: ignore[method-assign]
    elif stage in ("first batch", "first file"):
        kraftpy.pipeline.table.write_files = _dying_tasks(stage)
    elif stage == "all files":
        load = kraftpy.pipeline.load
        load.write_ranges = dying_after(load.write_ranges)  # type: ignore[attr-defined]
    elif stage == REWRITTEN:
        for module in (kraftpy.pipeline.load, kraftpy.pipeline.compaction):
            module.rewrite = dying_after(module.rewrite)  # type: ignore[attr-defined]
    elif stage == "version written":
        os.link = _link_no_version
    elif stage == "version named":
        kraftpy.pipeline.log.put_if_absent = _name_version
    elif stage == "committed":
        Lake.commit = dying_after(Lake.commit)  # type: ignore[method-assign]
    elif stage == "before the group":
        kraftpy.pipeline.groups.commit_ends = _dying_before(commit_ends)
    elif stage == "after the group":
        kraftpy.pipeline.groups.commit_ends = dying_after(commit_ends)
    app(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
