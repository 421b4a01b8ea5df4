"""Codecs in slices do what the others do, stop in between, and count on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kraftpy.protocol import codec, messages, schema
from kraftpy.protocol.api import REQUEST_NAMES, RESPONSE_NAMES, ApiKey
from kraftpy.protocol.decoding import FEW_ELEMENTS, SLICE_ELEMENTS, TAGS_MAX, ManyElements
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.varint import encode_uvarint
from tests.protocol.random_messages import RandomMessages, all_versions

VERSIONS = [(key, version) for key in ApiKey for version in all_versions(REQUEST_NAMES[key])]
SEEDS = range(8)


def drain(generator: Any) -> tuple[int, Any]:
    """How often it stopped in between, and what it returned."""
    stops = 0
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return stops, end.value
        stops += 1


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=str)
def test_an_answer_in_slices_has_the_same_bytes_and_errors(key: ApiKey, version: int) -> None:
    count = codec.error_counter(RESPONSE_NAMES[key], version, 1000)
    for seed in SEEDS:
        response = RandomMessages(seed).message(RESPONSE_NAMES[key], version)
        parts: list[Any] = []
        errors: Counter[int] = Counter()
        drain(codec.encode_response_in_slices(key, version, 7, response, parts.append, errors))
        assert b"".join(parts) == b"".join(codec.encode_response(key, version, 7, response))
        expected: Counter[int] = Counter()
        if count is not None:
            count(response, expected)
        assert errors == expected


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=str)
def test_a_request_in_slices_is_the_same(key: ApiKey, version: int) -> None:
    for seed in SEEDS:
        request = RandomMessages(seed).message(REQUEST_NAMES[key], version)
        frame = b"".join(codec.encode_request(key, version, 1, None, request))
        _, position = codec.decode_request_header(frame)
        counted: Counter[bool] = Counter()

        def count(what: str, n: int, counted: Counter[bool] = counted) -> None:
            counted["tagged fields" in what] += n

        slices = codec.decode_request_in_slices(key, version, frame, position, count)
        _, decoded = drain(slices)
        assert decoded == codec.decode_request(key, version, frame, position)
        assert counted[False] == elements_of(REQUEST_NAMES[key], version, decoded)


def metadata_request(topics: int, tags: int) -> bytes:
    """The body of MetadataRequest 12 that names topics with so many tagged fields each."""
    topic = bytes(16) + b"\2t" + bytes([tags]) + b"".join(bytes([tag, 0]) for tag in range(tags))
    return encode_uvarint(topics + 1) + topics * topic + b"\0\0\0"


def test_tagged_fields_count_and_make_slices_shorter() -> None:
    counted: Counter[str] = Counter()

    def count(what: str, n: int) -> None:
        counted[what] += n

    body = metadata_request(SLICE_ELEMENTS, 50)
    slices = codec.decode_request_in_slices(ApiKey.METADATA, 12, body, 0, count)
    stops, _ = drain(slices)
    assert stops >= SLICE_ELEMENTS
    assert counted == {
        "MetadataRequest.topics": SLICE_ELEMENTS,
        "MetadataRequestTopic's tagged fields": 50 * SLICE_ELEMENTS,
    }
    few, many = metadata_request(30, 50), metadata_request(FEW_ELEMENTS // 50, 50)
    assert codec.decode_request_of_few(ApiKey.METADATA, 12, few, 0)
    with pytest.raises(ManyElements):
        codec.decode_request_of_few(ApiKey.METADATA, 12, many, 0)


def test_a_struct_has_only_so_many_tagged_fields() -> None:
    assert codec.decode_request(ApiKey.METADATA, 12, metadata_request(1, TAGS_MAX), 0)
    with pytest.raises(DecodeError, match="101 tagged fields, more than 100"):
        codec.decode_request(ApiKey.METADATA, 12, metadata_request(1, TAGS_MAX + 1), 0)


def elements_of(name: str, version: int, message: Any) -> int:
    """How many elements all arrays of a message have."""
    structs = schema.load(name).structs

    def count(struct: str, value: Any) -> int:
        total = 0
        for field in structs[struct]:
            held = getattr(value, field.name)
            if not field.exists_in(version) or held is None:
                continue
            if field.is_array:
                total += len(held)
                if field.type in structs:
                    total += sum(count(field.type, each) for each in held)
            elif field.type in structs:
                total += count(field.type, held)
        return total

    return count(name, message)


def test_a_callback_may_refuse_an_array_before_it_is_built() -> None:
    request = messages.DescribeGroupsRequest(groups=["g"] * 1000)
    frame = b"".join(codec.encode_request(ApiKey.DESCRIBE_GROUPS, 6, 1, None, request))
    _, position = codec.decode_request_header(frame)

    def refuse(field: str, count: int) -> None:
        raise DecodeError(f"{field}: {count}")

    decoding = codec.decode_request_in_slices(ApiKey.DESCRIBE_GROUPS, 6, frame, position, refuse)
    with pytest.raises(DecodeError, match=r"DescribeGroupsRequest\.groups: 1000"):
        next(decoding)


@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [
        (ApiKey.DESCRIBE_GROUPS, 6, messages.DescribeGroupsRequest(["g"] * 1000)),
        (
            ApiKey.METADATA,
            12,
            messages.MetadataRequest([messages.MetadataRequest.MetadataRequestTopic()] * 1000),
        ),
        (
            ApiKey.LIST_OFFSETS,
            7,
            messages.ListOffsetsRequest(
                topics=[
                    messages.ListOffsetsRequest.ListOffsetsTopic(
                        "t", [messages.ListOffsetsRequest.ListOffsetsPartition()] * 1000
                    )
                ]
            ),
        ),
    ],
    ids=str,
)
def test_a_long_array_stops_between_its_elements(key: ApiKey, version: int, request_: Any) -> None:
    frame = b"".join(codec.encode_request(key, version, 1, None, request_))
    _, position = codec.decode_request_header(frame)
    stops, _ = drain(codec.decode_request_in_slices(key, version, frame, position, lambda *_: None))
    assert stops >= 1000 // SLICE_ELEMENTS


def test_an_array_that_is_made_while_it_is_written() -> None:
    made: list[int] = []

    class Lazy:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            for number in range(3):
                made.append(number)
                yield messages.ListGroupsResponse.ListedGroup(f"g{number}")

    response = messages.ListGroupsResponse(groups=Lazy())  # type: ignore[arg-type]
    parts: list[Any] = []
    writing = codec.encode_response_in_slices(
        ApiKey.LIST_GROUPS, 4, 1, response, parts.append, Counter()
    )
    next(writing)
    assert made == [0]
    drain(writing)
    _, read = codec.decode_response(ApiKey.LIST_GROUPS, 4, b"".join(parts))
    assert [each.group_id for each in read.groups] == ["g0", "g1", "g2"]


@pytest.mark.parametrize(("topics", "each"), [(1, 2_000), (1_500, 1), (40, 49)])
def test_the_decoder_of_few_elements_stops_where_there_are_more(topics: int, each: int) -> None:
    kinds = messages.ProduceRequest
    some = [kinds.PartitionProduceData(i, b"r") for i in range(each)]
    request = kinds(
        topic_data=[kinds.TopicProduceData("t", partition_data=some) for _ in range(topics)]
    )
    for version in (3, 9):
        frame = b"".join(codec.encode_request(ApiKey.PRODUCE, version, 1, None, request))
        _, position = codec.decode_request_header(frame)
        if topics + topics * each > FEW_ELEMENTS:
            with pytest.raises(ManyElements):
                codec.decode_request_of_few(ApiKey.PRODUCE, version, frame, position)
        else:
            read = codec.decode_request_of_few(ApiKey.PRODUCE, version, frame, position)
            assert read == codec.decode_request(ApiKey.PRODUCE, version, frame, position)
