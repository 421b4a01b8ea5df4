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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from kraftpy.pipeline.ranges import OffsetRange

FORMAT: Final = 1

Kind: TypeAlias = Literal["load", "rerun", "stream", "compact", "write", "rollback"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


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
    fields = {
        "format": FORMAT,
        "version": content.version,
        # There may be very many: `asdict` takes ten times as long.
        "files": [{name: getattr(one, name) for name in _FILE_FIELDS} for one in content.files],
        "covered": [list(one) for one in content.covered],
        "topics": {name: asdict(one) for name, one in content.topics.items()},
        "ended": dict(content.ended),
        "removed_at_ms": dict(content.removed_at_ms),
    }
    return json.dumps(fields).encode() + b"\n"


def decode_plan(name: str, data: bytes) -> Plan:
    """Raises ManifestError."""
    fields = _Fields(name, data)
    return Plan(
        run=fields.text("run"),
        kind=fields.kind(),
        topics=fields.topics(),
        ranges=fields.ranges(),
        options=fields.texts("options"),
        created_at_ms=fields.number("created_at_ms"),
        targets=fields.topics("targets"),
        reads=fields.number("reads"),
    )


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Raises ManifestError."""
    fields = _Fields(name, data)
    return Manifest(
        version=fields.number("version"),
        run=fields.text("run"),
        kind=fields.kind(),
        committed_at_ms=fields.number("committed_at_ms"),
        topics=fields.topics(),
        ranges=fields.ranges(),
        add=tuple(fields.file(one) for one in fields.items("add", list)),
        remove=tuple(fields.checked(one, str) for one in fields.items("remove", list)),
        targets=fields.topics("targets"),
        written=fields.number("written"),
    )


def decode_checkpoint(name: str, data: bytes) -> Checkpoint:
    """Raises ManifestError."""
    fields = _Fields(name, data, "delete it: what it says is in the versions and the history too")
    return Checkpoint(
        version=fields.number("version"),
        files=tuple(fields.file(one) for one in fields.items("files", list)),
        covered=fields.ranges("covered"),
        topics=fields.topics(),
        ended=fields.numbers("ended"),
        removed_at_ms=fields.numbers("removed_at_ms"),
    )


class _Fields:
    """The fields of one JSON object, each of the type that is asked for, or ManifestError."""

    def __init__(self, name: str, data: bytes, advice: str = _RESTORE) -> None:
        self._name = name
        self._advice = advice
        try:
            self._content = json.loads(data)
        except ValueError as error:
            raise self._wrong(f"isn't JSON ({error})") from error
        if not isinstance(self._content, dict):
            raise self._wrong("isn't a JSON object")
        if (found := self._content.get("format")) != FORMAT:
            raise self._wrong(f"has format {found!r}, this version reads {FORMAT}: upgrade kraftpy")

    def _wrong(self, what: str) -> ManifestError:
        return ManifestError(f"{self._name} {what}; {self._advice}")

    def checked(self, value: Any, kind: type) -> Any:
        # bool is an int in Python and isn't one in JSON.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._wrong(f"has {value!r:.80} where {kind.__name__} belongs")
        return value

    def items(self, key: str, kind: type) -> Any:
        return self.checked(self._content.get(key), kind)

    def text(self, key: str) -> str:
        return str(self.items(key, str))

    def number(self, key: str) -> int:
        return int(self.items(key, int))

    def texts(self, key: str) -> dict[str, str]:
        return {name: self.checked(value, str) for name, value in self.items(key, dict).items()}

    def numbers(self, key: str) -> dict[str, int]:
        return {name: self.checked(value, int) for name, value in self.items(key, dict).items()}

    def kind(self) -> Kind:
        found = self.text("kind")
        for kind in KINDS:
            if kind == found:
                return kind
        raise self._wrong(f"has the unknown kind {found!r:.80}")

    def topics(self, key: str = "topics") -> dict[str, TopicIdentity]:
        return {
            name: TopicIdentity(
                cluster_id=self.checked(self.checked(one, dict).get("cluster_id"), str),
                topic_id=self.checked(one.get("topic_id"), str),
            )
            for name, one in self.items(key, dict).items()
        }

    def ranges(self, key: str = "ranges") -> tuple[OffsetRange, ...]:
        found = []
        for one in self.items(key, list):
            if len(self.checked(one, list)) != len(OffsetRange._fields):
                raise self._wrong(f"has {one!r:.80} where a range belongs")
            topic, *numbers = one
            partition, start, end = (self.checked(number, int) for number in numbers)
            if not 0 <= start <= end or partition < 0:
                raise self._wrong(f"has {one!r:.80} where a range belongs")
            found.append(OffsetRange(self.checked(topic, str), partition, start, end))
        return tuple(found)

    def file(self, one: Any) -> DataFile:
        values = self.checked(one, dict)
        types = _FILE_FIELDS
        if values.keys() != types.keys():
            raise self._wrong(f"has {one!r:.200} where a data file belongs")
        file = DataFile(**{name: self.checked(values[name], types[name]) for name in types})
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise self._wrong(f"names the file {file.path!r:.200}, which is outside of the lake")
        return file


_FILE_FIELDS: Final[dict[str, type]] = {
    name: str if kind == "str" else int for name, kind in DataFile.__annotations__.items()
}
