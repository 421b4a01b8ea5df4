"""The shape that most fetches between brokers have, read and written with one call each.

A follower that got a batch asks on, in its fetch session, for the one partition that it was of.
Such a request has a fixed size. Whatever has another shape goes through the generated codec, and
gives the same there: same bytes, same objects, same errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import ZERO_UUID

VERSIONS: Final = (15, 16)
"""Before them a follower is named elsewhere, after them partitions have tagged fields."""

# Compact sizes are one more than what they count. Behind the partition come no tags of it and its
# topic, no forgotten topics, no rack, and one tagged field: tag 1, 13 bytes.
_ONE: Final = 2
_BETWEEN: Final = b"\0\0\1\1\1\1\x0d"
_SHAPE: Final = struct.Struct(">iiibiiB16sBiiqiqi7siqB")
_pack: Final = _SHAPE.pack
_unpack: Final = _SHAPE.unpack_from
_new: Final = object.__new__
_NO_HIGH_WATERMARK: Final = 2**63 - 1

Decode = Callable[[memoryview | bytes, int], tuple[Any, int]]
Encode = Callable[[Any, Callable[[Any], None]], None]


def shortened_decoder(decode: Decode, classes: Mapping[str, type[Message]]) -> Decode:
    """`decode`, with a short way for requests of that shape."""
    names = ("FetchRequest", "FetchTopic", "FetchPartition", "ReplicaState")
    requests, topics, partitions, replicas = (classes[name] for name in names)

    def decode_fetch(buf: memoryview | bytes, pos: int) -> tuple[Any, int]:
        if len(buf) - pos != _SHAPE.size:
            return decode(buf, pos)
        request: Any = _new(requests)
        topic: Any = _new(topics)
        partition: Any = _new(partitions)
        replica: Any = _new(replicas)
        (
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            topic_count,
            topic.topic_id,
            partition_count,
            partition.partition,
            partition.current_leader_epoch,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            partition.log_start_offset,
            partition.partition_max_bytes,
            between,
            replica.replica_id,
            replica.replica_epoch,
            tags,
        ) = _unpack(buf, pos)
        if topic_count != _ONE or partition_count != _ONE or between != _BETWEEN or tags:
            return decode(buf, pos)
        request.replica_state = replica
        request.replica_id = -1
        request.topics = [topic]
        request.forgotten_topics_data = []
        request.rack_id = topic.topic = ""
        request.cluster_id = request._tags = topic._tags = partition._tags = replica._tags = None
        topic.partitions = [partition]
        partition.replica_directory_id = ZERO_UUID
        partition.high_watermark = _NO_HIGH_WATERMARK
        return request, pos + _SHAPE.size

    return decode_fetch


def shortened_encoder(encode: Encode) -> Encode:
    """`encode`, with a short way for requests of that shape."""

    def encode_fetch(request: Any, append: Callable[[Any], None]) -> None:
        body = _encode_of_one(request)
        if body is None:
            encode(request, append)
        else:
            append(body)

    return encode_fetch


def _encode_of_one(request: Any) -> bytes | None:
    """The body of a request of that shape, else None."""
    topics, replica = request.topics, request.replica_state
    if not topics or len(topics) != 1 or replica is None or request.forgotten_topics_data != []:
        return None
    topic = topics[0]
    if not topic.partitions or len(topic.partitions) != 1:
        return None
    partition = topic.partitions[0]
    if request.rack_id != "" or request.cluster_id is not None:
        return None
    if request._tags or topic._tags or partition._tags or replica._tags:
        return None
    try:
        if replica.replica_id < 0 or len(topic.topic_id) != 16:
            return None
        return _pack(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            _ONE,
            topic.topic_id,
            _ONE,
            partition.partition,
            partition.current_leader_epoch,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            partition.log_start_offset,
            partition.partition_max_bytes,
            _BETWEEN,
            replica.replica_id,
            replica.replica_epoch,
            0,
        )
    except (struct.error, TypeError):
        return None  # the other way says what is wrong
