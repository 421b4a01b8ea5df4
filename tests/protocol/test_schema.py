"""The schema tables agree with kafka-python's schema files, field by field, and with themselves."""

from __future__ import annotations

import keyword
import re
from typing import Any

import pytest
from kafka.protocol.schemas import load_json

from kraftpy.protocol import api, schema
from kraftpy.protocol.schema import Field
from tests.protocol.oracles import NEWER_THAN_THE_ORACLES, kafka_python_classes
from tests.protocol.random_messages import all_versions

LAST = 32767


def versions(text: str | None) -> tuple[int, int]:
    if text is None or text == "none":
        return (1, 0)
    first, dash, last = str(text).partition("-")
    if first.endswith("+"):
        return int(first[:-1]), LAST
    return int(first), int(last) if dash else int(first)


def within(text: str | None, version: int) -> bool:
    first, last = versions(text)
    return first <= version <= last


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def json_default(field: dict[str, Any]) -> Any:
    default, kind = field.get("default"), field["type"]
    if default == "null" or kind == "records":
        return None
    if kind.startswith("[]"):
        return ()
    if kind[0].isupper():
        return None
    if kind == "bool":
        return str(default).lower() == "true"
    if kind in ("string", "bytes", "uuid"):
        return {"string": default or "", "bytes": b"", "uuid": bytes(16)}[kind]
    return int(default, 0) if isinstance(default, str) else default or 0


def json_rows(document: dict[str, Any], version: int) -> list[tuple[Any, ...]]:
    """(struct, name, type, nullable, tag, default) of each field of the version, in wire order."""
    common = {s["name"]: s["fields"] for s in document.get("commonStructs", ())}
    rows: list[tuple[Any, ...]] = []

    def walk(struct: str, fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if not within(field["versions"], version):
                continue
            tag = field["tag"] if within(field.get("taggedVersions"), version) else None
            nullable = within(field.get("nullableVersions"), version)
            name, kind = snake(field["name"]), field["type"]
            rows.append((struct, name, kind, nullable, tag, json_default(field)))
            nested = kind.removeprefix("[]")
            if nested[0].isupper():
                walk(nested, field.get("fields") or common[nested])

    walk(document["name"], document["fields"])
    return rows


def our_rows(name: str, version: int) -> list[tuple[Any, ...]]:
    structs = schema.load(name).structs
    rows: list[tuple[Any, ...]] = []

    def walk(struct: str, fields: tuple[Field, ...]) -> None:
        for field in fields:
            if not field.exists_in(version):
                continue
            kind = "[]" * field.is_array + field.type
            nullable = field.nullable_in(version)
            rows.append((struct, field.name, kind, nullable, field.tag, field.default))
            if field.type in structs:
                walk(field.type, structs[field.type])

    walk(name, structs[name])
    return rows


@pytest.mark.parametrize("name", sorted(kafka_python_classes()))
def test_tables_agree_with_kafka_pythons_schema_files(name: str) -> None:
    document = load_json(name)
    ours = schema.load(name)
    first, last = versions(document["validVersions"])
    if document["type"] == "data":
        last = ours.last_version  # kafka-python patches the newer versions out of its copy
    assert ours.api_key == document.get("apiKey")
    assert ours.last_version - last == ((name, last + 1) in NEWER_THAN_THE_ORACLES)
    assert ours.first_version <= first
    for version in range(first, last + 1):
        assert ours.is_flexible(version) == within(document["flexibleVersions"], version)
        assert our_rows(name, version) == json_rows(document, version)


def test_every_request_has_a_response_of_the_same_versions() -> None:
    heads = {(h.kind, h.api_key): h for h in schema.headers() if h.api_key is not None}
    for (kind, key), head in heads.items():
        other = heads["response" if kind == "request" else "request", key]
        assert head[3:] == other[3:], head.name


@pytest.mark.parametrize("key", api.ADVERTISED)
def test_every_advertised_version_has_a_schema(key: api.ApiKey) -> None:
    first, last = api.ADVERTISED[key]
    for names in (api.REQUEST_NAMES, api.RESPONSE_NAMES):
        known = all_versions(names[key])
        assert first in known
        assert last in known


@pytest.mark.parametrize("key", list(api.ApiKey))
def test_api_keys_have_kafkas_names(key: api.ApiKey) -> None:
    assert snake(api.REQUEST_NAMES[key].removesuffix("Request")).upper() == key.name
    assert snake(api.RESPONSE_NAMES[key].removesuffix("Response")).upper() == key.name


def test_only_implemented_apis_are_advertised_and_in_order() -> None:
    chosen = api.advertised({18, api.ApiKey.PRODUCE})
    assert list(chosen.items()) == [
        (api.ApiKey.PRODUCE, (0, 13)),
        (api.ApiKey.API_VERSIONS, (0, 5)),
    ]


def test_produce_is_advertised_from_version_0_so_that_librdkafka_compresses() -> None:
    assert api.ADVERTISED[api.ApiKey.PRODUCE][0] == 0


@pytest.mark.parametrize("name", list(schema.names()))
def test_field_names_are_identifiers_and_tags_are_unique(name: str) -> None:
    for fields in schema.load(name).structs.values():
        assert all(f.name.isidentifier() and not keyword.iskeyword(f.name) for f in fields)
        assert len({f.name for f in fields}) == len(fields)
        tags = [f.tag for f in fields if f.tag is not None]
        assert sorted(tags) == list(range(len(tags)))
