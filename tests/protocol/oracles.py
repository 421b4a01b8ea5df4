"""Two independent Kafka codecs, kio and kafka-python, behind one function: decode, encode again."""

from __future__ import annotations

import importlib
import io
import re
from functools import cache
from typing import Any

from kio.index import load_entity_module, load_payload_module
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kraftpy.protocol import schema

# Apache Kafka 4.4 has brought these; their fields were read off its kafka-clients jar.
NEWER_THAN_THE_ORACLES = {
    *((f"ApiVersions{kind}", 5) for kind in ("Request", "Response")),
    *((f"DeleteGroups{kind}", 3) for kind in ("Request", "Response")),
}

_KAFKA_PYTHON_MODULES = (
    "admin.acl",
    "admin.client_quotas",
    "admin.cluster",
    "admin.configs",
    "admin.groups",
    "admin.topics",
    "admin.transactions",
    "admin.users",
    "consumer.fetch",
    "consumer.group",
    "consumer.metadata",
    "consumer.offsets",
    "metadata.api_versions",
    "metadata.find_coordinator",
    "metadata.metadata",
    "producer.produce",
    "producer.transaction",
    "sasl",
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def kio_class(name: str, version: int) -> Any:
    """kio's class for the message version, None where it has none."""
    head = schema.load(name)
    kind = EntityType[head.kind]
    entity = _snake(name.removesuffix("Request").removesuffix("Response"))
    if kind not in schema_name_map.get(entity, {}).get(version, {}):
        return None
    if head.api_key is None:
        return getattr(load_entity_module(entity, version, kind), name)
    return getattr(load_payload_module(head.api_key, version, kind), name)


def kio_round_trip(name: str, version: int, data: bytes) -> tuple[Any, bytes]:
    """kio's reading of the bytes, and the bytes that kio writes for it."""
    entity, size = entity_reader(kio_class(name, version))(data, 0)
    assert size == len(data)
    out = io.BytesIO()
    entity_writer(kio_class(name, version))(out, entity)
    return entity, out.getvalue()


@cache
def kafka_python_classes() -> dict[str, Any]:
    """Message name -> kafka-python's class."""
    classes: dict[str, Any] = {}
    for module in _KAFKA_PYTHON_MODULES:
        classes.update(vars(importlib.import_module(f"kafka.protocol.{module}")))
    return {name: classes[name] for name in schema.names() if name in classes}


def kafka_python_round_trip(name: str, version: int, data: bytes) -> bytes:
    """The bytes that kafka-python writes for its reading of the bytes."""
    message = kafka_python_classes()[name].decode(data, version=version)
    message._header = None  # its encoder looks for one
    return bytes(message.encode(version=version))
