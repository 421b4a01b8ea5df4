"""Which topics a request names, found by its schema, and the part of a request that is about some.

Rules:

* A topic is an element of an array that is called so (`topics`, `topic_data`, ...) at any depth, a
  string of one of topic names, or a resource of the kind that topics are.
* Where a request names topics by their ids, their names are those that the brokers have told
  clients; an id that nobody was told of is shown as Kafka shows ids.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kraftpy.protocol import schema
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey
from kraftpy.protocol.schema import Field, Schema

_STRUCTS = ("topic_data", "topics", "topic_partitions", "v3_and_below_topics")
_STRINGS = ("topic_names", "subscribed_topic_names")
_NAMES = ("name", "topic", "topic_name", "resource_name")
_RESOURCES = "resources"
_TOPIC_RESOURCE = 2

Names = Mapping[bytes, str]
"""Topic id -> name."""


def can_name_topics(api_key: int) -> bool:
    """Whether requests of this API name topics, in any version."""
    known = schema.load(REQUEST_NAMES[api_key])
    return any(_is_topics(known, field) for fields in known.structs.values() for field in fields)


def topics_of(api_key: int, version: int, request: Any, names: Names) -> list[str]:
    """The names of the topics in a request, each once, in its order."""
    known = schema.load(REQUEST_NAMES[api_key])
    found = (
        _name(field, element, names)
        for holder, field in _arrays(known, known.name, version, request)
        for element in getattr(holder, field.name)
    )
    return list(dict.fromkeys(name for name in found if name is not None))


def is_about_all(api_key: int, version: int, request: Any) -> bool:
    """Whether a request asks for every topic."""
    if api_key == ApiKey.METADATA:
        return request.topics is None or (version == 0 and not request.topics)
    return api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS and not request.topics


def about(api_key: int, version: int, request: Any, names: Names, topic: str) -> tuple[Any, Any]:
    """A request in two: what it asks of a topic, and the rest; None for what would name no topic.

    The request itself stays as it is.
    """
    known = schema.load(REQUEST_NAMES[api_key])

    def part(wanted: Callable[[Field, Any], bool]) -> Any:
        return _part(known, known.name, version, request, wanted)

    return (
        part(lambda field, element: _name(field, element, names) == topic),
        part(lambda field, element: _name(field, element, names) != topic),
    )


def learn(response: Any, names: dict[bytes, str]) -> None:
    """Notes the names and ids of the topics that an answer has both of."""
    for topic in response.topics:
        if topic.name is not None and topic.topic_id != schema.ZERO_UUID:
            names[topic.topic_id] = topic.name


def _is_topics(known: Schema, field: Field) -> bool:
    if not field.is_array:
        return False
    if field.name == _RESOURCES:
        return any(each.name == "resource_name" for each in known.structs[field.type])
    if field.name in _STRINGS:
        return field.type == "string"
    return field.name in _STRUCTS and field.type in known.structs


def _arrays(known: Schema, struct: str, version: int, message: Any) -> Iterator[tuple[Any, Field]]:
    """The arrays of topics in a message, each with what holds it."""
    for field in known.structs[struct]:
        if not field.is_array or not field.exists_in(version):
            continue
        if _is_topics(known, field):
            if getattr(message, field.name) is not None:
                yield message, field
        elif field.type in known.structs:
            for element in getattr(message, field.name) or ():
                yield from _arrays(known, field.type, version, element)


def _name(field: Field, element: Any, names: Names) -> str | None:
    """A topic's name; None for another resource."""
    if isinstance(element, str):
        return element
    if field.name == _RESOURCES and element.resource_type != _TOPIC_RESOURCE:
        return None
    for each in _NAMES:
        if name := getattr(element, each, None):
            return str(name)
    topic_id = getattr(element, "topic_id", None)
    if topic_id is None:
        return ""
    return names.get(topic_id) or base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _part(
    known: Schema,
    struct: str,
    version: int,
    message: Any,
    wanted: Callable[[Field, Any], bool],
) -> Any:
    """A copy that has the wanted topics alone; None if it has none."""
    made = copy.copy(message)
    found = False
    for field in known.structs[struct]:
        if not field.is_array or not field.exists_in(version):
            continue
        elements = getattr(message, field.name)
        if not elements:
            continue
        if _is_topics(known, field):
            kept = [each for each in elements if wanted(field, each)]
        elif _holds_topics(known, field):
            parts = (_part(known, field.type, version, each, wanted) for each in elements)
            kept = [each for each in parts if each is not None]
        else:
            continue
        setattr(made, field.name, kept)
        found = found or bool(kept)
    return made if found else None


def _holds_topics(known: Schema, field: Field) -> bool:
    return any(_is_topics(known, each) for each in known.structs.get(field.type, ()))
