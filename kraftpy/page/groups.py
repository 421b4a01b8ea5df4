"""Every group of the cluster with its members and lag, in as few and small requests as possible.

Each broker is asked for the groups that it coordinates: which there are, then `asking.PIECE` at a
time how many members they have, then for the offsets of each, a few requests under way at once. The
ends of the logs are asked for last, so that no lag is too small; of a share group its coordinator
says the lag (KIP-1226). Only sums are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kraftpy.client.cluster import Cluster, check
from kraftpy.client.group_info import CONSUMER, SHARE
from kraftpy.client.offsets import LATEST
from kraftpy.page.asking import FAILURES, ask_offsets, pieces
from kraftpy.page.model import NO_ANSWER, Group, Groups, Node, TopicPartition
from kraftpy.protocol import messages
from kraftpy.protocol.errors import KafkaError

UNDER_WAY = 8
"""OffsetFetch requests to one broker at a time."""
OFFSETS_MAX = 200_000
"""Committed offsets in one round; groups beyond them have no lag on the page."""

Offsets = dict[TopicPartition, int]
Lags = dict[str, int | None]


async def ask_groups(client: Cluster, node: Node, before: Groups | None) -> Groups:
    """The groups of all brokers that are up, and the old ones of a broker that doesn't answer."""
    ids = [broker.id for broker in node.brokers.values() if not broker.fenced]
    answers = await asyncio.gather(*(_Coordinator(client, id_).ask() for id_ in ids))
    offsets: dict[str, Offsets] = {}
    for answer in answers:
        if answer is not None:
            offsets |= answer.offsets
    wanted = {name for each in offsets.values() for name in each}
    ends = await ask_offsets(client, node, wanted, LATEST)
    groups: dict[str, Group] = {}
    for answer in answers:
        for group_id, listed in (answer.listed if answer is not None else {}).items():
            groups[group_id] = Group(
                group_id,
                listed.group_type.lower(),
                listed.group_state,
                answer.id,  # type: ignore[union-attr]
                answer.members.get(group_id),  # type: ignore[union-attr]
                answer.lags.get(group_id)  # type: ignore[union-attr]
                or _lags(offsets.get(group_id), ends, node),
            )
    silent = {id_ for id_, answer in zip(ids, answers, strict=True) if answer is None}
    for group in before.groups.values() if before is not None else ():
        if group.coordinator in silent and group.id not in groups:
            groups[group.id] = replace(group, state=NO_ANSWER, members=None, topics=None)
    return Groups(dict(sorted(groups.items())), frozenset(silent))


def _lags(offsets: Offsets | None, ends: Offsets, node: Node) -> Lags | None:
    if offsets is None:
        return None
    lags: Lags = {}
    for name, offset in offsets.items():
        topic = node.topics.get(name[0])
        if topic is None or name[1] >= len(topic.partitions):
            continue  # deleted since
        before, end = lags.get(name[0], 0), ends.get(name)
        lags[name[0]] = None if before is None or end is None else before + max(0, end - offset)
    return lags


class _Coordinator:
    """What one broker says of the groups that it coordinates."""

    def __init__(self, client: Cluster, broker_id: int) -> None:
        self.id = broker_id
        self.listed: dict[str, Any] = {}
        self.members: dict[str, int] = {}
        self.offsets: dict[str, Offsets] = {}
        self.lags: dict[str, Lags] = {}
        self._client = client
        self._left = OFFSETS_MAX

    async def ask(self) -> _Coordinator | None:
        """Itself, None if the broker doesn't answer."""
        try:
            response = await self._request(messages.ListGroupsRequest())
            check(response.error_code)
            self.listed = {each.group_id: each for each in response.groups}
            await self._ask_members()
            places = asyncio.Semaphore(UNDER_WAY)
            await asyncio.gather(*(self._ask_offsets(id_, places) for id_ in self.listed))
        except FAILURES:
            return None
        return self

    async def _request(self, request: Any) -> Any:
        return await self._client.request(request, node_id=self.id)

    async def _ask_members(self) -> None:
        classic: list[str] = []
        consumers: list[str] = []
        shares: list[str] = []
        lists = {CONSUMER: consumers, SHARE: shares}
        for id_, listed in self.listed.items():
            lists.get(listed.group_type.lower(), classic).append(id_)
        for some in pieces(classic):
            self._count(await self._request(messages.DescribeGroupsRequest(groups=list(some))))
        for some in pieces(consumers):
            request = messages.ConsumerGroupDescribeRequest(group_ids=list(some))
            self._count(await self._request(request))
        for some in pieces(shares):
            self._count(await self._request(messages.ShareGroupDescribeRequest(list(some))))

    def _count(self, response: Any) -> None:
        for each in response.groups:
            if not each.error_code:
                self.members[each.group_id] = len(each.members)

    async def _ask_offsets(self, group_id: str, places: asyncio.Semaphore) -> None:
        async with places:
            if self._left <= 0:
                return
            if self.listed[group_id].group_type.lower() == SHARE:
                await self._ask_share_lags(group_id)
                return
            request = messages.OffsetFetchRequest(group_id=group_id, topics=None)
            response = await self._request(request)
        try:
            check(response.error_code)
        except KafkaError:
            return
        found = {
            (topic.name, each.partition_index): each.committed_offset
            for topic in response.topics
            for each in topic.partitions
            if not each.error_code and each.committed_offset >= 0
        }
        self._left -= len(found)
        self.offsets[group_id] = found

    async def _ask_share_lags(self, group_id: str) -> None:
        kinds = messages.DescribeShareGroupOffsetsRequest
        request = kinds([kinds.DescribeShareGroupOffsetsRequestGroup(group_id, None)])
        (group,) = (await self._request(request)).groups
        if group.error_code:
            return
        lags = self.lags[group_id] = {}
        for topic in group.topics:
            for each in topic.partitions:
                if each.start_offset >= 0:  # else nobody has read it yet
                    before = lags.get(topic.topic_name, 0)
                    unknown = before is None or each.error_code or each.lag < 0
                    lags[topic.topic_name] = None if unknown else before + each.lag
            self._left -= len(topic.partitions)
