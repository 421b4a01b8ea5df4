"""What a lake's small files say, and how they are read and written.

A manifest is one change of a lake: files that count from now on, files that don't any more, and the
ranges of offsets that are in the lake because of it. A plan is what a run is going to do; it is
frozen before the first record is read, so whoever finishes the run does the same work.

A checkpoint is what the manifests up to a version add up to.

All are JSON. What is read is checked field by field: a file that somebody has edited or that is
of a later format is an error with its name, never a lake with something missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from kraftpy.core.fields import FieldError, reader
from kraftpy.pipeline.ranges import OffsetRange

FORMAT: Final = 1

Kind: TypeAlias = Literal["load", "rerun", "stream", "compact", "write", "rollback"]


_RESTORE: Final = "restore it from a copy of the lake"


class ManifestError(Exception):
    """A file of the lake can't be read as what it should be; the text names it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with records of one partition.

    `path` is relative to the lake. `first_offset` and `last_offset` are those of its records, both
    inclusive; timestamps are milliseconds since 1970 and -1 where no record has one.
    """

    path: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    size_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic a name stood for: one that was deleted and created again is another one."""

    cluster_id: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. `options` are those that decide what its files hold, or what is written.

    A write has in `targets` the topic that it writes to, and in `reads` the version of the lake
    whose files it reads; these stay in the lake while the plan does.
    """

    run: str
    kind: Kind
    topics: Mapping[str, TopicIdentity]
    ranges: tuple[OffsetRange, ...]
    options: Mapping[str, str]
    created_at_ms: int
    targets: Mapping[str, TopicIdentity] = field(default_factory=dict)
    reads: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a lake, as the difference from the version before it.

    A write changes nothing in the lake: `targets` have `written` rows more since, from `ranges`.
    """

    version: int
    run: str
    kind: Kind
    committed_at_ms: int
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    targets: Mapping[str, TopicIdentity] = field(default_factory=dict)
    written: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A lake as of a version; see `LakeVersion`, which has the same fields.

    Of runs that ended and of files that were removed it has those that somebody may ask for yet.
    """

    version: int
    files: tuple[DataFile, ...]
    covered: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicIdentity]
    ended: Mapping[str, int]
    removed_at_ms: Mapping[str, int]


def encode(content: Plan | Manifest) -> bytes:
    """The bytes of the file; `decode_plan` and `decode_manifest` give back an equal object."""
    return json.dumps(_plain(content), indent=1).encode() + b"\n"


def encode_line(content: Manifest) -> bytes:
    """The same in one line."""
    return json.dumps(_plain(content)).encode() + b"\n"


def _plain(content: Plan | Manifest) -> dict[str, Any]:
    ranges = [list(one) for one in content.ranges]
    return {"format": FORMAT, **asdict(content), "ranges": ranges}


def encode_checkpoint(content: Checkpoint) -> bytes:
    """The bytes of the file, of which `decode_checkpoint` gives back an equal object."""
    written = {
        "format": FORMAT,
        "version": content.version,
        # There may be very many: `asdict` takes ten times as long.
        "files": [{name: getattr(one, name) for name in _FILE_FIELDS} for one in content.files],
        "covered": [list(one) for one in content.covered],
        "topics": {name: asdict(one) for name, one in content.topics.items()},
        "ended": dict(content.ended),
        "removed_at_ms": dict(content.removed_at_ms),
    }
    return json.dumps(written).encode() + b"\n"


def decode_plan(name: str, data: bytes) -> Plan:
    """Raises ManifestError."""
    plan: Plan = _decoded(Plan, name, data)
    return plan


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Raises ManifestError."""
    manifest: Manifest = _decoded(Manifest, name, data)
    return manifest


def decode_checkpoint(name: str, data: bytes) -> Checkpoint:
    """Raises ManifestError."""
    advice = "delete it: what it says is in the versions and the history too"
    checkpoint: Checkpoint = _decoded(Checkpoint, name, data, advice)
    return checkpoint


def _decoded(kind: Any, name: str, data: bytes, advice: str = _RESTORE) -> Any:
    """What is in the file of that name; it has all fields, whether or not they have defaults."""

    def wrong(what: str) -> ManifestError:
        return ManifestError(f"{name} {what}; {advice}")

    try:
        content = json.loads(data)
    except ValueError as error:
        raise wrong(f"isn't JSON ({error})") from error
    if not isinstance(content, dict):
        raise wrong("isn't a JSON object")
    if (found := content.get("format")) != FORMAT:
        raise wrong(f"has format {found!r}, this version reads {FORMAT}: upgrade kraftpy")
    for each in fields(kind):
        if content.get(each.name) is None:
            raise wrong(f"has no {each.name}")
    unknown: list[str] = []
    try:
        found = _READERS[kind](content, unknown)
    except FieldError as error:
        raise wrong(f"is damaged: {error}") from None
    problem = next(_problems(found, unknown), None)
    if problem is not None:
        raise wrong(problem)
    return found


_READERS: Final = {
    kind: reader(kind, kind.__name__.lower()) for kind in (Plan, Manifest, Checkpoint)
}
_RANGES: Final = ("ranges", "covered")
_FILES: Final = ("add", "files")


def _problems(content: Plan | Manifest | Checkpoint, unknown: list[str]) -> Iterator[str]:
    """What no field says by itself."""
    for place in unknown:
        if place.split(".")[1] in _FILES:
            yield f"has {place}, which isn't known"
    for ranges in (getattr(content, name, ()) for name in _RANGES):
        for one in ranges:
            if not 0 <= one.start <= one.end or one.partition < 0:
                yield f"has {one!r:.80} where a range belongs"
    for files in (getattr(content, name, ()) for name in _FILES):
        for file in files:
            if file.path.startswith("/") or ".." in file.path.split("/"):
                yield f"names the file {file.path!r:.200}, which is outside of the lake"


_FILE_FIELDS: Final = tuple(each.name for each in fields(DataFile))
