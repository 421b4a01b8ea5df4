"""The broker's numbers for the metrics exporter, in pieces that are small enough for the loop.

Nothing here changes anything but what has been counted. Between two frames anything may have
changed: what is looked at was listed before, and may be gone by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from kraftpy import __version__
from kraftpy.core.transactions.census import Census
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.events import last_number
from kraftpy.metrics.frames import (
    GROUP,
    GROUP_OFFSETS,
    HEALTH,
    NODE,
    PARTITIONS,
    ROWS_MAX,
    PartitionRow,
    Samples,
    label,
    pieces,
)
from kraftpy.metrics.loop_lag import LoopLag
from kraftpy.metrics.metadata import metadata_frames
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.node.share_metrics import lease_frames, state_frames

if TYPE_CHECKING:
    from kraftpy.core.groups import GroupMachine
    from kraftpy.core.groups.offsets import OffsetRow
    from kraftpy.server.broker import Broker
    from kraftpy.server.replication.partition import Partition

OFFSETS_MAX = 100_000
"""Committed offsets in one answer; nobody draws more lines than that."""

MARKERS_TIME_MS = 300_000
"""How long after the longest timeout markers may take to arrive; Kafka has the same."""


class BrokerNumbers:
    """Makes the answers of one broker."""

    def __init__(self, broker: Broker, loop_lag: LoopLag) -> None:
        self._broker = broker
        self._loop_lag = loop_lag

    def health(self) -> Iterator[Frame]:
        """Whether it does its work."""
        broker = self._broker
        started = broker.state != "starting"
        health = {"started": started, "serves": broker.serves, "in_touch": broker.in_touch}
        yield [HEALTH, health]

    def node(self) -> Iterator[Frame]:
        """What this broker is, and how it and the quorum get on."""
        broker = self._broker
        yield [
            NODE,
            {
                "process": "broker",
                "last_event": last_number(),
                "cluster": broker.metadata.cluster_id,
                "index": broker.metadata.applied_index,
                "state": broker.state,
                "in_touch": broker.in_touch,
                "heard_ms": broker.quorum_heard_ms,
                "leader": broker.controller.leader_id,
                "address": broker.dialer.address(broker.node_id),
            },
        ]

    def metadata(self) -> Iterator[Frame]:
        """Brokers and topics."""
        yield from metadata_frames(self._broker.metadata)

    def metrics(self) -> Iterator[Frame]:
        """All that it knows."""
        yield self._own()
        yield self._requests()
        yield self._storage()
        if self._broker.serves:
            yield from self._topics()
            yield from self._partitions()
            if self._broker.quorum_heard_ms <= self._broker.config.broker_session_timeout_ms:
                # Else they have another coordinator by now.
                yield from self._groups()
                yield from self._claims()
                yield from self._transactions()
            yield from lease_frames(self._broker)

    def _own(self) -> Frame:
        broker, samples = self._broker, Samples()
        own = broker.metadata.brokers.get(broker.node_id)
        samples.add("kraftpy_build_info", 1, __version__, str(broker.node_id))
        samples.add("kraftpy_broker_fenced", int(own is None or own.fenced))
        samples.add("kraftpy_broker_in_touch", int(broker.in_touch))
        samples.add("kraftpy_metadata_index", broker.metadata.applied_index)
        samples.histogram("kraftpy_event_loop_lag_seconds", self._loop_lag.lags, "broker")
        samples.add("kafka_brokers", sum(not b.fenced for b in broker.metadata.brokers.values()))
        host, port = broker.dialer.address(broker.node_id) or ("", 0)
        samples.add("kafka_broker_info", 1, str(broker.node_id), f"{host}:{port}")
        return samples.frame()

    def _requests(self) -> Frame:
        broker, samples = self._broker, Samples()
        for api, numbers in broker.dispatcher.numbers.items():
            name = _api_name(api.name)
            samples.histogram("kraftpy_request_duration_seconds", numbers.duration, name)
            samples.add("kraftpy_purgatory_waiting", numbers.waiting, name)
            for code, count in numbers.errors.items():
                samples.add("kraftpy_request_errors_total", count, name, ErrorCode(code).name)
        listener = broker.listener
        samples.add("kraftpy_connections", listener.connections)
        acceptor = listener.acceptor
        samples.add("kraftpy_connections_accepted_total", acceptor.accepted)
        samples.add("kraftpy_connections_refused_total", acceptor.refused)
        for name in acceptor.listeners:
            samples.add("kraftpy_connections_delayed_total", acceptor.delayed[name], name)
            samples.add("kraftpy_connections_wait_seconds_total", acceptor.waited_s(name), name)
        for quota, throttled in broker.quotas.use.numbers.items():
            samples.add("kraftpy_quota_throttles_total", throttled.count, quota)
            samples.add("kraftpy_quota_throttle_seconds_total", throttled.seconds, quota)
        samples.add("kraftpy_tls_handshakes_total", listener.handshakes.done, "done")
        samples.add("kraftpy_tls_handshakes_total", listener.handshakes.failed, "failed")
        for tls in listener.tls.by_name.values():
            expiry_s = tls.certificate.not_after_s
            samples.add("kraftpy_tls_certificate_expiry_timestamp_seconds", expiry_s, tls.name)
        logins = listener.logins
        samples.add("kraftpy_logins_total", logins.done, "done")
        samples.add("kraftpy_logins_total", logins.failed, "failed")
        samples.add("kraftpy_logins_total", logins.renewed, "renewed")
        samples.add("kraftpy_logins_total", logins.expired, "expired")
        samples.add("kraftpy_access_denials_total", broker.audit.denials)
        samples.add("kraftpy_request_memory_bytes", listener.request_memory_bytes)
        samples.add("kraftpy_response_memory_bytes", listener.answer_memory_bytes)
        return samples.frame()

    def _storage(self) -> Frame:
        broker, samples = self._broker, Samples()
        samples.histogram("kraftpy_fsync_seconds", broker.flusher.fsyncs)
        cleaner = broker.logs.cleaner
        numbers = cleaner.numbers
        samples.add("kraftpy_cleaner_running", int(cleaner.busy))
        samples.add("kraftpy_cleaner_runs_total", numbers.cleaned, "cleaned")
        samples.add("kraftpy_cleaner_runs_total", numbers.failed, "failed")
        samples.add("kraftpy_cleaner_read_bytes_total", numbers.read_bytes)
        samples.add("kraftpy_cleaner_written_bytes_total", numbers.written_bytes)
        samples.add("kraftpy_cleaner_seconds_total", numbers.seconds)
        samples.add("kraftpy_cleaner_uncleanable_logs", cleaner.uncleanable)
        return samples.frame()

    # -- topics and partitions

    def _topics(self) -> Iterator[Frame]:
        broker, samples = self._broker, Samples()
        traffic, changes = broker.replicas.traffic, broker.leader_changes
        samples.histogram("kraftpy_log_append_seconds", traffic.appends)
        samples.histogram("kraftpy_replication_commit_seconds", traffic.commits)
        replicated = traffic.replicated
        samples.add("kraftpy_replication_received_bytes_total", replicated.received_bytes)
        samples.add("kraftpy_replication_sent_bytes_total", replicated.sent_bytes)
        ranges = broker.replicas.range_reads
        samples.add("kraftpy_range_fetch_scanned_bytes_total", ranges.numbers.scanned_bytes)
        samples.add("kraftpy_range_fetch_sent_bytes_total", ranges.numbers.sent_bytes)
        for part, count in ranges.numbers.batches.items():
            samples.add("kraftpy_range_fetch_batches_total", count, part.value)
        samples.add("kraftpy_range_fetch_cache_bytes", ranges.cache.used_bytes)
        samples.add("kraftpy_isr_changes_total", changes.shrinks, "shrink")
        samples.add("kraftpy_isr_changes_total", changes.expansions, "expand")
        samples.add("kraftpy_unclean_elections_total", changes.unclean_elections)
        yield samples.frame()
        for piece in pieces(traffic.by_name()):
            samples = Samples()
            for name, numbers in piece:
                for metric, value in (
                    ("kraftpy_topic_sent_bytes_total", numbers.sent_bytes),
                    (f"{_JMX_TOPICS}failedproducerequests_total", numbers.failed_batches),
                    (f"{_JMX_TOPICS}totalfetchrequests_total", numbers.reads),
                    (f"{_JMX_TOPICS}failedfetchrequests_total", numbers.failed_reads),
                    (f"{_JMX_TOPICS}producemessageconversions_total", numbers.upconverted_records),
                    (f"{_JMX_TOPICS}fetchmessageconversions_total", numbers.downconverted_records),
                ):
                    samples.add(metric, value, name)
            yield samples.frame()

    def _partitions(self) -> Iterator[Frame]:
        broker = self._broker
        with_rows = broker.config.kraftpy_metrics_partitions
        hanging_ms = broker.now_ms() - broker.config.transaction_max_timeout_ms - MARKERS_TIME_MS
        totals: Counter[str] = Counter()
        lags: Counter[int] = Counter()
        for name, partitions in broker.replicas.by_topic():
            size_bytes = lso_lag = 0
            known = broker.metadata.topics.get(name)
            for piece in pieces(partitions):
                rows = [_row(partition, totals, lags, hanging_ms) for partition in piece]
                size_bytes += sum(row.size_bytes for row in rows)
                lso_lag = max(lso_lag, *map(_lso_lag, piece))
                first = rows[0].partition == 0 and rows[0].is_led
                count = len(known.partitions) if first and known is not None else None
                yield [PARTITIONS, [name, count, rows if with_rows else []]]
            samples = Samples()
            samples.add("kraftpy_topic_log_size_bytes", size_bytes, name)
            samples.add("kraftpy_lso_lag_records", lso_lag, name)
            numbers = broker.replicas.traffic.topics.get(name)
            if numbers is not None:
                received_bytes, received = numbers.received_bytes, numbers.received_records
                samples.add("kraftpy_topic_received_bytes_total", received_bytes, name)
                samples.add(f"{_JMX_TOPICS}totalproducerequests_total", numbers.batches, name)
                samples.add("kraftpy_topic_received_records_total", received, name)
            yield samples.frame()
        samples = Samples()
        for metric in _TOTALS:
            samples.add(metric, totals[metric])
        for follower, lag in lags.items():
            samples.add("kraftpy_follower_lag_records", lag, str(follower))
        yield samples.frame()

    # -- groups

    def _groups(self) -> Iterator[Frame]:
        groups, samples = self._broker.groups, Samples()
        machines = list(groups.machines())
        loading = list(groups.loading())
        total_bytes = sum(progress.total_bytes for progress in loading)
        loaded_bytes = sum(min(progress.bytes, progress.total_bytes) for progress in loading)
        samples.add("kraftpy_coordinator_partitions", len(machines))
        samples.add("kraftpy_coordinator_loading_partitions", len(loading))
        samples.add(
            "kraftpy_coordinator_loading_ratio", loaded_bytes / total_bytes if total_bytes else 1
        )
        samples.histogram("kraftpy_coordinator_load_seconds", groups.loads)
        samples.add(
            "kraftpy_committed_offsets", sum(machine.offsets_count for _, machine in machines)
        )
        followed = sum(machine.offsets_count for machine in groups.warm_machines())
        samples.add("kraftpy_followed_committed_offsets", followed)
        yield samples.frame()
        states: Counter[tuple[str, str]] = Counter()
        left = OFFSETS_MAX
        for _, machine in machines:
            for group_id in machine.group_ids():
                kind, state, members = machine.summary(group_id)
                states[kind, state] += 1
                if left > 0:
                    left -= 1
                    for frame, count in self._group(machine, group_id, members):
                        left -= count
                        yield frame
                elif states.total() % 64 == 0:
                    yield Samples().frame()
        left = yield from state_frames(self._broker, left)
        samples = Samples()
        for (kind, state), count in states.items():
            samples.add("kraftpy_groups", count, kind, state)
        samples.add("kraftpy_metrics_truncated", int(left <= 0))
        yield samples.frame()

    def _group(
        self, machine: GroupMachine, group_id: str, members: int
    ) -> Iterator[tuple[Frame, int]]:
        """The frames of a group, each with how many offsets it tells of."""
        shown = label(group_id)
        yield [GROUP, [shown, members, []]], 0
        with_rows = self._broker.config.kraftpy_metrics_partitions
        found = machine.offsets.pieces_of_group(group_id, ROWS_MAX)
        for topic, of_topic in groupby(found, key=itemgetter(0)):
            offset_sum = lag_sum = 0
            for _, piece in of_topic:
                rows = [self._offset(topic, row) for row in piece]
                offset_sum += sum(row[1] for row in rows)
                lag_sum += sum(row[2] or 0 for row in rows)
                sent = rows if with_rows else [row for row in rows if row[2] is None]
                yield [GROUP_OFFSETS, [shown, topic, sent, with_rows]], len(rows)
            yield [GROUP, [shown, None, [[topic, offset_sum, lag_sum]]]], 0

    def _offset(self, topic: str, row: OffsetRow) -> tuple[int, int, int | None]:
        """Partition, committed offset, lag; None where another broker has to be asked for the end.

        A follower's high watermark may be behind, and so may that of a leader that has yet to
        settle.
        """
        index, offset = row[:2]
        partition = self._broker.replicas.replica(topic, index)
        leadership = None if partition is None else partition.leadership
        if partition is None or leadership is None or not leadership.settled:
            return index, offset, None
        return index, offset, max(partition.high_watermark - offset, 0)

    # -- claims

    def _claims(self) -> Iterator[Frame]:
        groups, now_ms = self._broker.groups, self._broker.now_ms()
        ranges = stalled = 0
        left = OFFSETS_MAX
        for _, machine in list(groups.machines()):
            claims = machine.claims
            ranges += claims.ranges_count + claims.pending_count
            for group_id in list(claims.places):
                since_ms: dict[str, int] = {}
                for piece in pieces(claims.standing(group_id)):
                    for each in piece:
                        stalled += each.stalled
                        since_ms[each.topic] = min(each.since_ms, since_ms.get(each.topic, now_ms))
                    yield Samples().frame()
                left -= len(since_ms)
                for some in pieces(since_ms.items() if left >= 0 else ()):
                    samples = Samples()
                    for topic, since in some:
                        age_s = max(now_ms - since, 0) / 1000
                        samples.add(_OLDEST_UNCLAIMED, age_s, label(group_id), topic)
                    yield samples.frame()
        samples = Samples()
        samples.add("kraftpy_individual_commit_ranges", ranges)
        samples.add("kraftpy_individual_commit_stalled", stalled)
        samples.add("kraftpy_individual_commit_bytes", groups.claim_memory.used_bytes)
        for error, count in groups.claim_memory.answers.items():
            samples.add("kraftpy_individual_commits_total", count, error.name)
        samples.add("kraftpy_twins_apart", self._twins_apart())
        yield samples.frame()

    def _twins_apart(self) -> int:
        """Partitions led here whose twin has another leader, or none."""
        metadata, node_id = self._broker.metadata, self._broker.node_id
        apart = 0
        for name, twin_name in metadata.twins.items():
            topic, twin = metadata.topics.get(name), metadata.topics.get(twin_name)
            if topic is not None and twin is not None:
                apart += sum(
                    partition.leader == node_id and twin.partitions[index].leader != node_id
                    for index, partition in topic.partitions.items()
                )
        return apart

    # -- transactions

    def _transactions(self) -> Iterator[Frame]:
        transactions, now_ms = self._broker.transactions, self._broker.now_ms()
        census = Census()
        for piece in transactions.loaded_transactions():
            census.count((transaction for _, transaction in piece), now_ms)
            yield Samples().frame()
        samples, numbers = Samples(), transactions.numbers
        for state, count in census.states.items():
            samples.add("kraftpy_transactions", count, state.label)
        samples.add("kraftpy_transactions_late", census.late)
        oldest_ms = 0 if census.decided_ms is None else max(now_ms - census.decided_ms, 0)
        samples.add("kraftpy_transaction_markers_oldest_seconds", oldest_ms / 1000)
        for result, count in numbers.ended.items():
            samples.add("kraftpy_transactions_ended_total", count, result)
        for error, count in self._broker.transaction_questions.answers.items():
            samples.add("kraftpy_transaction_verifications_total", count, error.name)
        samples.histogram("kraftpy_transaction_duration_seconds", numbers.durations)
        samples.histogram("kraftpy_transaction_markers_seconds", numbers.markers)
        yield samples.frame()


_JMX_TOPICS = "kafka_server_brokertopicmetrics_"
_OLDEST_UNCLAIMED = "kraftpy_group_oldest_unclaimed_seconds"
_HANGING = "kraftpy_partitions_with_hanging_transactions"
_TOTALS = (
    _HANGING,
    "kraftpy_partitions",
    "kraftpy_partitions_led",
    "kraftpy_partitions_under_replicated",
    "kraftpy_partitions_under_min_isr",
    "kraftpy_partitions_at_min_isr",
    "kraftpy_partitions_reassigning",
    "kraftpy_logs_offline",
)


def _lso_lag(partition: Partition) -> int:
    """The committed records that read_committed doesn't get yet; of a follower none."""
    if partition.leadership is None:
        return 0
    return partition.high_watermark - partition.last_stable_offset


