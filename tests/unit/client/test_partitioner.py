"""The partitioner agrees with other Kafka clients, and spreads records without a key."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kraftpy.client.partitioner import StickyPartitioner, murmur2, partition_of_key


@given(st.binary(max_size=300))
def test_murmur2_agrees_with_kafka_python(data: bytes) -> None:
    assert murmur2(data) == kafka_python_murmur2(data)


@pytest.mark.parametrize(
    ("data", "java"),
    [
        # The values of org.apache.kafka.common.utils.UtilsTest, which Java has as signed numbers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_agrees_with_java(data: bytes, java: int) -> None:
    assert murmur2(data) == java & 0xFFFFFFFF


def test_a_key_goes_to_one_of_the_partitions() -> None:
    assert {partition_of_key(b"%d" % n, 3) for n in range(100)} == {0, 1, 2}


def test_records_without_a_key_stay_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(1000, random.Random(1))
    chosen = [sticky.partition(100, [0, 1, 2]) for _ in range(40)]
    runs = [chosen[i : i + 10] for i in range(0, 40, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(a[0] != b[0] for a, b in itertools.pairwise(runs))


def test_records_without_a_key_avoid_a_partition_without_leader() -> None:
    sticky = StickyPartitioner(1000, random.Random(1))
    first = sticky.partition(1, [0, 1])
    assert sticky.partition(1, [1 - first]) == 1 - first


def test_one_partition_is_enough() -> None:
    sticky = StickyPartitioner(10, random.Random(1))
    assert [sticky.partition(10, [0]) for _ in range(3)] == [0, 0, 0]
