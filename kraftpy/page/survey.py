"""What the page asks of the cluster, as any client would: quorum, disks, and one topic or group.

Rules:

* One attempt with short timeouts, no retries: the page asks again anyway, and a broker that doesn't
  answer is part of the answer.
* The first to be asked is this node's own broker; brokers that the metadata calls fenced aren't.
* Large questions are asked in pieces, so that no broker works long on one (`asking.PIECE`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from kraftpy.client.cluster import Cluster, NoBrokerError
from kraftpy.client.cluster_admin import ClusterAdmin, QuorumInfo
from kraftpy.client.group_admin import GroupAdmin, ShareStart
from kraftpy.client.group_info import SHARE, GroupInfo
from kraftpy.client.group_shares import shares_of
from kraftpy.client.offsets import EARLIEST, LATEST, by_topic
from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.metrics.channel import Source
from kraftpy.page.asking import FAILURES, ask_offsets
from kraftpy.page.facts import ask_node
from kraftpy.page.groups import ask_groups
from kraftpy.page.model import (
    Disks,
    Ends,
    Folder,
    GroupDetail,
    Groups,
    Member,
    Node,
    Position,
    Quorum,
    Slice,
    TopicDetail,
    TopicPartition,
    Transactions,
    Voter,
    total_lag,
)
from kraftpy.page.rates import Growth, Trend
from kraftpy.page.transactions import ask_transactions
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.key_hash import slot_of

TIMEOUT_MS = 2_000
CONNECT_TIMEOUT_MS = 1_000
NODE_FRESH_S = 1.0
ENDS_MAX = 20_000
"""Partitions in one round; topics beyond them have no rate on the page."""
LAGS_MAX = 16
"""Groups asked for by name whose lags are remembered."""


class Gone(Exception):
    """What was asked for by name isn't there."""


