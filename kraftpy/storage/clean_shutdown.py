"""`.kafka_cleanshutdown`: the marker of a clean shutdown, and what each log had then.

Kafka's marker is an object in JSON with the broker's epoch (KIP-966); Kafka passes over whatever
else is in it. Ours notes what the next start can compare, so that it takes no damage for health: a
segment that is gone, a folder that is gone, a checkpoint in which a digit is another one.

Rules:

* The marker has a checksum of its own. One that is damaged stands for no clean shutdown: then
  everything is checked.
* One that Kafka left, or an earlier version, notes nothing: then nothing can be compared.
* Notes are exact. Nobody changes a log between a clean shutdown and the start that follows.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kraftpy.frozen import NamedTuple
from kraftpy.storage import checkpoints
from kraftpy.storage.checkpoints import MalformedError
from kraftpy.storage.files import Files

logger = logging.getLogger(__name__)

UNKNOWN_EPOCH: Final = -1

_NOTES: Final = "kraftpy"


class LogNote(NamedTuple):
    """What a log had: `segments` with records, `size_bytes` in all, from `first_offset` on.

    `topic_id` is in Kafka's text form, empty if it wasn't known. `epochs` is `epochs_checksum`.
    """

    topic_id: str
    first_offset: int
    log_start_offset: int
    log_end_offset: int
    segments: int
    size_bytes: int
    epochs: int


class CleanShutdown(NamedTuple):
    """What the marker says.

    `logs` is keyed by folder name, None if nothing was noted; `files` has the checksums of the log
    directory's checkpoints, `directory_id` is in text form.
    """

    broker_epoch: int
    directory_id: str = ""
    logs: Mapping[str, LogNote] | None = None
    files: Mapping[str, int] = {}


def epochs_checksum(entries: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of leader epochs and where they start."""
    return zlib.crc32(repr(list(entries)).encode())


def file_checksum(path: Path) -> int:
    """CRC-32 of a file's contents, 0 if it isn't there. Raises OSError."""
    try:
        return zlib.crc32(path.read_bytes())
    except FileNotFoundError:
        return 0


def write(files: Files, folder: Path, marker: CleanShutdown) -> None:
    """Leaves the marker, durably. Raises OSError."""
    notes = {"directoryId": marker.directory_id, "files": marker.files, "logs": marker.logs}
    content = {"version": 0, "brokerEpoch": marker.broker_epoch, _NOTES: notes}
    content["checksum"] = _checksum(content)
    files.replace_contents(
        folder / checkpoints.CLEAN_SHUTDOWN_FILE, _text(content).encode(), durable=True
    )


def read(folder: Path) -> CleanShutdown | None:
    """What the last shutdown left, None if it wasn't clean. Raises StorageError."""
    path = folder / checkpoints.CLEAN_SHUTDOWN_FILE
    try:
        text = checkpoints.read_text(path)
        if text is None:
            return None
        if not text:  # of an old Kafka
            return CleanShutdown(UNKNOWN_EPOCH)
        content = json.loads(text)
        checksum = content.pop("checksum", None)
        epoch = int(content["brokerEpoch"])
        if checksum is None and _NOTES not in content:
            return CleanShutdown(epoch)
        if checksum != _checksum(content):
            raise ValueError("its checksum is wrong")
        notes: dict[str, Any] = content[_NOTES]
        logs = {name: LogNote(*note) for name, note in notes["logs"].items()}
        return CleanShutdown(epoch, notes["directoryId"], logs, notes["files"])
    except (MalformedError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning(
            "%s is damaged (%s): checking all logs, as after a crash", path, str(error)[:200]
        )
        return None


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(_text(content).encode())
