"""The small text files beside the segments, in Kafka's formats so that Kafka's tools read them.

* Offset checkpoints (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
  `replication-offset-checkpoint`, `cleaner-offset-checkpoint`): version 0, number of entries, then
  lines of topic, partition and offset.
* `leader-epoch-checkpoint`: version 0, number of entries, then `epoch start-offset` lines.
* `partition.metadata`: the topic's id, and in a line of our own, which Kafka doesn't read, a
  checksum. `meta.properties`: whose folder this is (KIP-858).

Reading is strict: a file that doesn't parse raises MalformedError naming it and the line. A missing
checkpoint is an empty one.
"""

from __future__ import annotations

import base64
import binascii
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.storage.files import Files, StorageError

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

_MAX_CHECKPOINT_BYTES: Final = 64 << 20
_CHECKSUM: Final = "checksum: "

TopicPartition = tuple[str, int]


class MalformedError(StorageError):
    """The file can be read, but what it says makes no sense."""


def uuid_to_text(value: bytes) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """Reverse of `uuid_to_text`; raises ValueError."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 UUID: {error}") from None
    if len(value) != 16:
        raise ValueError(f"{text!r} has {len(value)} bytes; a UUID has 16")
    return value


def write_offsets(
    files: Files, path: Path, offsets: Mapping[TopicPartition, int], *, durable: bool = True
) -> None:
    """Replaces an offset checkpoint. Raises OSError."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    _write_lines(files, path, lines, durable=durable)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """{(topic, partition): offset}. Raises StorageError."""
    offsets = {}
    for number, line in _read_lines(path):
        fields = line.split(" ")
        try:
            topic, partition, offset = fields[0], int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            raise _malformed(path, number, line) from None
        if len(fields) != 3 or not topic or partition < 0 or offset < 0:
            raise _malformed(path, number, line)
        offsets[topic, partition] = offset
    return offsets


def write_epochs(
    files: Files, path: Path, entries: Iterable[tuple[int, int]], *, durable: bool
) -> None:
    """Replaces `leader-epoch-checkpoint`. Raises OSError."""
    _write_lines(files, path, [f"{epoch} {start}" for epoch, start in entries], durable=durable)


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """[(leader epoch, start offset)], both rising. Raises MalformedError, StorageError."""
    entries: list[tuple[int, int]] = []
    for number, line in _read_lines(path):
        fields = line.split(" ")
        try:
            epoch, start = int(fields[0]), int(fields[1])
        except (IndexError, ValueError):
            raise _malformed(path, number, line) from None
        last_epoch, last_start = entries[-1] if entries else (-1, -1)
        if len(fields) != 2 or epoch <= last_epoch or start <= last_start:
            raise _malformed(path, number, line)
        entries.append((epoch, start))
    return entries


def _write_lines(files: Files, path: Path, lines: list[str], *, durable: bool) -> None:
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    files.replace_contents(path, text.encode(), durable=durable)


def _read_lines(path: Path) -> Iterable[tuple[int, str]]:
    text = read_text(path)
    if text is None:
        return []
    lines = text.splitlines()
    if not lines or lines[0] != "0":
        raise _malformed(path, 1, lines[0] if lines else "")
    if len(lines) < 2 or lines[1] != str(len(lines) - 2):
        raise _malformed(path, 2, lines[1] if len(lines) > 1 else "")
    return enumerate(lines[2:], 3)


def read_text(path: Path) -> str | None:
    """The file's contents, None if there is none. Raises MalformedError, StorageError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CHECKPOINT_BYTES + 1)
        if len(data) > _MAX_CHECKPOINT_BYTES:
            raise StorageError(f"{path} is larger than {_MAX_CHECKPOINT_BYTES} bytes; remove it")
        return data.decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _malformed(path, 1, "(not UTF-8)") from None
    except OSError as error:
        raise StorageError(
            f"can't read {path}: {error.strerror}. It has to be a file that this user may read: "
            "put back the one that was there"
        ) from error


