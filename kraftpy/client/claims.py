"""Claims on the wire: what a group has done of parts of partitions, asked for and committed.

Rules:
* A broker without the feature `kraftpy.cooperative` is never sent a claim: Apache Kafka's would
  store the offset -1 that goes with one.
* Each partition is answered for itself. A claim may be sent again: twice done is done. One of what
  lies below the stable offset is too old, which means that it is done already.
* A commit has so many ranges at most; more go into several.

Source: seed 001, "Public Interfaces".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kraftpy.client.coordinator import MOVED, Coordinator, Generation
from kraftpy.client.ledger import WHOLE, Claim, Due
from kraftpy.client.offsets import Partition
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
    LAST_STABLE_OFFSET_TAG,
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    SLICES_TAG,
    WANT_RANGES_TAG,
    YES,
    decode_epoch_ranges,
    decode_epoch_slices,
    decode_int64,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.key_hash import HASH_MAX

FETCH_VERSION = 8
"""The version of OffsetFetch that claims are asked for in."""
_FETCH_OF_MEMBERS_VERSION = 9
_READ_MAX = 1 << 24

_DONE = frozenset({ErrorCode.NONE, ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD})


class Progress(NamedTuple):
    """What a group has done of a partition: all below `stable` (-1: it never said), and claims."""

    stable: int
    claims: list[Claim]


class Outcome(NamedTuple):
    """What became of a partition's claims; `stable` is -1 where the coordinator didn't tell."""

    code: ErrorCode
    stable: int

    @property
    def done(self) -> bool:
        return self.code in _DONE


async def read_progress(
    coordinator: Coordinator,
    partitions: Iterable[Partition],
    *,
    member_id: str = "",
    timeout_ms: int | None = None,
) -> dict[Partition, Progress]:
    """What the group has done of partitions; from brokers without claims its offsets alone.

    Partitions without a committed offset are left out, unless something of them is claimed. Where
    an open transaction may be about to change what is asked for, it's asked again; a member needn't
    wait for those of others' slices.
    """
    names = list(partitions)
    wanted: dict[str, list[int]] = {}
    for topic, partition in names:
        wanted.setdefault(topic, []).append(partition)
    kinds = messages.OffsetFetchRequest
    request = kinds(
        groups=[
            kinds.OffsetFetchRequestGroup(
                group_id=coordinator.group_id,
                member_id=member_id or None,
                topics=[
                    kinds.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
                    for topic, numbers in wanted.items()
                ],
            )
        ],
        require_stable=True,
        _tags={WANT_RANGES_TAG: YES},
    )
    found: dict[Partition, Progress] = {}

    async def attempt(timeout_ms: int) -> None:
        found.clear()
        if not await coordinator.knows_claims():
            offsets = await coordinator.committed(names, timeout_ms=timeout_ms)
            found.update({name: Progress(offset, []) for name, offset in offsets.items()})
            return
        response = await coordinator.ask(
            request, timeout_ms=timeout_ms, version=_FETCH_OF_MEMBERS_VERSION
        )
        for group in response.groups:
            coordinator.check_group(group.error_code)
            coordinator.check_partitions(group.topics)
            for topic in group.topics:
                for partition in topic.partitions:
                    progress = Progress(partition.committed_offset, claims_in(partition))
                    if progress.stable >= 0 or progress.claims:
                        found[topic.name, partition.partition_index] = progress

    if wanted:
        await coordinator.retrying(attempt, timeout_ms)
    return found


def claims_in(partition: Any) -> list[Claim]:
    """What an OffsetFetch tells of claims on a partition."""
    tags = partition._tags or {}
    claims: list[Claim] = []
    try:
        if OFFSET_RANGES_TAG in tags:
            whole = decode_epoch_ranges(tags[OFFSET_RANGES_TAG], _READ_MAX)
            claims += [Claim(0, HASH_MAX, first, last) for first, last, _ in whole]
        if SLICES_TAG in tags:
            slices = decode_epoch_slices(tags[SLICES_TAG], _READ_MAX)
            claims += [
                Claim(low, high, first, last)
                for low, high, ranges in slices
                for first, last, _ in ranges
            ]
    except DecodeError as error:
        raise ConnectionError(f"the coordinator's claims can't be read: {error}") from error
    return claims


async def commit_claims(
    coordinator: Coordinator,
    dues: Mapping[Partition, Iterable[Due]],
    generation: Generation,
    *,
    timeout_ms: int | None = None,
) -> dict[Partition, Outcome]:
    """Says what is done of partitions' slices, and returns what became of each partition's claims.

    Raises what makes all of it void: KafkaError of the membership, INDIVIDUAL_COMMIT_NOT_ALLOWED,
    and the last `ConnectionError` or retriable KafkaError when time is up. Until then retriable
    errors are tried again, but for MAX_INDIVIDUAL_COMMIT_REACHED, which more work is needed for.
    """
    outcomes: dict[Partition, Outcome] = {}
    for part in split(dues):
        for name, outcome in (await _commit(coordinator, part, generation, timeout_ms)).items():
            worse = outcomes.get(name)
            if worse is None or worse.done:
                outcomes[name] = outcome
    return outcomes


async def _commit(
    coordinator: Coordinator,
    dues: Mapping[Partition, list[Due]],
    generation: Generation,
    timeout_ms: int | None,
) -> dict[Partition, Outcome]:
    kinds = messages.OffsetCommitRequest
    topics: dict[str, list[Any]] = {}
    for (topic, partition), accounts in dues.items():
        topics.setdefault(topic, []).append(
            kinds.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=-1,
                committed_metadata="",
                _tags=claim_tags(accounts),
            )
        )
    request = kinds(
        group_id=coordinator.group_id,
        generation_id_or_member_epoch=generation.id,
        member_id=generation.member_id,
        group_instance_id=generation.instance_id,
        topics=[
            kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )
    outcomes: dict[Partition, Outcome] = {}

    async def attempt(timeout_ms: int) -> None:
        if not await coordinator.knows_claims():
            raise not_taken(coordinator.group_id)
        outcomes.clear()
        response = await coordinator.ask(request, timeout_ms=timeout_ms)
        for topic in response.topics:
            for partition in topic.partitions:
                code = error_code(partition.error_code)
                if code in _AGAIN:
                    if code in MOVED:
                        coordinator.forget()
                    if code == ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED:
                        coordinator.refuses_claims = True
                    raise KafkaError(code, f"group {coordinator.group_id!r}: {code.message}")
                stable = (partition._tags or {}).get(LAST_STABLE_OFFSET_TAG)
                outcomes[topic.name, partition.partition_index] = Outcome(
                    code, -1 if stable is None else decode_int64(stable)
                )

    await coordinator.retrying(attempt, timeout_ms)
    return outcomes


# All that says something of the coordinator or the member, and so of every partition.
_AGAIN = MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED,
}


def not_taken(group_id: str) -> KafkaError:
    """What whoever claims is told where that isn't served."""
    return KafkaError(
        ErrorCode.INDIVIDUAL_COMMIT_NOT_ALLOWED,
        f"group {group_id!r}: its coordinator doesn't serve claims "
        f"(the feature {COOPERATIVE_FEATURE})",
    )


def claim_tags(accounts: Iterable[Due]) -> dict[int, bytes]:
    """The tagged fields by which a partition of a commit claims."""
    whole = [each for due in accounts if due.slices == WHOLE for each in due.ranges]
    if whole:
        return {OFFSET_RANGES_TAG: encode_ranges(whole)}
    slices = [(low, end - 1, due.ranges) for due in accounts for low, end in due.slices]
    return {SLICES_TAG: encode_slices(sorted(slices))}


def split(dues: Mapping[Partition, Iterable[Due]]) -> Iterator[dict[Partition, list[Due]]]:
    """The same as commits that have no more ranges than one may have."""
    part: dict[Partition, list[Due]] = {}
    left = RANGES_MAX
    for name, accounts in dues.items():
        for due in accounts:
            ranges, each = due.ranges, len(due.slices)
            while ranges:
                count = left // each
                if count:
                    part.setdefault(name, []).append(Due(due.slices, ranges[:count]))
                    left -= len(ranges[:count]) * each
                    ranges = ranges[count:]
                if ranges:
                    yield part
                    part, left = {}, RANGES_MAX
    if part:
        yield part
