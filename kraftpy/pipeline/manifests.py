"""What a lake's small files say, and how they are read and written.

A manifest is one change of a lake: files that count from now on, files that don't any more, and the
ranges of offsets that are in the lake because of it.  A plan is what a run is going to do; it is
frozen before the first record is read, so whoever finishes the run does the same work.

Both are JSON.  What is read is checked field by field: a file that somebody has edited or that is
of a later format is an error with its name, never a lake with something missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from kraftpy.pipeline.ranges import OffsetRange

FORMAT: Final = 1

Kind: TypeAlias = Literal["load", "rerun", "stream", "compact", "rollback"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class ManifestError(Exception):
    """A file of the lake can't be read as what it should be; the text names it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with records of one partition.

    `path` is relative to the lake.  `first_offset` and `last_offset` are those of its records, both
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
    """What a run does.  `options` are those that decide what its files hold."""

    run: str
    kind: Kind
    topics: Mapping[str, TopicIdentity]
    ranges: tuple[OffsetRange, ...]
    options: Mapping[str, str]
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a lake, as the difference from the version before it."""

    version: int
    run: str
    kind: Kind
    committed_at_ms: int
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()


def encode(content: Plan | Manifest) -> bytes:
    """The bytes of the file; `decode_plan` and `decode_manifest` give back an equal object."""
    fields = asdict(content)
    fields["ranges"] = [list(one) for one in content.ranges]
    return json.dumps({"format": FORMAT, **fields}, indent=1).encode() + b"\n"


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
    )


class _Fields:
    """The fields of one JSON object, each of the type that is asked for, or ManifestError."""

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        try:
            self._content = json.loads(data)
        except ValueError as error:
            raise self._wrong(f"isn't JSON ({error})") from error
        if not isinstance(self._content, dict):
            raise self._wrong("isn't a JSON object")
        if (found := self._content.get("format")) != FORMAT:
            raise self._wrong(f"has format {found!r}, this version reads {FORMAT}: upgrade kraftpy")

    def _wrong(self, what: str) -> ManifestError:
        return ManifestError(f"{self._name} {what}; restore it from a copy of the lake")

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

    def kind(self) -> Kind:
        found = self.text("kind")
        for kind in KINDS:
            if kind == found:
                return kind
        raise self._wrong(f"has the unknown kind {found!r:.80}")

    def topics(self) -> dict[str, TopicIdentity]:
        return {
            name: TopicIdentity(
                cluster_id=self.checked(self.checked(one, dict).get("cluster_id"), str),
                topic_id=self.checked(one.get("topic_id"), str),
            )
            for name, one in self.items("topics", dict).items()
        }

    def ranges(self) -> tuple[OffsetRange, ...]:
        found = []
        for one in self.items("ranges", list):
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
        types = {name: str if kind == "str" else int for name, kind in _FILE_FIELDS.items()}
        if values.keys() != types.keys():
            raise self._wrong(f"has {one!r:.200} where a data file belongs")
        file = DataFile(**{name: self.checked(values[name], types[name]) for name in types})
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise self._wrong(f"names the file {file.path!r:.200}, which is outside of the lake")
        return file


_FILE_FIELDS: Final[dict[str, str]] = {
    name: str(kind) for name, kind in DataFile.__annotations__.items()
}
