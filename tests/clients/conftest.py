"""The three stock clients that every test of this folder runs with."""

from __future__ import annotations

import pytest

from tests.clients.aio import AioKafka
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Driver
from tests.clients.fixtures import bootstrap, log_dir, new_topic, reference, topic
from tests.clients.kafka_python import KafkaPython

__all__ = ["bootstrap", "client", "log_dir", "new_topic", "reference", "topic"]

DRIVERS: tuple[type[Driver], ...] = (ConfluentKafka, KafkaPython, AioKafka)


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Driver:
    return request.param(bootstrap)
