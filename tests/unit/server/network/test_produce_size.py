"""Counting what isn't records in a Produce, before it is decoded."""

from __future__ import annotations

import pytest

from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import ProduceRequest
from kraftpy.server.network.produce_size import READS_MAX, is_large_by_records


def frame(version: int, topics: dict[str, list[int | None]]) -> tuple[memoryview, int]:
    """A request with records of these sizes (None: null), and where its body begins."""
    request = ProduceRequest(
        transactional_id="txn" if version >= 3 else None,
        acks=1,
        timeout_ms=5,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name,
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index, None if size is None else bytes(size)
                    )
                    for index, size in enumerate(sizes)
                ],
            )
            for name, sizes in topics.items()
        ],
    )
    parts = codec.encode_request(ApiKey.PRODUCE, version, 1, "client", request)
    whole = memoryview(b"".join(parts))
    return whole, codec.decode_request_header(whole)[1]


@pytest.mark.parametrize("version", range(12))
def test_everything_but_records_is_counted(version: int) -> None:
    whole, position = frame(version, {"a": [0, 1, 200, None], "b" * 200: [70_000], "c": []})
    beside = len(whole) - position - 70_201
    assert is_large_by_records(whole, position, version, beside)
    assert not is_large_by_records(whole, position, version, beside - 1)


@pytest.mark.parametrize("version", [2, 8, 11])
def test_cut_off_bytes_are_left_to_the_decoder(version: int) -> None:
    whole, position = frame(version, {"a": [10, 10], "b": [300]})
    for end in range(position, len(whole)):
        assert is_large_by_records(whole[:end], position, version, 1000)


@pytest.mark.parametrize(("version", "reads"), [(2, 1), (11, 2)])
def test_it_reads_only_so_much(version: int, reads: int) -> None:
    """What is large is walked over before anything is known of it, and others wait meanwhile."""
    count = READS_MAX // reads
    for sizes in ([10] * (count - 10), [10] * (count + 10)):
        whole, position = frame(version, {"a": sizes})
        beside = len(whole) - position - 10 * len(sizes)
        assert is_large_by_records(whole, position, version, beside) == (len(sizes) < count)