def _malformed(path: Path, number: int, line: str) -> MalformedError:
    return MalformedError(
        f"{path} is damaged in line {number}: {line[:80]!r}. It holds no records: remove it and "
        "start again; what it said is found by reading the whole log (but a log start offset that "
        "DeleteRecords set is forgotten)."
    )


class PartitionMetadata(NamedTuple):
    """`topic_id` is None in a file that is missing, or torn by a crash.

    `checked`: the id is that of whoever wrote the file. Without a checksum, as Kafka and earlier
    versions wrote it, nobody can tell.
    """

    topic_id: bytes | None
    checked: bool


def write_partition_metadata(files: Files, path: Path, topic_id: bytes) -> None:
    """Replaces the topic's id; on disk after the next flush of the log. Raises OSError."""
    text = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}\n"
    text += f"{_CHECKSUM}{zlib.crc32(text.encode()):08x}\n"
    files.replace_contents(path, text.encode(), durable=False)


def read_partition_metadata(path: Path) -> PartitionMetadata:
    """Whose partition it is. Raises StorageError."""
    text = read_text(path)
    if not text or not text.strip("\0"):
        return PartitionMetadata(None, checked=False)
    lines = text.splitlines()
    if lines[0] != "version: 0" or len(lines) < 2 or not lines[1].startswith("topic_id: "):
        raise _wrong_topic_id(path, f"{lines[0][:80]!r} is not 'version: 0'")
    checked = len(lines) > 2
    if checked:
        checksum = zlib.crc32("".join(f"{line}\n" for line in lines[:2]).encode())
        if lines[2:] != [f"{_CHECKSUM}{checksum:08x}"]:
            raise _wrong_topic_id(path, "its checksum is wrong")
    try:
        return PartitionMetadata(uuid_from_text(lines[1].removeprefix("topic_id: ")), checked)
    except ValueError as error:
        raise _wrong_topic_id(path, str(error)) from None


def _wrong_topic_id(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {problem}. Remove it and start again: the metadata has the topic's id"
    )


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose folder this is. `directory_id` is 16 bytes and never changes (KIP-858)."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def write_meta_properties(files: Files, folder: Path, meta: MetaProperties) -> None:
    """Writes `meta.properties` (version 1) durably. Raises OSError."""
    text = (
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={uuid_to_text(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        "version=1\n"
    )
    files.replace_contents(folder / META_PROPERTIES_FILE, text.encode(), durable=True)


def read_meta_properties(folder: Path) -> MetaProperties | None:
    """None when the folder has none yet. Raises StorageError."""
    path = folder / META_PROPERTIES_FILE
    text = read_text(path)
    if text is None:
        return None
    values = {}
    for line in text.splitlines():
        if line and line[0] not in "#!":
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    try:
        if values["version"] != "1":
            raise ValueError(f"version {values['version']} is not 1")
        return MetaProperties(
            values["cluster.id"],
            int(values["node.id"]),
            uuid_from_text(values["directory.id"]),
        )
    except KeyError as error:
        raise _wrong_owner(path, f"it has no line for {error.args[0]}") from None
    except ValueError as error:
        raise _wrong_owner(path, str(error)) from None


def _wrong_owner(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {problem}. Restore it from a copy, or write the lines version=1, "
        "node.id=<this node's id>, cluster.id=<as in the other folders, or in an earlier log of "
        f"this broker> and directory.id={uuid_to_text(uuid.uuid4().bytes)}"
    )


def wrong_directory_id(path: Path, directory_id: str) -> StorageError:
    """For a folder whose last clean shutdown knew it by another id, in text form."""
    return StorageError(
        f"{path} is damaged: its directory.id isn't the one that the folder had when the broker "
        f"was shut down cleanly. Write the line directory.id={directory_id} again"
    )


def missing_meta_properties(path: Path) -> StorageError:
    """For a folder with partitions: whose they are must not be guessed."""
    return _wrong_owner(path, "it is missing, although there are partitions beside it")
