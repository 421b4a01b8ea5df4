"""The answer that a request gets if it fails: of any API and version, made from the schema tables.

Rules:

* Whatever a request names (topics and partitions, groups, configurations, ...) is named in the
  answer, each part with the error, as it would be if each had failed (rule 313).
* An answer's own error code has it, too, unless the request failed for a topic: then only what is
  below the topic has it. Fetch's own one is about sessions, and has no other errors.
* Where request and answer call the same thing differently it is found by its kind: `index` is a
  `partition_index`, a `string` of an array of strings is the name of a part. What can't be found
  that way is in `_SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kraftpy.protocol import generator, schema
from kraftpy.protocol.api import REQUEST_NAMES, RESPONSE_NAMES, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.schema import Field, Schema

_ERRORS = ("error_code", "partition_error_code")
_MESSAGE = "error_message"
_SAME = (
    ("name", "topic", "topic_name", "user"),
    ("index", "partition", "partition_index", "partition_id"),
)
_UNKNOWN = {
    "base_offset", "committed_offset", "end_offset", "high_watermark", "last_stable_offset",
    "leader_epoch", "leader_id", "log_start_offset", "low_watermark", "node_id", "offset", "port",
    "producer_epoch", "producer_id",
}  # fmt: skip
"""Numbers that are -1 where Kafka doesn't know them."""
_NUMBERS = ("producer_id", "resource_type", *_SAME[1])
"""Numbers that name a part of an answer, or belong to its name."""
_SOURCES = {
    "AlterReplicaLogDirTopicResult": (("dirs", "topics"),),
    "AlterUserScramCredentialsResult": (("deletions",), ("upsertions",)),
    "DescribeLogDirsResult": ((),),
    "FetchableTopicResponse": (("topics",),),
}
"""Struct of an answer -> the ways to the parts of the request that it has one each for."""
_SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
_FROM_BROKER = {ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS}


def can_fail(api_key: int) -> bool:
    """Whether answers of this API can carry an error."""
    known = schema.load(RESPONSE_NAMES[api_key])
    return any(field.name in _ERRORS for fields in known.structs.values() for field in fields)


def needs_the_brokers(api_key: int) -> bool:
    """Whether the error is to be put into a broker's answer (`spoil`).

    These say where brokers are, and may ask for all topics.
    """
    return api_key in _FROM_BROKER


def failed(
    api_key: int, version: int, request: Any, error: ErrorCode, *, of_topic: bool = False
) -> Any:
    """The answer to a request that fails; None if it has no place for the error.

    `of_topic`: the request, or this part of it, fails for its topics.
    """
    return _Failure(api_key, version, error, of_topic).answer(request)


def spoil(version: int, answer: Any, error: ErrorCode, topic: str | None) -> bool:
    """Puts an error into a broker's answer about topics: of one of them, or all.

    Returns whether it has a place for it.
    """
    found = [each for each in answer.topics if topic in (None, each.name)]
    for each in found:
        each.error_code = error
        each.partitions = []
    if topic is None and hasattr(answer, "error_code"):
        own = schema.load(RESPONSE_NAMES[answer.API_KEY]).structs[type(answer).__name__]
        if any(field.name == "error_code" and field.exists_in(version) for field in own):
            answer.error_code = error
            return True
    return bool(found)


def is_per_topic(api_key: int, version: int, request: Any) -> bool:
    """Whether an answer has errors for each topic that the request names, and not one for all."""
    failure = _Failure(api_key, version, ErrorCode.UNKNOWN_SERVER_ERROR, True)
    failure.answer(request)
    return failure.has_parts


def merge(api_key: int, answer: Any, other: Any) -> None:
    """Adds the parts of another answer to an answer, those of the same group to that one's."""
    known = schema.load(RESPONSE_NAMES[api_key])
    _merge(known, known.name, answer, other)


def _merge(known: Schema, struct: str, answer: Any, other: Any) -> None:
    for field in known.structs[struct]:
        if not (field.is_array and field.type in known.structs):
            continue
        parts = getattr(answer, field.name)
        for each in getattr(other, field.name) or ():
            same = [part for part in parts or () if _key(known, field, part) is not None]
            same = [part for part in same if _key(known, field, part) == _key(known, field, each)]
            if same:
                _merge(known, field.type, same[0], each)
            else:
                parts = [*(parts or ()), each]
        setattr(answer, field.name, parts)


def _key(known: Schema, field: Field, part: Any) -> Any:
    """What tells parts that hold others apart: their names; None for those that hold none."""
    fields = known.structs[field.type]
    if not any(each.is_array and _carries(known, each.type) for each in fields):
        return None
    return tuple(
        getattr(part, each.name)
        for each in fields
        if each.type in ("string", "uuid", "int64") and each.name != _MESSAGE
    )


def _carries(known: Schema, struct: str) -> bool:
    """Whether there is an error code in a struct or below it."""
    return any(
        field.name in _ERRORS
        or (field.is_array and field.type != struct and _carries(known, field.type))
        for field in known.structs.get(struct, ())
    )


