"""Offsets of a group in a file: the CSV of Kafka's kafka-consumer-groups, and JSON.

CSV has `topic,partition,offset` in each line, or `group,topic,partition,offset` when offsets of
several groups were exported; no header. Kafka's tools have no place for the text that may be
committed with an offset: where one was, there are five cells, with `metadata` last. JSON is a list
of objects with topic, partition, offset and perhaps group and metadata, as `kraftpy group seek
--export` and `kraftpy group offsets show` write it. Lines of other groups are passed over.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from kraftpy.client.offsets import OffsetAndMetadata, Partition
from kraftpy.frozen import NamedTuple

_PARTITION_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_METADATA_MAX_BYTES = 2**15 - 1
_LINE_OF_A_GROUP = re.compile(r"[^\n]*,[^,\n]*,\s*[0-9]+\s*,\s*[0-9]+\s*(,|\n|$)")
_Entry = tuple[object, object, object, object, object]


class OffsetsFileError(ValueError):
    """The file holds no offsets; the text says where it is wrong."""


def offsets_csv(group_id: str, offsets: Mapping[Partition, OffsetAndMetadata]) -> str:
    """The lines for one group; all of them with metadata if one of them has some."""
    if any(each.metadata for each in offsets.values()):
        return "".join(
            _line(group_id, *name, each.offset, each.metadata) for name, each in offsets.items()
        )
    return "".join(_line(*name, each.offset) for name, each in offsets.items())


def _line(*cells: object) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)  # quotes what ends a line: \r, too
    return text.getvalue().removesuffix("\r\n") + "\n"


class WrittenOffset(NamedTuple):
    """What a file says of a partition; `metadata` is None where it says nothing of that."""

    offset: int
    metadata: str | None


def read_offsets(data: bytes, group_id: str) -> dict[Partition, WrittenOffset]:
    """The offsets of a group; `OffsetsFileError` if there are none or anything makes no sense."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OffsetsFileError(f"it is not UTF-8: {error}") from None
    entries = _entries(text)
    offsets: dict[Partition, WrittenOffset] = {}
    for where, (group, topic, partition, offset, metadata) in entries:
        if group is not None and group_id not in (group, str(group).strip()):
            continue
        if not isinstance(topic, str) or not topic or not _is_text(topic):
            raise OffsetsFileError(f"{where}: {topic!r} is no topic")
        if not _is_number(partition, _PARTITION_MAX):
            raise OffsetsFileError(f"{where}: {partition!r} is no partition")
        if not _is_number(offset, _OFFSET_MAX):
            raise OffsetsFileError(f"{where}: {offset!r} is no offset")
        if metadata is not None and not _is_metadata(metadata):
            raise OffsetsFileError(f"{where}: {str(metadata)[:80]!r} is no metadata of an offset")
        name = (topic, int(str(partition)))
        if name in offsets:
            raise OffsetsFileError(f"{where}: {topic}-{partition} comes twice")
        offsets[name] = WrittenOffset(int(str(offset)), metadata)
    if not offsets:
        raise OffsetsFileError(f"it has no offsets of group {group_id!r}")
    return offsets


def _entries(text: str) -> Iterator[tuple[str, _Entry]]:
    if text.lstrip()[:1] not in ("[", "{"):
        return _csv_entries(text)
    try:
        return _json_entries(json.loads(text))
    except (ValueError, RecursionError) as error:
        if _LINE_OF_A_GROUP.match(text):  # of one that is called `[a]`
            return _csv_entries(text)
        raise OffsetsFileError(f"it is no JSON: {error}") from None


def _csv_entries(text: str) -> Iterator[tuple[str, _Entry]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            where = f"line {reader.line_num}"
            if len(cells) == 3:
                yield where, (None, *(cell.strip() for cell in cells), None)  # type: ignore[misc]
            elif len(cells) == 4:
                group, *place = cells
                yield where, (group, *(cell.strip() for cell in place), None)  # type: ignore[misc]
            elif len(cells) == 5:
                group, *place, metadata = cells
                yield where, (group, *(cell.strip() for cell in place), metadata)  # type: ignore[misc]
            elif cells:
                raise OffsetsFileError(f"{where} is not TOPIC,PARTITION,OFFSET")
    except csv.Error as error:
        raise OffsetsFileError(f"line {reader.line_num}: {error}") from None


def _json_entries(document: object) -> Iterator[tuple[str, _Entry]]:
    if not isinstance(document, list):
        raise OffsetsFileError("it is no list of objects with topic, partition and offset")
    for number, entry in enumerate(document, start=1):
        if not isinstance(entry, dict):
            raise OffsetsFileError(f"entry {number} is no object")
        keys = ("group", "topic", "partition", "offset", "metadata")
        yield f"entry {number}", tuple(map(entry.get, keys))  # type: ignore[misc]


def _is_metadata(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or not _is_text(value):
        return False
    return len(value.encode()) <= _METADATA_MAX_BYTES


def _is_text(value: str) -> bool:
    """Whether it can be sent: JSON has escapes for halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object, limit: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    return re.fullmatch("[0-9]{1,19}", str(value)) is not None and int(value) <= limit
