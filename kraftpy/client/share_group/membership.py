"""This client as a member of a share group: heartbeats, and what they assign to it (KIP-932).

Rules:

* The member's id is its own, and the same for as long as there is the consumer. It joins with epoch
  0 and leaves with -1; in between it has the epoch that the coordinator told it last.
* What it subscribes to is said when it joins, when it changes, and after an answer that was lost.
* Who is told that it is no member any more, or not with this epoch, joins again. What it has leased
  stays leased: leaders don't ask who is a member.
* Who is assigned nothing asks again before it is time to, later each time: a new group's partitions
  have to get their states first.
* Who isn't polled for `max_poll_interval_ms` leaves, so that others get its partitions, and joins
  when it's polled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from kraftpy.client.cluster import Cluster, check, is_retriable, new_lane
from kraftpy.client.coordinator import GROUP_KEY, CoordinatorRoute
from kraftpy.client.share_group.leased import Key
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_RETRY_S = 0.1
_RETRY_MAX_S = 1.0
_OUTDATED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_OTHER_KIND = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL})


class ShareMember:
    """The membership; `changed` is called when `assignment` or `failure` is another one."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        max_poll_interval_ms: int,
        changed: Callable[[], None],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.epoch = _JOIN_EPOCH
        self.assignment: frozenset[Key] = frozenset()
        self.failure: KafkaError | ConnectionError | None = None
        self._group_id = group_id
        self._route = CoordinatorRoute(cluster, group_id, GROUP_KEY, lane=new_lane("share-group"))
        self._max_poll_interval_s = max_poll_interval_ms / 1000
        self._changed = changed
        self._topics: frozenset[str] = frozenset()
        self._told: frozenset[str] | None = None
        self._has_asked = False
        self._interval_s = 0.0
        self._polled_at = time.monotonic()
        self._at_once = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None

    def subscribe(self, topics: frozenset[str]) -> None:
        """Joins, or says that these are its topics now."""
        self._topics = topics
        self._at_once.set()
        self.polled()

    def polled(self) -> None:
        """The user asked for records: the member is alive."""
        self._polled_at = time.monotonic()
        if self._heart is None and self._topics and self.failure is None:
            self._heart = asyncio.create_task(self._beat())

    async def leave(self) -> None:
        """Leaves the group; polls that go on don't bring it back."""
        self._topics = frozenset()
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
        await self._say_leave()
        self.failure = None
        await self._route.close()

    # -- heartbeats

    async def _beat(self) -> None:
        pause_s, early_s, failures = 0.0, _RETRY_S, 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._at_once.wait()
            self._at_once.clear()
            if time.monotonic() - self._polled_at > self._max_poll_interval_s:
                _log.warning(
                    "group %r: not polled for %d s; leaving the group (max_poll_interval_ms)",
                    self._group_id,
                    self._max_poll_interval_s,
                )
                await self._say_leave()
                self._heart = None
                self._changed()
                return
            try:
                await self._heartbeat()
                early_s = _RETRY_S if self.assignment else min(2 * early_s, self._interval_s)
                pause_s, failures = self._interval_s if self.assignment else early_s, 0
            except (ConnectionError, KafkaError) as error:
                pause_s, failures = min(_RETRY_S * 2**failures, _RETRY_MAX_S), failures + 1
                self._told = None
                if isinstance(error, KafkaError) and error.code in _OUTDATED:
                    _log.info("group %r: %s; joining again", self._group_id, error)
                    self.epoch = _JOIN_EPOCH
                    self._assign(frozenset())
                    pause_s = _RETRY_S if failures > 1 else 0.0
                elif not is_retriable(error):
                    self.failure = self._explained(error)
                    self._heart = None
                    self._changed()
                    return

    async def _heartbeat(self) -> None:
        topics = self._topics
        says_all = self.epoch == _JOIN_EPOCH or topics != self._told
        response = await self._ask(self.epoch, sorted(topics) if says_all else None)
        self._told = topics
        self.epoch = response.member_epoch
        self._interval_s = max(response.heartbeat_interval_ms / 1000, _RETRY_S)
        if response.assignment is not None:
            self._assign(
                frozenset(
                    (topic.topic_id, number)
                    for topic in response.assignment.topic_partitions
                    for number in topic.partitions
                )
            )

    async def _ask(self, epoch: int, topics: list[str] | None) -> Any:
        self._has_asked = True
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.id,
            member_epoch=epoch,
            subscribed_topic_names=topics,
        )
        response = await self._route.ask(request)
        check(response.error_code, response.error_message)
        return response

    def _assign(self, assignment: frozenset[Key]) -> None:
        if assignment != self.assignment:
            self.assignment = assignment
            self._changed()

    async def _say_leave(self) -> None:
        self.epoch, self._told = _JOIN_EPOCH, None
        self._assign(frozenset())
        if not self._has_asked:
            return
        try:
            await self._ask(_LEAVE_EPOCH, None)
        except (ConnectionError, KafkaError) as error:
            # The session's timeout does the same.
            _log.info("group %r: could not leave: %s", self._group_id, error)
        self._has_asked = False

    def _explained(self, error: KafkaError | ConnectionError) -> KafkaError | ConnectionError:
        """The error with what to do about it, where that isn't in the broker's words."""
        if not isinstance(error, KafkaError):
            return error
        text = f"group {self._group_id!r}: {error.message}"
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            text += (
                "; there are no share groups in this cluster yet: raise its level "
                "(`kraftpy cluster raise-level`), or of Apache Kafka its share.version "
                "(`kafka-features.sh upgrade --feature share.version=1`)"
            )
        elif error.code in _OTHER_KIND:
            text += "; it may be a group of another kind: `kraftpy group list` shows them, and "
            text += "share groups need an id of their own"
        return KafkaError(error.code, text)
