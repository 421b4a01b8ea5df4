"""Null wherever a request may have it, in every version: an answer or the end, never a defect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol import schema
from kraftpy.protocol.api import ADVERTISED, REQUEST_NAMES, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.generator import message_classes
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.testing import Broker
from tests.server.wire import Closed, Wire

UNKNOWN_ID = b"an id of nobody's"[:16]
# acks=0 has no answer; a request that waits for others has none soon.
SAID = {"acks": 1, "max_wait_ms": 0}
PLAIN: dict[str, Any] = {"string": "x", "bytes": b"x", "records": b"x", "uuid": UNKNOWN_ID}


def nullable_fields(name: str, version: int) -> list[tuple[str, str]]:
    """(struct, field) of all that may be null in this version."""
    return [
        (struct, field.name)
        for struct, fields in schema.load(name).structs.items()
        for field in fields
        if field.exists_in(version) and field.nullable_in(version)
    ]


def cases() -> Iterator[tuple[ApiKey, int]]:
    for key in sorted(HANDLERS):
        low, high = ADVERTISED[key]
        for version in range(low, high + 1):
            if nullable_fields(REQUEST_NAMES[key], version):
                yield key, version


def filled(name: str, struct: str, nulls: set[tuple[str, str]], with_ids: bool) -> Any:
    """A message with one element in each array, null where that is said."""
    made = message_classes(name)[struct]()
    for field in schema.load(name).structs[struct]:
        value: Any
        if (struct, field.name) in nulls:
            value = None
        elif field.name in SAID:
            value = SAID[field.name]
        elif field.type[0].isupper():
            value = filled(name, field.type, nulls, with_ids)
        elif field.type == "uuid" and not with_ids:
            value = bytes(16)
        else:
            value = PLAIN.get(field.type, 0)
        setattr(made, field.name, [value] if field.is_array and value is not None else value)
    return made


@pytest.mark.parametrize(("key", "version"), list(cases()), ids=str)
def test_each_null_is_answered(broker: Broker, key: ApiKey, version: int) -> None:
    name = REQUEST_NAMES[key]
    places = nullable_fields(name, version)
    before = broker.log_path.stat().st_size
    for nulls in (*({place} for place in places), set(places)):
        for with_ids in (False, True):
            request = filled(name, name, nulls, with_ids)
            with Wire(broker.host, broker.port) as wire:
                try:
                    answer = wire.call(key, version, request)
                except Closed:
                    continue
                assert getattr(answer, "error_code", 0) != ErrorCode.UNKNOWN_SERVER_ERROR, request
    said = broker.log_path.read_text()[before:]
    assert "Traceback" not in said, said


@pytest.mark.parametrize("version", range(10, 14))
def test_metadata_without_a_name(wire: Wire, version: int) -> None:
    """As Kafka 4.4 answers: ids count from version 12 on, null is no name."""
    topic = m.MetadataRequest.MetadataRequestTopic
    wanted = [topic(UNKNOWN_ID, None), topic(bytes(16), None), topic(UNKNOWN_ID, "named")]
    request = m.MetadataRequest(wanted, allow_auto_topic_creation=False)
    answer = wire.call(ApiKey.METADATA, version, request)
    refused, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID
    found = [(each.error_code, each.name, each.topic_id) for each in answer.topics]
    if version < 12:
        assert found == [
            (refused, "", UNKNOWN_ID),
            (refused, "", bytes(16)),
            (refused, "named", UNKNOWN_ID),
        ]
    else:
        assert found == [
            (unknown, None, UNKNOWN_ID),
            (refused, None, bytes(16)),
            (unknown, None, UNKNOWN_ID),
        ]
