"""What the nodes of a test's cluster say about it: leaders, replicas, and whether all is well."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kraftpy.testing.node import Node
from kraftpy.testing.process import BrokerError

if TYPE_CHECKING:
    from kraftpy.client.security import Security
    from kraftpy.testing.view import ClusterView, PartitionView, QuorumView


class ClusterError(BrokerError):
    """What was asked of the cluster did not happen; the text says why, with what the logs say."""


class ClusterState:
    """A cluster whose nodes can be asked; `nodes` by id."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self._security: Security | None = None

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """The id of a partition's leader, as the node knows that heard last; None for none."""
        leader = self._newest(topic, partition).leader
        return leader if leader >= 0 else None

    def partitions_of(self, *topics: str) -> list[tuple[str, int]]:
        """The partitions of the topics that any node knows of, sorted."""
        known = {key for view in self._metadata().values() for key in view.partitions}
        return sorted(key for key in known if key[0] in topics)

    def replicas_of(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ids of the nodes that have replicas of a partition, in order of preference."""
        return self._newest(topic, partition).replicas

    def in_sync(self, topic: str, partition: int = 0) -> frozenset[int]:
        """The ids of the nodes in a partition's ISR, as the node knows that heard last."""
        return self._newest(topic, partition).isr

    def agreed_leader(
        self, topic: str, partition: int = 0, *, among: Collection[int] = ()
    ) -> int | None:
        """The id of a partition's leader if all nodes that answer name the same one, else None.

        Only those in `among` are asked, if any are.
        """
        answers = self._metadata(among).values()
        views = [view.partitions.get((topic, partition)) for view in answers]
        leaders = {(view.leader, view.leader_epoch) if view else (-1, -1) for view in views}
        ((leader, _),) = leaders if len(leaders) == 1 else {(-1, -1)}
        return leader if leader >= 0 else None

    def controller(self) -> int | None:
        """The id of the Raft leader, in the newest term that a node knows of; None for none."""
        views = [view for view in self._quorums().values() if view.leader >= 0]
        return max(views, key=lambda view: view.epoch).leader if views else None

    def _ills(self) -> list[str]:
        """In words, what is not as it has to be."""
        from kraftpy.testing.view import ills

        return ills(frozenset(self.nodes), self._metadata(), self._quorums())

    def _newest(self, topic: str, partition: int) -> PartitionView:
        found = [
            view.partitions[topic, partition]
            for view in self._metadata().values()
            if (topic, partition) in view.partitions
        ]
        if not found:
            raise ClusterError(f"no broker that answers knows partition {partition} of {topic!r}")
        return max(found, key=lambda each: each.leader_epoch)

    def _metadata(self, among: Collection[int] = ()) -> dict[int, ClusterView]:
        from kraftpy.testing.view import ask_metadata, ask_nodes

        nodes = [each for each in self.nodes.values() if not among or each.id in among]
        return ask_nodes(nodes, ask_metadata, self._security)

    def _quorums(self) -> dict[int, QuorumView]:
        from kraftpy.testing.view import ask_nodes, ask_quorum

        return ask_nodes(self.nodes.values(), ask_quorum, self._security)
