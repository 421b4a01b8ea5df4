"""Commits: when a consumer makes them, in which order, and as whom; and those with a condition.

Rules:

* Commits leave one after the other in the order in which they were made, each with the generation
  of that moment. So none goes back over another, and one of a former generation is refused.
* A commit whose time is up before its turn comes isn't sent: those behind one that fails don't each
  wait as long again.
* Auto commit has at most one commit under way; what failed is committed with the next one.
* Without auto commit, holes (`ledger`) are claimed as often, by themselves: nobody waits for that,
  and it comes before or behind other commits with the same outcome.
* What the user commits is committed whole or not at all. Auto commit keeps what can be kept: its
  positions have nothing to do with each other, and one of a topic that is gone mustn't hold up the
  others.
* Of a partition that this consumer has a part of, or has done out of order, claims are committed
  (`ledger`). What the group has by now, the ledger is told.
* Whoever gives partitions up or leaves waits for commits under way, but not for ever.
* A commit with a condition (`compare_and_commit`) is sent once: after an error only its caller can
  tell what to do about it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from kraftpy.client.claims import commit_claims
from kraftpy.client.coordinator import MOVED, Coordinator, Generation
from kraftpy.client.ledger import Dues, Ledger
from kraftpy.client.offsets import Offset, Partition
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, EXPECTED_OFFSET_TAG, YES

_log = logging.getLogger(__name__)


class Claiming(NamedTuple):
    """Claims on a partition, and the ledger that wants to know what became of them."""

    ledger: Ledger
    dues: Dues


Done = Mapping[Partition, Offset | Claiming]
"""What is to be committed of partitions: the offset of the next record to process, or claims."""


class Committing(Protocol):
    """Tells as whom to commit now, and is told of an error that this member was answered."""

    def __call__(self, error: KafkaError | None = None) -> Generation: ...


class Commits:
    """The commits of one consumer; without `auto` those that the user makes, and of holes."""

    def __init__(
        self, coordinator: Coordinator, interval_ms: int, committing: Committing, *, auto: bool
    ) -> None:
        self._coordinator = coordinator
        self._auto = auto
        self._interval_s = interval_ms / 1000
        self._committing = committing
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._auto_committed: dict[Partition, Offset] = {}
        self._claiming: asyncio.Task[None] | None = None
        self._due_at = time.monotonic() + self._interval_s

    async def commit(self, offsets: Done, *, timeout_ms: int | None = None) -> None:
        """Commits when all earlier commits are done; see `Coordinator.commit`."""
        await self._commit(dict(offsets), self._committing(), True, timeout_ms)

    def soon(self, offsets: Done) -> asyncio.Task[None]:
        """The same without waiting for it."""
        return self._soon(offsets, True)

    def _soon(self, offsets: Done, all_or_none: bool) -> asyncio.Task[None]:
        commit = self._commit(dict(offsets), self._committing(), all_or_none, None)
        task = asyncio.create_task(commit)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _commit(
        self,
        offsets: Done,
        generation: Generation,
        all_or_none: bool,
        timeout_ms: int | None,
    ) -> None:
        if not offsets:
            return
        plain = {n: each for n, each in offsets.items() if not isinstance(each, Claiming)}
        claims = {n: each for n, each in offsets.items() if isinstance(each, Claiming)}
        async with self._turn_within(timeout_ms or self._coordinator.request_timeout_ms):
            try:
                if plain:
                    await self._coordinator.commit(
                        plain, generation, all_or_none=all_or_none, timeout_ms=timeout_ms
                    )
                if claims:
                    await self._claim(claims, generation, timeout_ms)
            except KafkaError as error:
                if self._committing() == generation:
                    self._committing(error)
                raise

    @asynccontextmanager
    async def _turn_within(self, timeout_ms: int) -> AsyncIterator[None]:
        """Holds the turn of a commit, behind all that were made before; KafkaError in vain."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._turn.acquire()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"group {self._coordinator.group_id!r}: earlier commits took all of its time",
            ) from None
        try:
            yield
        finally:
            self._turn.release()

    async def _claim(
        self, claims: Mapping[Partition, Claiming], generation: Generation, timeout_ms: int | None
    ) -> None:
        dues = {name: each.dues.accounts for name, each in claims.items() if each.dues.accounts}
        outcomes = await commit_claims(self._coordinator, dues, generation, timeout_ms=timeout_ms)
        failure: KafkaError | None = None
        for name, outcome in outcomes.items():
            ledger = claims[name].ledger
            ledger.full = outcome.code == ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
            if outcome.done:
                ledger.answered(claims[name].dues, outcome.stable)
            elif failure is None:
                failure = KafkaError(
                    outcome.code,
                    f"group {self._coordinator.group_id!r}, {name[0]}-{name[1]}: "
                    f"{outcome.code.message}",
                )
        if failure is not None:
            raise failure

    async def finish(self) -> None:
        """Waits for the commits under way."""
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def auto_commit_if_due(self, done: Callable[[], Done], *, at_once: bool = False) -> None:
        """With auto commit: commit what is done since, once the interval is over or `at_once`."""
        now = time.monotonic()
        if not self._auto or self._under_way:
            return
        if now < self._due_at and not at_once:
            return
        self._due_at = now + self._interval_s
        positions = done()
        changed = {
            name: each
            for name, each in positions.items()
            if (
                each.dues.accounts
                if isinstance(each, Claiming)
                else self._auto_committed.get(name) != each
            )
        }
        if changed:
            self._auto_committed = {
                n: each for n, each in positions.items() if not isinstance(each, Claiming)
            }
            self._soon(changed, False).add_done_callback(self._auto_commit_done)

    def _auto_commit_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._auto_committed.clear()
            _log.warning("auto commit failed: %s", task.exception())

    def claim_holes_if_due(self, holes: Callable[[], Mapping[Partition, Claiming]]) -> None:
        """Without auto commit: claims these, once the interval is over."""
        now = time.monotonic()
        if self._auto or now < self._due_at:
            return
        if self._claiming is not None and not self._claiming.done():
            return
        self._due_at = now + self._interval_s
        found = holes()
        if found:
            self._claiming = asyncio.create_task(self._claim_holes(found, self._committing()))

    async def _claim_holes(
        self, holes: Mapping[Partition, Claiming], generation: Generation
    ) -> None:
        try:
            await self._claim(holes, generation, None)
        except (ConnectionError, KafkaError) as error:
            if isinstance(error, KafkaError) and self._committing() == generation:
                self._committing(error)
            _log.warning("could not claim what no records lie in: %s", error)

    async def before_giving_up(self, offsets: Done, timeout_ms: int) -> None:
        """With auto commit: commit what was processed; a failure is only logged.

        Else what the user has committed without waiting gets its time: later it's refused.
        """
        if not self._auto:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=timeout_ms / 1000)
            return
        try:
            await self._commit(dict(offsets), self._committing(), False, timeout_ms)
        except (ConnectionError, KafkaError) as error:
            _log.warning("could not commit before giving partitions up: %s", error)


