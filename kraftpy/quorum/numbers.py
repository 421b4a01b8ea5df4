"""The controller's numbers for the metrics exporter, in pieces that are small enough for the loop.

What the leader alone knows, the others leave out; counts of trouble they give as 0, so that sums
over the voters are right.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from kraftpy.metrics.answering import answer
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.events import last_number
from kraftpy.metrics.frames import HEALTH, NODE, Samples, pieces
from kraftpy.metrics.loop_lag import LoopLag
from kraftpy.metrics.metadata import metadata_frames
from kraftpy.quorum.port import Role

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState
    from kraftpy.quorum.raft import RaftVoter
    from kraftpy.quorum.single import SingleVoter


def answer_metrics(
    sock: socket.socket, quorum: SingleVoter | RaftVoter, loop: asyncio.AbstractEventLoop
) -> None:
    """Answers the exporter at the other end of `sock` for as long as both live."""
    lag = LoopLag(loop)
    # What it has on disk has been read by now.
    answer(loop, sock, ControllerNumbers(quorum, lag), lag).tell_started()


class ControllerNumbers:
    """Makes the answers of one voter."""

    def __init__(self, quorum: SingleVoter | RaftVoter, loop_lag: LoopLag) -> None:
        self._quorum = quorum
        self._loop_lag = loop_lag
        self._last_index, self._seen_s = quorum.last_index, time.monotonic()

    def health(self) -> Iterator[Frame]:
        """Whether the quorum works, as this voter sees it."""
        yield [HEALTH, {"has_leader": self._quorum.leader_id is not None}]

    def node(self) -> Iterator[Frame]:
        """The quorum as this voter sees it; how far the others are, if it leads."""
        quorum = self._quorum
        now_ms = int(time.time() * 1000)
        state = cast("MetadataState", quorum.machine)
        yield [
            NODE,
            {
                "process": "controller",
                "last_event": last_number(),
                "cluster": state.cluster_id,
                "index": state.applied_index,
                "role": quorum.role.value,
                "leader": quorum.leader_id,
                "term": quorum.term,
                "committed": quorum.committed_index,
                "voters": [[id_, *address] for id_, address in quorum.voters.items()],
                "progress": [
                    [voter.voter_id, voter.log_end_offset, _ago(now_ms, voter.last_fetch_ms)]
                    for voter in quorum.voter_states()
                ],
            },
        ]

    def metadata(self) -> Iterator[Frame]:
        """Brokers and topics."""
        yield from metadata_frames(cast("MetadataState", self._quorum.machine))

    def metrics(self) -> Iterator[Frame]:
        """All that it knows."""
        quorum, samples = self._quorum, Samples()
        leads = quorum.role is Role.LEADER
        leader_id = quorum.leader_id
        samples.add("kraftpy_quorum_term", quorum.term)
        samples.add("kraftpy_quorum_is_leader", int(leads))
        samples.add("kraftpy_quorum_leader", -1 if leader_id is None else leader_id)
        samples.add("kraftpy_quorum_voters", len(quorum.voters))
        samples.add("kraftpy_quorum_committed_index", quorum.committed_index)
        samples.add("kraftpy_quorum_applied_index", quorum.applied_index)
        samples.histogram("kraftpy_quorum_commit_seconds", quorum.commits)
        samples.histogram("kraftpy_quorum_fsync_seconds", quorum.fsyncs)
        samples.histogram("kraftpy_event_loop_lag_seconds", self._loop_lag.lags, "controller")
        samples.add("kafka_server_raftmetrics_log_end_offset", quorum.last_index + 1)
        vote = quorum.voted_for
        samples.add("kafka_server_raftmetrics_current_vote", -1 if vote is None else vote)
        samples.add("kafka_server_raftmetrics_current_state", 1, quorum.role.value)
        appended = self._appended_a_second()
        samples.add("kafka_server_raftmetrics_append_records_rate", appended if leads else 0)
        samples.add("kafka_server_raftmetrics_fetch_records_rate", 0 if leads else appended)
        if leads:
            end_offset = quorum.committed_index + 1
            for voter in quorum.voter_states():
                lag = max(end_offset - max(voter.log_end_offset, 0), 0)
                samples.add("kraftpy_quorum_voter_lag_entries", lag, str(voter.voter_id))
        else:
            samples.add("kraftpy_controller_offline_partitions", 0)
        yield samples.frame()
        if leads:
            yield from self._cluster()

    def _appended_a_second(self) -> float:
        """Entries by which the log grew since this was asked last; one cut off doesn't count."""
        index, now_s = self._quorum.last_index, time.monotonic()
        grown, took_s = max(index - self._last_index, 0), now_s - self._seen_s
        self._last_index, self._seen_s = index, now_s
        return grown / took_s if took_s > 0 else 0.0

    def _cluster(self) -> Iterator[Frame]:
        state = cast("MetadataState", self._quorum.machine)
        samples = Samples()
        brokers = list(state.brokers.values())
        fenced = sum(broker.fenced for broker in brokers)
        active = sum(broker.active for broker in brokers)
        samples.add("kraftpy_controller_brokers", active, "active")
        samples.add("kraftpy_controller_brokers", fenced, "fenced")
        samples.add("kraftpy_controller_brokers", len(brokers) - fenced - active, "shutting_down")
        samples.add("kraftpy_controller_topics", len(state.topics))
        samples.add("kraftpy_controller_partitions", state.partition_count)
        yield samples.frame()
        offline = 0
        for topic in list(state.topics.values()):
            for piece in pieces(list(topic.partitions.values())):
                offline += sum(partition.leader < 0 for partition in piece)
                yield Samples().frame()
        samples = Samples()
        samples.add("kraftpy_controller_offline_partitions", offline)
        yield samples.frame()


def _ago(now_ms: int, then_ms: int) -> int | None:
    """Milliseconds; None for never."""
    return None if then_ms < 0 else max(0, now_ms - then_ms)
