"""Clients consume, transform and produce in transactions: each record counts once (KIP-447)."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline, Driver, Message
from tests.clients.pipelines import AT_A_TIME, PIPELINES, Pipeline

RECORDS = 4 * AT_A_TIME
PARTITIONS = 2


@pytest.mark.parametrize("kind", PIPELINES, ids=lambda kind: kind.name)
def test_each_record_counts_once(
    kind: type[Pipeline], bootstrap: str, reference: Driver, new_topic: Callable[..., str]
) -> None:
    """Though a process vanishes with a transaction open, and another begins where it had begun."""
    source = new_topic(partitions=PARTITIONS)
    target = f"{source}-out"
    ConfluentKafka(bootstrap).create_topic(target, 1, {})
    values = [b"%d" % number for number in range(RECORDS)]
    reference.produce(
        source, [Message(each, partition=n % PARTITIONS) for n, each in enumerate(values)]
    )
    transactional_id, group = f"id-{source}", f"g-{uuid.uuid4().hex[:8]}"
    taken = 0
    for is_last in (False, True):
        pipeline = kind(bootstrap, transactional_id, group)
        deadline = Deadline(f"{taken} of {RECORDS} records were taken")
        if not is_last:
            for ends in (True, False):
                while not (count := pipeline.step(source, target, ends=ends)):
                    deadline.left()
                taken += count if ends else 0
        while is_last and taken < RECORDS:
            taken += pipeline.step(source, target)
            deadline.left()
        assert not is_last or pipeline.step(source, target) == 0
        pipeline.vanish()
    seen = [each.value for each in reference.read(target, 0, 0, RECORDS)]
    assert sorted(seen) == sorted(values)