class Survey:
    """Asks. All of it belongs to one event loop; `close` ends its connections."""

    def __init__(
        self, node_id: int, sources: Sequence[Source], security: Secures = NO_SECURITY
    ) -> None:
        self._security = security
        self._node_id = node_id
        self._sources = sources
        self._cluster: Cluster | None = None
        self._node: Node | None = None
        self._node_at_s = 0.0
        self._groups: Groups | None = None
        self._asking = asyncio.Lock()
        self._ends, self._sizes, self._lags = Growth(), Growth(), Growth()
        self._lags_of: dict[str, Growth] = {}

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None

    # -- the node

    async def node(self) -> Node:
        """This node and its metadata."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            if self._node is None or loop.time() - self._node_at_s > NODE_FRESH_S:
                self._node = await asyncio.to_thread(
                    ask_node, self._node_id, self._sources, self._node
                )
                self._node_at_s = loop.time()
            return self._node

    async def client(self) -> Cluster:
        """A client of the cluster that knows its brokers. Raises NoBrokerError."""
        node = await self.node()
        if self._cluster is None:
            own = node.broker.address if node.broker is not None else None
            addresses = [own] if own is not None else []
            addresses += [(b.host, b.port) for b in node.brokers.values() if not b.fenced]
            if not addresses:
                raise NoBrokerError("no broker is up", first_contact=True)
            self._cluster = Cluster(
                [f"[{host}]:{port}" for host, port in addresses],
                client_id="kraftpy-page",
                request_timeout_ms=TIMEOUT_MS,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                security=self._security,
            )
        try:
            await self._cluster.refresh()
        except NoBrokerError:
            # Addresses may have changed since.
            await self.close()
            raise
        return self._cluster

    # -- the quorum

    async def quorum(self) -> Quorum:
        """As its leader describes it; as this node's voter sees it if there is nobody to ask."""
        node = await self.node()
        if not node.has_quorum:
            return _own_view(node)
        if node.controller is not None and node.controller.role == "leader":
            return _own_view(node)
        admin = ClusterAdmin(await self.client(), timeout_ms=1)
        return _described(await admin.describe_quorum())

    # -- disks

    async def disks(self) -> Disks:
        """Folders and replicas of the brokers that are up."""
        client = await self.client()
        node = await self.node()
        ids = [broker.id for broker in node.brokers.values() if not broker.fenced]
        answers = await asyncio.gather(*(self._disk(client, id_) for id_ in ids))
        folders: dict[int, list[Folder]] = {}
        replicas: dict[int, dict[TopicPartition, int]] = {}
        topics: dict[str, int] = {}
        for id_, answer in zip(ids, answers, strict=True):
            if answer is None:
                continue
            folders[id_], replicas[id_] = answer
            for (topic, _), size_bytes in answer[1].items():
                topics[topic] = topics.get(topic, 0) + size_bytes
        disks = Disks(folders, replicas, topics, frozenset(ids) - folders.keys())
        self._sizes.add(_now_s(), _sizes_at_leaders(node, disks))
        return replace(disks, rates=self._sizes.rates())

    async def _disk(
        self, client: Cluster, broker_id: int
    ) -> tuple[list[Folder], dict[TopicPartition, int]] | None:
        try:
            response = await client.request(
                messages.DescribeLogDirsRequest(topics=None), node_id=broker_id
            )
        except FAILURES:
            return None
        folders: list[Folder] = []
        replicas: dict[TopicPartition, int] = {}
        for each in response.results:
            sizes = {
                (topic.name, partition.partition_index): partition.partition_size
                for topic in each.topics
                for partition in topic.partitions
            }
            replicas |= sizes
            used_bytes = sum(sizes.values())
            folders.append(Folder(each.log_dir, used_bytes, each.total_bytes, each.usable_bytes))
        return folders, replicas

    # -- groups, and offsets

    async def groups(self) -> Groups:
        """Every group with its lag."""
        client, node = await self.client(), await self.node()
        found = await ask_groups(client, node, self._groups)
        lags = {each.id: each.lag for each in found.groups.values() if each.lag is not None}
        self._lags.add(_now_s(), lags)
        groups = {
            id_: replace(each, trend=self._lags.trend(id_)) for id_, each in found.groups.items()
        }
        self._groups = replace(found, groups=groups)
        return self._groups

    async def ends(self) -> Ends:
        """How fast topics grow."""
        client, node = await self.client(), await self.node()
        asked: dict[str, list[TopicPartition]] = {}
        left = ENDS_MAX
        topics = sorted(node.topics.values(), key=lambda topic: (topic.internal, topic.name))
        for topic in topics:
            if len(topic.partitions) <= left:
                left -= len(topic.partitions)
                asked[topic.name] = [(topic.name, each.number) for each in topic.partitions]
        found = await ask_offsets(client, node, chain.from_iterable(asked.values()), LATEST)
        # A leader that doesn't answer leaves the sum of the whole topic unknown.
        sums = {
            name: sum(found[each] for each in names)
            for name, names in asked.items()
            if all(each in found for each in names)
        }
        self._ends.add(_now_s(), sums)
        return Ends(self._ends.rates(), ENDS_MAX - left)

    async def transactions(self) -> Transactions:
        """The transactions that aren't over."""
        return await ask_transactions(await self.client(), await self.node())

    async def topic(self, name: str) -> TopicDetail:
        """What the metadata doesn't have of a topic. Raises Gone."""
        node = await self.node()
        topic = node.topics.get(name)
        if topic is None:
            raise Gone(name)
        client = await self.client()
        names = [(name, each.number) for each in topic.partitions]
        starts, ends, settings = await asyncio.gather(
            ask_offsets(client, node, names, EARLIEST),
            ask_offsets(client, node, names, LATEST),
            self._settings(client, name),
        )
        return TopicDetail(
            {index: offset for (_, index), offset in starts.items()},
            {index: offset for (_, index), offset in ends.items()},
            settings,
        )

    async def _settings(self, client: Cluster, name: str) -> dict[str, str]:
        try:
            values = await ClusterAdmin(client, timeout_ms=1).describe_configs(name)
        except FAILURES:
            return {}
        return {each.name: each.value or "" for each in values if each.source == "topic"}

    async def group(self, name: str) -> GroupDetail:
        """One group with its members and offsets. Raises Gone."""
        client, node = await self.client(), await self.node()
        admin = GroupAdmin(client, timeout_ms=TIMEOUT_MS)
        try:
            info = await admin.describe_group(name)
            if info.type == SHARE:
                starts = await admin.share_offsets(name)
                ends = await ask_offsets(client, node, starts.keys(), LATEST)
                return self._detail(info, _begun(starts, ends))
            committed = await admin.committed(name)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                raise Gone(name) from None
            raise
        readers = {each: member.id for member in info.members for each in member.partitions}
        ends = await ask_offsets(client, node, committed.keys() | readers.keys(), LATEST)
        positions = tuple(
            Position(
                *each,
                committed[each].offset if each in committed else None,
                ends.get(each),
                readers.get(each),
            )
            for each in sorted(committed.keys() | readers.keys())
        )
        return self._detail(info, positions)

    def _detail(self, info: GroupInfo, positions: tuple[Position, ...]) -> GroupDetail:
        detail = GroupDetail(
            info.id,
            info.type,
            info.state,
            info.assignor,
            info.epoch,
            info.coordinator.id,
            tuple(
                Member(
                    each.id,
                    each.instance_id,
                    each.client_id,
                    each.host,
                    by_topic(each.partitions),
                )
                for each in info.members
            ),
            positions,
            () if info.type == SHARE else _shares(info),
        )
        return replace(detail, trend=self._trend(detail))

    def _trend(self, detail: GroupDetail) -> Trend:
        growth = self._lags_of.pop(detail.id, None) or Growth()
        if len(self._lags_of) >= LAGS_MAX:
            del self._lags_of[next(iter(self._lags_of))]
        self._lags_of[detail.id] = growth
        lag = total_lag(detail.topics)
        growth.add(_now_s(), {} if lag is None else {detail.id: lag})
        return growth.trend(detail.id)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _sizes_at_leaders(node: Node, disks: Disks) -> dict[str, int]:
    """Of the topics all of whose leaders have said it."""
    sizes: dict[str, int] = {}
    for topic in node.topics.values():
        found = [
            disks.size_of((topic.name, each.number), [each.leader]) for each in topic.partitions
        ]
        if None not in found:
            sizes[topic.name] = sum(each for each in found if each is not None)
    return sizes


