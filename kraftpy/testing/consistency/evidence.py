"""What is kept of a run that failed: the operations that show it, and what the nodes left.

Rules:

* `anomaly-CHECKER.jsonl` has the smallest finding's lines and all faults, word for word, in the
  format of a history. It is to be read: checkers that need the rest may say other things of it.
* `nodes/` has a folder for each node with its configuration, its logs, `files.txt` (everything in
  its data folder, with sizes), and a copy of the data as long as all of it isn't too large.
* What can't be read is left out and said: evidence must not fail the run that it is about.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kraftpy.testing.consistency.history import HistoryReader
from kraftpy.testing.consistency.verdicts import Verdict
from kraftpy.testing.node import Node

DATA_BYTES_MAX = 256 << 20
WORKERS_LOG = "workers.log"
_LISTING = "files.txt"
_DATA = "data"
_ABOUT = {_LISTING: "what was in its data folder"}


def keep_nodes(nodes: Iterable[Node], folder: Path) -> list[str]:
    """Copies what nodes have on disk into a folder; what could not be had, in words."""
    missing: list[str] = []
    budget = DATA_BYTES_MAX
    for node in nodes:
        target = folder / f"node{node.id}"
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(each for each in node.dir.iterdir() if each.is_file()):
            missing += _copy(path, target / path.name)
        files = list(_files(node.log_dir))
        _list(files, node.log_dir, target / _LISTING)
        size = sum(_bytes_on_disk(path) for path in files)
        if size > budget:
            missing.append(f"data of node {node.id}: {size >> 20} MiB, {_LISTING} lists it")
            continue
        budget -= size
        for path in files:
            missing += _copy(path, target / _DATA / path.relative_to(node.log_dir))
    return missing


def keep_anomalies(
    history: HistoryReader, verdicts: Sequence[Verdict], folder: Path
) -> list[dict[str, str]]:
    """Writes the smallest finding of each broken promise into a folder, which is made.

    What was written, as the `files` of a report: `path` in the folder and, in words, `about`.
    """
    wanted = {
        verdict.checker: set(verdict.findings[0].lines)
        for verdict in verdicts
        if verdict.valid is False and verdict.findings
    }
    if not wanted:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    header, found = _excerpt(history.path, set[int]().union(*wanted.values()))
    written = []
    for checker, lines in wanted.items():
        name = f"anomaly-{checker}.jsonl"
        kept = [line for number, line in found if number is None or number in lines]
        (folder / name).write_bytes(b"".join([header, *kept]))
        about = f"the lines of the history that show that {checker} is broken, and the faults"
        written.append({"path": name, "about": about})
    return written


def kept_files(folder: Path, nodes: Path | None) -> list[dict[str, str]]:
    """What else there is to look at in a run's folder, as the `files` of a report."""
    found = []
    if (folder / WORKERS_LOG).exists() and (folder / WORKERS_LOG).stat().st_size:
        found.append({"path": WORKERS_LOG, "about": "what the clients' processes complained of"})
    for node in sorted(nodes.iterdir()) if nodes is not None else ():
        place = node.relative_to(folder)
        found += [
            {"path": f"{place}/{path.name}", "about": _ABOUT.get(path.name, "")}
            for path in sorted(node.iterdir())
            if path.is_file()
        ]
        if (node / _DATA).is_dir():
            found.append({"path": f"{place}/{_DATA}", "about": "a copy"})
    return found


def _excerpt(path: Path, wanted: set[int]) -> tuple[bytes, list[tuple[int | None, bytes]]]:
    """The header, then (line of the operation, None for no operation; text) of what is wanted."""
    under_way: dict[tuple[int, int], int] = {}
    found: list[tuple[int | None, bytes]] = []
    with path.open("rb") as file:
        header = file.readline()
        for number, line in enumerate(file, 2):
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # cut off by a kill, or empty
            if "type" not in fields:
                found.append((None, line))
                continue
            call = fields["process"], fields.get("op", -1)
            if number in wanted:
                under_way[call] = number
                found.append((number, line))
            elif call in under_way and fields["type"] != "invoke":
                found.append((under_way.pop(call), line))
    return header, found


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in sorted(names))


def _bytes_on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _list(files: Iterable[Path], folder: Path, target: Path) -> None:
    lines = []
    for path in files:
        try:
            stat = path.stat()
        except OSError as error:
            lines.append(f"{path.relative_to(folder)}: {error.strerror}\n")
            continue
        changed = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="milliseconds")
        lines.append(f"{stat.st_size:>12}  {changed}  {path.relative_to(folder)}\n")
    target.write_text("".join(lines), encoding="utf-8")


def _copy(path: Path, target: Path) -> list[str]:
    """Words for a file that could not be copied: it may be gone, or the disk full."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    except OSError as error:
        return [f"{path.name}: {error.strerror}"]
    return []