class Committed(NamedTuple):
    """What a group has committed for a partition; `offset` is -1 if that is nothing."""

    offset: int
    metadata: str


async def read_committed(
    coordinator: Coordinator, partition: Partition, *, timeout_ms: int | None = None
) -> Committed:
    """The group's offset of a partition with its metadata.

    Asks once. Raises `ConnectionError` and KafkaError; after a lost connection or a retriable
    error, try again.
    """
    topic, index = partition
    kinds = messages.OffsetFetchRequest
    request = kinds(
        group_id=coordinator.group_id, topics=[kinds.OffsetFetchRequestTopic(topic, [index])]
    )
    response = await coordinator.ask(request, timeout_ms=timeout_ms)
    found = response.topics[0].partitions[0] if response.topics else None
    _raise(coordinator, partition, response.error_code or (found.error_code if found else 0))
    assert found is not None, "an answer without an error names what was asked for"
    return Committed(found.committed_offset, found.metadata or "")


async def compare_and_commit(
    coordinator: Coordinator,
    partition: Partition,
    expected: int,
    offset: int,
    *,
    metadata: str = "",
    generation: Generation | None = None,
    timeout_ms: int | None = None,
) -> bool:
    """Commits `offset` if the committed one is `expected` (-1: none) at that moment.

    False means that nothing was done: another offset is committed, or a commit of somebody is under
    way. Read what is there, think again, and try again with that.

    Raises `ConnectionError`, and KafkaError as `Coordinator.commit` does, without trying again:
    after a `ConnectionError` or a retriable KafkaError the commit may have been done or may be done
    yet. What `read_committed` says next tells, if `metadata` tells one's own commits from those of
    others; a commit that comes late is refused once anybody has committed another offset.

    kraftpy's brokers only: Apache Kafka's do not know the condition and would commit at once.
    """
    topic, index = partition
    kinds = messages.OffsetCommitRequest
    expectation = {EXPECTED_OFFSET_TAG: expected.to_bytes(8, "big", signed=True)}
    committing = generation or Generation()
    request = kinds(
        group_id=coordinator.group_id,
        generation_id_or_member_epoch=committing.id,
        member_id=committing.member_id,
        group_instance_id=committing.instance_id,
        topics=[
            kinds.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    kinds.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_metadata=metadata,
                        _tags=expectation,
                    )
                ],
            )
        ],
        _tags={ALL_OR_NONE_TAG: YES},
    )
    response = await coordinator.ask(request, timeout_ms=timeout_ms)
    code = response.topics[0].partitions[0].error_code
    if code == ErrorCode.UNEXPECTED_OFFSET:
        return False
    _raise(coordinator, partition, code)
    return True


def _raise(coordinator: Coordinator, partition: Partition, number: int) -> None:
    if number:
        code = error_code(number)
        if code in MOVED:
            coordinator.forget()
        name = f"{partition[0]}-{partition[1]}"
        raise KafkaError(code, f"group {coordinator.group_id!r}, {name}: {code.message}")