def _row(
    partition: Partition, totals: Counter[str], lags: Counter[int], hanging_ms: int
) -> PartitionRow:
    """A replica's row; counts it."""
    log, leadership = partition.log, partition.leadership
    totals["kraftpy_partitions"] += 1
    if log.offline:
        totals["kraftpy_logs_offline"] += 1
    if leadership is None:
        return PartitionRow(partition.index, log.size_bytes)
    partition.count_received()
    state = leadership.state
    isr = len(state.isr)
    min_isr = (isr > leadership.min_isr) - (isr < leadership.min_isr)
    totals["kraftpy_partitions_led"] += 1
    totals[_HANGING] += log.producers.is_hanging(hanging_ms)
    if isr < len(state.replicas):
        totals["kraftpy_partitions_under_replicated"] += 1
    if min_isr <= 0:
        at = "at" if min_isr == 0 else "under"
        totals[f"kraftpy_partitions_{at}_min_isr"] += 1
    if state.adding or state.removing:
        totals["kraftpy_partitions_reassigning"] += 1
    for follower in leadership.followers:
        lags[follower.id] += max(log.log_end_offset - max(follower.offset, 0), 0)
    return PartitionRow(
        partition.index,
        log.size_bytes,
        partition.high_watermark,
        log.log_start_offset,
        isr,
        len(state.replicas),
        state.replicas[0] == state.leader,
        min_isr,
    )


def _api_name(name: str) -> str:
    """PRODUCE -> Produce, LIST_OFFSETS -> ListOffsets: as Kafka's tools spell it."""
    return "".join(word.capitalize() for word in name.split("_"))
