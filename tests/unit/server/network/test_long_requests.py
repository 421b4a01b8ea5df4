"""Requests of many elements: refused beyond what a cluster can have, decoded between other work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol import codec
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey
from kraftpy.protocol.decoding import FEW_ELEMENTS
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.messages import (
    DescribeGroupsRequest,
    OffsetFetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.server.network import long_answers, long_requests
from kraftpy.server.network.long_requests import ARRAY_MAX, ELEMENTS_MAX, LongRequest
from tests.protocol.random_messages import all_versions
from tests.server.amplified import Populated, cases
from tests.unit.server.network.test_long_answers import describe, described, names, send, serving
from tests.waiting import until


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice ends as soon as it can."""
    monkeypatch.setattr(long_answers, "SLICE_MAX_S", 0.0)
    monkeypatch.setattr(long_requests, "SLICE_MAX_S", 0.00001)


async def test_others_are_served_while_a_request_is_decoded(slices: None) -> None:
    async with serving(10) as served, served.client() as sock, served.client() as other:
        memory = served.listener._memory
        await describe(sock, names(50_000))
        await until(lambda: memory.used_bytes > 50_000 * 100)
        assert served.groups.described == []
        await describe(other, ["other"])
        assert [g.group_id for g in (await described(other)).groups] == ["other"]
        answer = await described(sock)
        assert [g.group_id for g in answer.groups] == names(50_000)
        await until(lambda: memory.used_bytes == 0)


async def test_what_comes_behind_a_long_request_is_answered_behind_it(slices: None) -> None:
    async with serving(10) as served, served.client() as sock:
        await describe(sock, names(20_000))
        await describe(sock, ["behind"])
        assert len((await described(sock)).groups) == 20_000
        assert [g.group_id for g in (await described(sock)).groups] == ["behind"]


@pytest.mark.parametrize(
    ("key", "version", "request_", "line"),
    [
        (
            ApiKey.DESCRIBE_GROUPS,
            5,
            DescribeGroupsRequest([""] * (ARRAY_MAX + 1)),
            f"DescribeGroupsRequest.groups has {ARRAY_MAX + 1} elements, more than the "
            f"{ARRAY_MAX} partitions that a cluster can have",
        ),
        (
            ApiKey.OFFSET_FETCH,
            8,
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequest.OffsetFetchRequestGroup(
                        topics=[
                            OffsetFetchRequest.OffsetFetchRequestTopics(
                                partition_indexes=[0] * (ELEMENTS_MAX // 3)
                            )
                        ]
                    )
                ]
                * 3
            ),
            f"more than {ELEMENTS_MAX} elements",
        ),
    ],
    ids=["an array", "all arrays"],
)
async def test_more_elements_than_a_cluster_has_close_the_connection_before_they_are_built(
    key: ApiKey, version: int, request_: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(10) as served, served.client() as sock:
        await send(sock, key, version, request_)
        assert await described(sock) is None
        assert served.listener._memory.used_bytes == 0
        assert served.groups.described == []
    assert len(caplog.records) == 1
    assert line in caplog.text


@pytest.mark.parametrize("partitions", [1, FEW_ELEMENTS + 1])
async def test_a_long_produce_is_handled_at_once_unless_it_has_many_partitions(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    spec = HANDLERS[ApiKey.PRODUCE]

    def produce(broker: object, ctx: object, request: ProduceRequest) -> ProduceResponse:
        (data,) = request.topic_data
        seen.append(bytes(data.partition_data[-1].records or b"") == b"r" * 100_000)
        return ProduceResponse()

    monkeypatch.setattr(spec, "function", produce)

    async with serving(10) as served, served.client() as sock:
        later: list[object] = []
        defer = served.dispatcher._defer
        monkeypatch.setattr(
            served.dispatcher, "_defer", lambda *a, **k: (later.append(a), defer(*a, **k))
        )
        some = [ProduceRequest.PartitionProduceData(i, b"r") for i in range(partitions)]
        some[-1].records = b"r" * 100_000  # type: ignore[assignment]
        data = [ProduceRequest.TopicProduceData("t", partition_data=some)]
        await send(sock, ApiKey.PRODUCE, 9, ProduceRequest(acks=1, topic_data=data))
        await until(lambda: bool(seen))
        assert seen == [True]
        assert bool(later) == (partitions > 1)


def decode(long: LongRequest) -> None:
    while not long.advance():
        pass


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_every_array_of_every_request_is_counted(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_requests, "ARRAY_MAX", 20)
    versions = all_versions(REQUEST_NAMES[key])
    for version in dict.fromkeys((versions[0], versions[-1])):
        for case in cases(key, version, 3_000, Populated(bytes(15) + b"1", {})):
            if " x " not in case.what:
                continue
            frame = b"".join(codec.encode_request(key, version, 1, None, case.request))
            _, position = codec.decode_request_header(frame)
            count = case.what.split()[2].replace(",", "")
            connection: Any = SimpleNamespace()
            long = LongRequest(connection, key, version, memoryview(frame), position)
            with pytest.raises(DecodeError, match=rf"has {count} elements, more than the 20 "):
                decode(long)
            assert long.request is None
