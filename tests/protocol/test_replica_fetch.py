"""The short way for most fetches between brokers gives what the generated codec gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from kraftpy.protocol import codec, replica_fetch
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.generator import decoder, encoder
from kraftpy.protocol.messages import FetchRequest
from tests.protocol.random_messages import SEEDS, RandomMessages, examples

TOPIC_ID = bytes(range(16))
both_versions = pytest.mark.parametrize("version", replica_fetch.VERSIONS)


def usual() -> FetchRequest:
    partition = FetchRequest.FetchPartition(7, 3, 2**40, 3, 5, 1 << 20)
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(2, 2**33),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        session_id=77,
        session_epoch=2**31 - 1,
        topics=[FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
    )


def generated(version: int, request: FetchRequest) -> bytes:
    parts: list[Any] = []
    encoder("FetchRequest", version)(request, parts.append)
    return b"".join(parts)


def shortened(version: int, request: FetchRequest) -> list[bytes]:
    return codec.encode_request(ApiKey.FETCH, version, 1, None, request)[1:]


@both_versions
def test_the_usual_request_is_read_and_written_in_one_piece(version: int) -> None:
    body = generated(version, usual())
    assert shortened(version, usual()) == [body]
    read = codec.decode_request(ApiKey.FETCH, version, memoryview(b"head" + body), 4)
    again, end = decoder("FetchRequest", version)(body, 0)
    assert (read, end) == (usual(), len(body))
    assert read == again, "with the fields that the version does not have"


CHANGES: dict[str, Callable[[FetchRequest], None]] = {
    "a rack": lambda r: setattr(r, "rack_id", "r"),
    "a cluster": lambda r: setattr(r, "cluster_id", "c"),
    "no replica": lambda r: setattr(r, "replica_state", None),
    "no replica's id": lambda r: setattr(r.replica_state, "replica_id", -1),
    "forgotten": lambda r: r.forgotten_topics_data.append(
        FetchRequest.ForgottenTopic(topic_id=TOPIC_ID, partitions=[1])
    ),
    "no topic": lambda r: r.topics.clear(),
    "two topics": lambda r: r.topics.append(FetchRequest.FetchTopic(topic_id=TOPIC_ID)),
    "no partition": lambda r: r.topics[0].partitions.clear(),
    "two partitions": lambda r: r.topics[0].partitions.append(FetchRequest.FetchPartition(8)),
    "tags": lambda r: setattr(r, "_tags", {99: b"x"}),
    "a topic's tags": lambda r: setattr(r.topics[0], "_tags", {99: b"x"}),
    "a partition's tags": lambda r: setattr(r.topics[0].partitions[0], "_tags", {99: b"x"}),
    "a replica's tags": lambda r: setattr(r.replica_state, "_tags", {99: b"x"}),
}


@both_versions
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_other_shapes(version: int, change: Callable[[FetchRequest], None]) -> None:
    request = usual()
    change(request)
    body = generated(version, request)
    assert b"".join(shortened(version, request)) == body
    expected, _ = decoder("FetchRequest", version)(body, 0)
    assert codec.decode_request(ApiKey.FETCH, version, body, 0) == expected


@both_versions
@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r, "rack_id", None),
        lambda r: setattr(r, "forgotten_topics_data", None),
        lambda r: setattr(r, "max_bytes", 2**31),
        lambda r: setattr(r.topics[0], "topic_id", None),
        lambda r: setattr(r.topics[0], "topic_id", b"short"),
        lambda r: setattr(r.replica_state, "replica_id", None),
    ],
)
def test_the_same_errors(version: int, change: Callable[[FetchRequest], None]) -> None:
    request = usual()
    change(request)
    with pytest.raises(ValueError, match=r".") as expected:
        generated(version, request)
    with pytest.raises(ValueError, match=r".") as raised:
        shortened(version, request)
    assert str(raised.value) == str(expected.value)


@both_versions
def test_other_bytes_of_the_same_size(version: int) -> None:
    """Each byte is changed in turn: the short way must not read what it doesn't know."""
    body = generated(version, usual())
    generic = decoder("FetchRequest", version)

    def outcome(decode: Callable[[bytes], Any], data: bytes) -> Any:
        try:
            return decode(data)
        except ValueError as error:
            return str(error)

    for index in range(len(body)):
        for changed in (body[index] ^ 1, body[index] ^ 0x80, 0, 3):
            data = bytes([*body[:index], changed, *body[index + 1 :]])
            expected = outcome(lambda data: generic(data, 0)[0], data)
            found = outcome(lambda data: codec.decode_request(ApiKey.FETCH, version, data, 0), data)
            assert found == expected, (index, changed)


@both_versions
@examples(60)
@given(seed=SEEDS)
def test_any_request(version: int, seed: int) -> None:
    request = RandomMessages(seed).message("FetchRequest", version)
    assert b"".join(shortened(version, request)) == generated(version, request)
