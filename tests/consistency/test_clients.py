"""Clients as consistency runs use them: an answer belongs to the operation that gets it."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster
from kraftpy.testing.consistency.clients import UnknownError, kafka_python

PLACE = ("t", 0)


def test_a_fetch_after_one_that_timed_out_reads_what_is_there_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kafka-python gives the next fetch the late answer of the one before."""
    with Cluster(1, links=False) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 2)])["t"].result(timeout=20)
        reading, writing = (kafka_python._Registers(cluster.bootstrap, "g") for _ in range(2))
        writing.commit(PLACE, 1)
        assert reading.fetch(PLACE) == 1
        monkeypatch.setattr(kafka_python, "_TIMEOUT_MS", 500)
        cluster.pause(1)
        with pytest.raises(UnknownError):
            reading.fetch(PLACE)
        cluster.resume(1)
        monkeypatch.setattr(kafka_python, "_TIMEOUT_MS", 10_000)
        # Whatever the fetch found, it found it before these.
        assert reading.fetch(("t", 1)) == -1
        writing.commit(PLACE, 2)
        assert reading.fetch(PLACE) == 2
        reading.close()
        writing.close()