class _Failure:
    """One error, for answers of one API and version."""

    def __init__(self, api_key: int, version: int, error: ErrorCode, of_topic: bool) -> None:
        self._api_key = api_key
        self._version = version
        self._error = error
        self._of_topic = of_topic
        self._asked = schema.load(REQUEST_NAMES[api_key])
        self._answered = schema.load(RESPONSE_NAMES[api_key])
        self._classes: dict[str, Any] = dict(generator.message_classes(self._answered.name))
        self.has_parts = False
        self._placed = False

    def answer(self, request: Any) -> Any:
        name = self._answered.name
        made = self._classes[name]()
        self._fill(made, name, request, self._asked.name)
        own = any(each.name in _ERRORS for each in self._fields(self._answered, name))
        whole = not (self._of_topic and self.has_parts) and (
            self._api_key != ApiKey.FETCH or self._error in _SESSION_ERRORS or not self.has_parts
        )
        if own and whole:
            self._tell(made, name)
        return made if self._placed else None

    def _fields(self, known: Schema, struct: str) -> list[Field]:
        return [field for field in known.structs[struct] if field.exists_in(self._version)]

    def _tell(self, made: Any, struct: str) -> None:
        for field in self._fields(self._answered, struct):
            if field.name in _ERRORS:
                setattr(made, field.name, int(self._error))
                self._placed = True
            elif field.name == _MESSAGE:
                setattr(made, field.name, self._error.message)

    def _fill(self, made: Any, struct: str, asked: Any, asked_struct: str) -> None:
        """Puts into a struct of the answer what the one of the request has parts for."""
        for field in self._fields(self._answered, struct):
            if field.is_array and _carries(self._answered, field.type):
                parts = [
                    self._part(field.type, *source)
                    for source in self._sources(field, asked, asked_struct)
                ]
                if len(_SOURCES.get(field.type, ())) > 1:  # one part may come from both
                    parts = list({repr(each): each for each in parts}.values())
                setattr(made, field.name, parts)
            elif field.type == "records":
                setattr(made, field.name, b"")
            elif field.name in _UNKNOWN:
                setattr(made, field.name, -1)

    def _part(self, struct: str, source: Any, source_struct: str | None) -> Any:
        """One part of the answer, for a part of the request."""
        made = self._classes[struct]()
        fields = self._fields(self._answered, struct)
        if source_struct is None:
            self._fill(made, struct, None, self._asked.name)
            setattr(made, _named(fields, source).name, source)
        else:
            self._fill(made, struct, source, source_struct)
            for field in fields:
                self._copy(made, field, source, source_struct)
        if not self._of_topic or not self._has_topics_below(fields):
            self._tell(made, struct)
        self.has_parts = self.has_parts or source_struct != self._asked.name
        return made

    def _has_topics_below(self, fields: list[Field]) -> bool:
        return any(field.is_array and _carries(self._answered, field.type) for field in fields)

    def _copy(self, made: Any, field: Field, source: Any, source_struct: str) -> None:
        """What a part of the request says that its answer repeats."""
        same = next((names for names in _SAME if field.name in names), (field.name,))
        for each in self._fields(self._asked, source_struct):
            if each.name in same and (each.type, each.is_array) == (field.type, field.is_array):
                value = getattr(source, each.name)
                if field.type in ("string", "uuid") or field.name in _NUMBERS:
                    setattr(made, field.name, value)
                elif self._repeats(field, each):
                    setattr(made, field.name, [self._part_of(field.type, x) for x in value])

    def _repeats(self, field: Field, asked: Field) -> bool:
        """Whether an array of the answer has what one of the request has."""
        if not field.is_array or field.type not in self._answered.structs:
            return False
        answered = {each.name for each in self._answered.structs[field.type]}
        return answered <= {each.name for each in self._asked.structs[asked.type]}

    def _part_of(self, struct: str, source: Any) -> Any:
        fields = self._answered.structs[struct]
        return self._classes[struct](**{each.name: getattr(source, each.name) for each in fields})

    def _sources(
        self, field: Field, asked: Any, asked_struct: str
    ) -> Iterator[tuple[Any, str | None]]:
        """The parts of the request that an array of the answer has one part each for."""
        if asked is None:
            return
        if field.type in _SOURCES:
            for path in _SOURCES[field.type]:
                yield from self._at(path, asked, asked_struct)
            return
        chosen = self._source(field, asked_struct)
        if chosen is not None:
            yield from self._at((chosen.name,), asked, asked_struct)

    def _at(
        self, path: tuple[str, ...], asked: Any, asked_struct: str
    ) -> Iterator[tuple[Any, str | None]]:
        if not path:
            yield asked, asked_struct
            return
        for field in self._fields(self._asked, asked_struct):
            if field.name == path[0]:
                inner = field.type if field.type in self._asked.structs else None
                for each in getattr(asked, field.name) or ():
                    if len(path) > 1 and inner is not None:
                        yield from self._at(path[1:], each, inner)
                    else:
                        yield each, inner

    def _source(self, field: Field, asked_struct: str) -> Field | None:
        """The array of the request that fits best; None if there is none."""
        wanted = self._fields(self._answered, field.type)
        names = {each.name for each in wanted}
        names |= {name for same in _SAME if names & {*same} for name in same}
        arrays = [each for each in self._fields(self._asked, asked_struct) if each.is_array]
        structs = [each for each in arrays if each.type in self._asked.structs]
        for each in structs:
            if names & {inner.name for inner in self._fields(self._asked, each.type)}:
                return each
        for each in arrays:
            if each not in structs and any(inner.type == each.type for inner in wanted):
                return each
        return structs[0] if structs else None


def _named(fields: list[Field], value: Any) -> Field:
    """The field of a part that has its name, or its number."""
    kind = "string" if isinstance(value, str) else "uuid" if isinstance(value, bytes) else "int32"
    return next(each for each in fields if each.type == kind and each.name != _MESSAGE)
