"""From options to ranges of offsets, and from ranges to tasks.

* Positions are resolved against the cluster once; what comes out is only numbers.
* Splitting into tasks is a pure function of the ranges and the options, so that a batch that is
  planned again after a crash has the same tasks. The rule is that of Spark's Kafka source: first no
  task larger than maxRecordsPerPartition, then at least minPartitions tasks, shared out by size.
  In place of both, slicesPerPartition has tasks of the same offsets for parts of the keys, of which
  all records of a key are in one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kraftpy.protocol.key_hash import SLOTS, hashes_of
from kraftpy.spark.brokers import Brokers, existing, report_loss
from kraftpy.spark.decoder import Slice
from kraftpy.spark.positions import (
    Assigned,
    Offsets,
    OptionError,
    Partition,
    Pattern,
    Position,
    Topics,
)
from kraftpy.spark.settings import ReadSettings


def partitions_of(brokers: Brokers, topics: Topics, *, must_exist: bool = True) -> list[Partition]:
    """The partitions that are subscribed or assigned now; OptionError for those not there."""
    if isinstance(topics, Pattern):
        found = brokers.partitions(topics.choose(brokers.topics()))
    else:
        if isinstance(topics, Assigned):
            names = sorted({topic for topic, _ in topics.partitions})
        else:
            names = list(topics.names)
        found = existing(brokers, names) if must_exist else brokers.partitions(names)
    there = [(topic, number) for topic, numbers in sorted(found.items()) for number in numbers]
    if not isinstance(topics, Assigned):
        return there
    if must_exist and (missing := sorted(set(topics.partitions) - set(there))):
        raise OptionError(f"option assign names partitions that are not there: {_names(missing)}")
    return sorted(set(topics.partitions) & set(there))


def ids_of(brokers: Brokers, partitions: Iterable[Partition]) -> dict[str, str]:
    """The ids of the topics, as they were when these partitions were asked for.

    Nothing of those that have none: brokers before Kafka 2.8 know no ids.
    """
    known = brokers.cluster().topics
    names = sorted({topic for topic, _ in partitions if topic in known})
    return {name: known[name].id.hex() for name in names if any(known[name].id)}


def resolve(brokers: Brokers, partitions: Sequence[Partition], position: Position) -> Offsets:
    """The offset of a position in each partition; OptionError when it can't be told."""
    if position.kind == "earliest":
        return brokers.earliest(partitions)
    if position.kind == "latest":
        return brokers.latest(partitions)
    if position.timestamp_ms is not None:
        return _by_time(brokers, dict.fromkeys(partitions, position.timestamp_ms), position.strict)
    given = position.by_partition or {}
    if set(given) != set(partitions):
        raise OptionError(
            f"option {position.option} has to name every partition and no other"
            f"{_difference(given, partitions)}; -1 stands for the end and -2 for the start"
        )
    if position.kind == "timestamps":
        return _by_time(brokers, given, position.strict)
    named = {name: offset for name, offset in given.items() if offset < 0}
    return {**given, **brokers.offsets(named)}


def _by_time(brokers: Brokers, times_ms: Offsets, strict: bool) -> Offsets:
    found = brokers.offsets(times_ms)
    late = [name for name, offset in found.items() if offset < 0]
    if late and strict:
        raise OptionError(
            f"no record from the wanted time on in {_names(late)}; choose an earlier one, or set "
            "the option startingOffsetsByTimestampStrategy to latest"
        )
    return {**found, **brokers.latest(late)}


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def _difference(given: Mapping[Partition, int], wanted: Sequence[Partition]) -> str:
    missing, extra = set(wanted) - set(given), set(given) - set(wanted)
    text = f"; not named: {_names(missing)}" if missing else ""
    return text + (f"; not there: {_names(extra)}" if extra else "")


def batch_ranges(
    brokers: Brokers,
    topics: Topics,
    starting: Position,
    ending: Position,
    *,
    fail_on_data_loss: bool,
) -> list[Slice]:
    """What a batch reads: a slice of each partition that has something between the positions."""
    partitions = partitions_of(brokers, topics)
    starts = resolve(brokers, partitions, starting)
    ends = resolve(brokers, partitions, ending)
    firsts, lasts = brokers.earliest(partitions), brokers.latest(partitions)
    ranges = []
    for name in partitions:
        start, end = starts[name], ends[name]
        if start < firsts[name] and start < end:
            report_loss(
                f"{_names([name])} starts at offset {firsts[name]}, after the wanted {start}: "
                f"{min(firsts[name], end) - start} offsets are gone",
                fail_on_data_loss,
            )
            start = firsts[name]
        if max(start, end) > lasts[name]:
            report_loss(
                f"{_names([name])} ends at offset {lasts[name]}, before the wanted "
                f"{max(start, end)}",
                fail_on_data_loss,
            )
            start, end = min(start, lasts[name]), min(end, lasts[name])
        if start < end:
            ranges.append(Slice(*name, start, end))
    return ranges


def ranges_between(begin: Offsets, end: Offsets, *, fail_on_data_loss: bool) -> list[Slice]:
    """What lies between two offsets of a stream, in the same order every time."""
    ranges = []
    for name in sorted(end):
        start, stop = begin[name], end[name]
        if stop < start:
            report_loss(
                f"{_names([name])} was read up to offset {start} and ends at {stop} now: "
                f"{start - stop} offsets were taken back",
                fail_on_data_loss,
            )
        elif start < stop:
            ranges.append(Slice(*name, start, stop))
    return ranges


def tasks_of(ranges: Sequence[Slice], settings: ReadSettings) -> list[Slice]:
    """What each task reads of these ranges."""
    parts = split(ranges, settings.min_partitions, settings.max_records_per_partition)
    return by_keys(parts, settings.slices_per_partition)


def by_keys(parts: Iterable[Slice], count: int) -> list[Slice]:
    """The tasks, each cut into so many of the same offsets and an equal part of the keys.

    It is the same part in every batch.
    """
    if count == 1:
        return list(parts)
    slots = [SLOTS * number // count for number in range(count + 1)]
    hashes = [hashes_of(first, end - 1) for first, end in itertools.pairwise(slots)]
    return [replace(part, hashes=each) for part in parts for each in hashes]


def split(ranges: Sequence[Slice], least: int | None, most_records: int | None) -> list[Slice]:
    """The ranges cut into tasks: at least `least`, none over `most_records` offsets."""
    if most_records is not None:
        ranges = [part for each in ranges for part in _cut(each, -(-_size(each) // most_records))]
    if least is None or len(ranges) >= least:
        return list(ranges)
    total = sum(map(_size, ranges))
    tasks: list[Slice] = []
    left = least
    # The largest are cut first; those too small to be cut take one task each.
    for each in sorted(ranges, key=_size, reverse=True):
        share = max(1, round(left * _size(each) / total)) if total else 1
        tasks += _cut(each, min(share, _size(each)))
        left, total = max(0, left - share), total - _size(each)
    return sorted(tasks, key=lambda task: (task.topic, task.partition, task.start))


def _size(each: Slice) -> int:
    return each.end - each.start


def _cut(each: Slice, parts: int) -> list[Slice]:
    edges = [each.start + _size(each) * n // parts for n in range(parts + 1)]
    return [Slice(each.topic, each.partition, low, high) for low, high in itertools.pairwise(edges)]
