"""Where a share group begins in its partitions, changed by hand, and the end of a group (KIP-932).

Each takes three steps, of which the shell does the second: a record of what is to be done
(`Begun.work`), the share coordinators, and a record of what they have done. Rules, as Kafka 4.3's:

* Offsets are set and deleted in a group without members only: NON_EMPTY_GROUP.
* Setting them makes the group if there is none, and raises its epoch, which the states get: what a
  leader still writes of before is fenced.
* A topic is named whose offsets are deleted, and those of all its partitions are.
* A group goes when all of its states have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kraftpy.core.coordination import write_error
from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import GroupEpoch
from kraftpy.core.groups.consumer.topics import NO_TOPICS_HASH, Topics
from kraftpy.core.groups.effects import Outbox
from kraftpy.core.groups.share.records import (
    ShareEpochRecord,
    ShareRecord,
    ShareStates,
    ShareStatesRecord,
    ShareTargetEpochRecord,
    TopicShares,
)
from kraftpy.core.groups.share.service import ShareGroups
from kraftpy.core.groups.share.state import ShareGroup
from kraftpy.core.groups.share.states import (
    DeleteStates,
    InitializeStates,
    StateWork,
    deleted,
    deleting,
    initialized,
    initializing,
    topic_names,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError


class Begun(NamedTuple):
    """What a token is answered with: what share coordinators are to do, or why nothing is."""

    work: StateWork | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ShareOffsets:
    """See the module; `groups` are the groups, and keep their lines."""

    def __init__(self, groups: ShareGroups, topics: Topics, outbox: Outbox) -> None:
        self._shares = groups
        self._topics = topics
        self._out = outbox

    # -- the first step

    def alter(
        self, token: object, group_id: str, wanted: Mapping[str, Mapping[int, int]], now_ms: int
    ) -> None:
        """AlterShareGroupOffsets 0: the offset of each partition, by topic; gives a `Begun`.

        What isn't in its work there isn't.
        """
        self._begin(token, group_id, lambda now_ms: self._alter(token, group_id, wanted), now_ms)

    def delete(self, token: object, group_id: str, names: Collection[str], now_ms: int) -> None:
        """DeleteShareGroupOffsets 0 of these topics; the same."""
        self._begin(token, group_id, lambda now_ms: self._delete(token, group_id, names), now_ms)

    def delete_all(self, token: object, group_id: str, now_ms: int) -> None:
        """The states of a group that is to go, the same."""
        self._begin(token, group_id, lambda now_ms: self._delete_all(token, group_id), now_ms)

    def _begin(
        self, token: object, group_id: str, step: Callable[[int], None], now_ms: int
    ) -> None:
        def operation(now_ms: int) -> None:
            try:
                step(now_ms)
            except KafkaError as error:
                self._out.reply(token, Begun(None, error.code, error.message))

        refuse = lambda error: self._out.reply(token, Begun(None, error))  # noqa: E731
        self._shares.submit(group_id, operation, refuse, now_ms)

    def _alter(self, token: object, group_id: str, wanted: Mapping[str, Mapping[int, int]]) -> None:
        group = self._shares.empty_group(group_id, may_come=True)
        offsets: dict[Uuid, dict[int, int]] = {}
        shares: dict[Uuid, TopicShares] = {}
        for name, starts in wanted.items():
            topic = self._topics.find(name)
            known = {} if topic is None else _below(starts, topic.partition_count)
            if topic is not None and known:
                offsets[topic.topic_id] = known
                shares[topic.topic_id] = TopicShares(name, frozenset(known))
        if not shares:
            self._out.reply(token, Begun())
            return
        epoch = group.epoch + 1
        topics_hash = NO_TOPICS_HASH if group.group_epoch is None else group.group_epoch[1]
        records: list[ShareRecord] = [
            ShareEpochRecord(group_id, GroupEpoch(epoch, topics_hash)),
            ShareStatesRecord(group_id, initializing(group.states, shares)),
        ]
        self._write(token, records, InitializeStates(group_id, epoch, offsets))

    def _delete(self, token: object, group_id: str, names: Collection[str]) -> None:
        group = self._shares.empty_group(group_id)
        found = (self._topics.find(name) for name in names)
        known = {**group.states.initialized, **group.states.deleting}
        self._go(token, group, [topic[0] for topic in found if topic and topic[0] in known])

    def _delete_all(self, token: object, group_id: str) -> None:
        group = self._shares.empty_group(group_id)
        self._go(token, group, list(topic_names(group.states)))

    def _go(self, token: object, group: ShareGroup, topic_ids: Collection[Uuid]) -> None:
        states, partitions = deleting(group.states, topic_ids, self._topics)
        if not partitions:
            self._out.reply(token, Begun())
            return
        record = ShareStatesRecord(group.group_id, states)
        self._write(token, [record], DeleteStates(group.group_id, partitions))

    def _write(self, token: object, records: Collection[ShareRecord], work: StateWork) -> None:
        self._shares.write(
            work.group_id,
            list(records),
            lambda now_ms: self._out.reply(token, Begun(work)),
            lambda error, now_ms: self._out.reply(token, Begun(None, write_error(error))),
        )

    # -- the third step

    def states_came(
        self,
        token: object,
        group_id: str,
        done: Mapping[Uuid, Collection[int]],
        failed: Mapping[Uuid, Collection[int]],
        now_ms: int,
        *,
        gives_up: bool,
    ) -> None:
        """Share coordinators have initialized what is `done`, and have refused the rest.

        `gives_up`: that isn't tried again. `token` is answered with an `ErrorCode`.
        """

        def change(states: ShareStates) -> ShareStates:
            return initialized(states, done, failed if gives_up else {})

        self._change(token, group_id, change, now_ms, refused=bool(failed))

    def states_went(
        self,
        token: object,
        group_id: str,
        topic_ids: Collection[Uuid],
        now_ms: int,
        *,
        refused: bool,
    ) -> None:
        """All states of these topics are gone; those of others aren't if any were `refused`."""
        self._change(
            token, group_id, lambda states: deleted(states, topic_ids), now_ms, refused=refused
        )

    def _change(
        self,
        token: object,
        group_id: str,
        change: Callable[[ShareStates], ShareStates],
        now_ms: int,
        *,
        refused: bool,
    ) -> None:
        def done(error: ErrorCode, now_ms: int) -> None:
            if refused:
                self._shares.states_refused(group_id, now_ms)
            self._out.reply(token, error)

        def operation(now_ms: int) -> None:
            group = self._shares.groups.get(group_id)
            states = None if group is None else change(group.states)
            if group is None or states is None or states == group.states:
                done(ErrorCode.NONE, now_ms)
                return
            self._shares.write(
                group_id,
                [ShareStatesRecord(group_id, states)],
                lambda now_ms: done(ErrorCode.NONE, now_ms),
                lambda error, now_ms: done(write_error(error), now_ms),
            )

        self._shares.submit(
            group_id, operation, lambda error: self._out.reply(token, error), now_ms
        )

    def bury(self, token: object, group_id: str, now_ms: int) -> None:
        """Writes the tombstones of a group whose states have gone; answered with an `ErrorCode`."""

        def operation(now_ms: int) -> None:
            try:
                self._shares.empty_group(group_id)
            except KafkaError as error:
                self._out.reply(token, error.code)
                return
            records: list[ShareRecord] = [
                ShareTargetEpochRecord(group_id, None),
                ShareStatesRecord(group_id, None),
                ShareEpochRecord(group_id, None),
            ]
            self._shares.write(
                group_id,
                records,
                lambda now_ms: self._out.reply(token, ErrorCode.NONE),
                lambda error, now_ms: self._out.reply(token, write_error(error)),
            )

        self._shares.submit(
            group_id, operation, lambda error: self._out.reply(token, error), now_ms
        )


def _below(starts: Mapping[int, int], count: int) -> dict[int, int]:
    return {index: offset for index, offset in starts.items() if 0 <= index < count}
