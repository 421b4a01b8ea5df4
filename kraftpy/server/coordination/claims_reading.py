"""What a leader asks a group's coordinator: how far a cooperative group is with a partition.

A coordinator that is at this broker is called directly. Another one is asked as a broker asks, by
OffsetFetch (docs/protocol.md), on a connection that nobody else's requests wait on. What is pending
in a transaction is waited for: it's neither done nor to be dealt again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from kraftpy.client.connection import ConnectionLostError
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    GENERATION_TAG,
    OFFSET_RANGES_TAG,
    WANT_RANGES_TAG,
    YES,
    decode_epoch_ranges,
    decode_int64,
)
from kraftpy.protocol.messages import OffsetFetchRequest
from kraftpy.server.coordination.peers import CLAIMS, Peers

if TYPE_CHECKING:
    from kraftpy.server.coordination.group_coordinator import GroupCoordinator

TIMEOUT_S: Final = 5.0
OFFSET_FETCH_VERSION: Final = 9
_RANGES_MAX: Final = 1 << 24


class Progress(NamedTuple):
    """All below `stable` is done (-1: nothing was ever committed), and these ranges above.

    `generation` is the group's, -1 if it isn't known to have one.
    """

    stable: int
    claims: list[tuple[int, int]]
    generation: int


class ClaimsHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def peers(self) -> Peers: ...


async def read_progress(host: ClaimsHost, group: str, topic: str, index: int) -> Progress:
    """How far the group is. Raises KafkaError; a retriable one may pass."""
    node_id = await host.groups.coordinator_of(group, host.loop.time() + TIMEOUT_S)
    if node_id == host.node_id:
        return _at_home(host.groups, group, topic, index)
    kinds = OffsetFetchRequest
    request = kinds(
        groups=[
            kinds.OffsetFetchRequestGroup(
                group_id=group,
                topics=[kinds.OffsetFetchRequestTopics(name=topic, partition_indexes=[index])],
            )
        ],
        require_stable=True,
        _tags={WANT_RANGES_TAG: YES},
    )
    try:
        answer = await host.peers.request(
            node_id,
            CLAIMS,
            request,
            timeout_ms=int(TIMEOUT_S * 1000),
            version=OFFSET_FETCH_VERSION,
        )
    except (ConnectionLostError, KafkaError) as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    try:
        return _progress(answer)
    except (DecodeError, IndexError) as error:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {node_id} says nothing of use: {error}"
        ) from error


def _at_home(groups: GroupCoordinator, group: str, topic: str, index: int) -> Progress:
    tags = groups.claims_of(group)(topic, index)
    ((_, (row,)),) = groups.fetch_offsets(group, [(topic, [index])], require_stable=True)()
    if error := row[4:]:
        raise KafkaError(ErrorCode(error[0]))
    return Progress(row[1], _ranges_in(tags), groups.generation_of(group))


def _progress(answer: Any) -> Progress:
    group = answer.groups[0]
    if group.error_code:
        raise KafkaError(error_code(group.error_code))
    partition = group.topics[0].partitions[0]
    if partition.error_code:
        raise KafkaError(error_code(partition.error_code))
    said = (group._tags or {}).get(GENERATION_TAG)
    generation = -1 if said is None else decode_int64(said)
    return Progress(partition.committed_offset, _ranges_in(partition._tags), generation)


def _ranges_in(tags: dict[int, bytes] | None) -> list[tuple[int, int]]:
    content = (tags or {}).get(OFFSET_RANGES_TAG)
    claims = [] if content is None else decode_epoch_ranges(content, _RANGES_MAX)
    return [(first, last) for first, last, _ in claims]
