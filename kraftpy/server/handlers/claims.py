"""What answers to groups say of claims on parts of a partition, to who asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.core.groups import OffsetRow
from kraftpy.protocol.extensions import (
    ACCEPT_INDIVIDUAL_COMMIT_TAG,
    GENERATION_TAG,
    NO,
    YES,
    encode_int64,
)
from kraftpy.protocol.messages import JoinGroupResponse, OffsetFetchResponse
from kraftpy.server.coordination.runtime import answer_of

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

TagsOf = Callable[[str, int], dict[int, bytes] | None]
"""The tagged fields that tell of claims on this topic and partition."""


async def with_acceptance(
    broker: Broker, joined: JoinGroupResponse | asyncio.Future[JoinGroupResponse]
) -> JoinGroupResponse:
    """Says whether members may claim records out of order."""
    response = await answer_of(joined)
    response._tags = {ACCEPT_INDIVIDUAL_COMMIT_TAG: YES if broker.groups.takes_claims else NO}
    return response


def generation_tag(broker: Broker, group_id: str) -> dict[int, bytes] | None:
    """Says a group's generation, if it has one. Raises KafkaError."""
    generation = broker.groups.generation_of(group_id)
    return None if generation < 0 else {GENERATION_TAG: encode_int64(generation)}


def no_tags(topic: str, partition: int) -> None:
    """Of who doesn't ask for claims."""
    return


def row_maker(
    tags: TagsOf, topic: Callable[[], str]
) -> Callable[[OffsetRow], OffsetFetchResponse.OffsetFetchResponsePartitions]:
    """Makes partitions of an OffsetFetch of the rows of a topic; `topic` gives its name."""
    kind = OffsetFetchResponse.OffsetFetchResponsePartitions
    if tags is no_tags:
        return lambda row: kind(*row)
    name = topic()

    def with_tags(row: OffsetRow) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
        partition = kind(*row)
        partition._tags = tags(name, row[0])
        return partition

    return with_tags