def _begun(
    starts: Mapping[TopicPartition, ShareStart], ends: Mapping[TopicPartition, int]
) -> tuple[Position, ...]:
    """Of a share group, whose partitions anybody reads."""
    return tuple(
        Position(
            *each,
            start.offset,
            None if start.lag is None else ends.get(each),
            None,
            start.lag,
        )
        for each, start in starts.items()
    )


def _shares(info: GroupInfo) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            topic,
            partition,
            slot_of(share.low),
            slot_of(share.high),
            None if share.owner is None else share.owner.id,
            None if share.last_owner is None else share.last_owner.id,
        )
        for (topic, partition), shares in shares_of(info).items()
        if len(shares) > 1 or shares[0].owner is None
        for share in shares
    )


def _own_view(node: Node) -> Quorum:
    own = node.controller
    if own is None:
        return Quorum(None, -1, -1, node.id, ())
    progress: dict[int, Any] = {id_: (end, ago) for id_, end, ago in own.progress}
    voters = []
    for id_, address in own.voters.items():
        end, ago = progress.get(id_, (-1, None))
        role = own.role if id_ == node.id else "leader" if id_ == own.leader else "voter"
        lag = max(0, own.committed + 1 - end) if end >= 0 else None
        voters.append(Voter(id_, "voter" if role == "follower" else role, address, lag, ago))
    return Quorum(own.leader, own.term, own.committed, node.id, tuple(voters))


def _described(info: QuorumInfo) -> Quorum:
    leader = next((each for each in info.voters if each.id == info.leader_id), None)
    voters = []
    for each in info.voters:
        lag = ago = None
        if leader is not None and each.log_end_offset >= 0:
            lag = max(0, leader.log_end_offset - each.log_end_offset)
        if leader is not None and each.last_fetch_ms >= 0:
            ago = max(0, leader.last_fetch_ms - each.last_fetch_ms)
        role = "leader" if each.id == info.leader_id else "voter"
        voters.append(Voter(each.id, role, info.addresses.get(each.id), lag, ago))
    return Quorum(
        info.leader_id, info.leader_epoch, info.high_watermark, info.leader_id, tuple(voters)
    )
