"""A broker of its own for each module, spoken to in raw requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Broker
from tests.server.wire import Wire

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.host, broker.port) as connected:
        yield connected


@pytest.fixture
def new_topic(wire: Wire) -> Callable[..., str]:
    """`new_topic(partitions=1, **configs)` gives a new topic's name; _ stands for a dot."""

    def create(partitions: int = 1, **configs: object) -> str:
        name = f"topic-{next(_numbers)}"
        request = messages.CreateTopicsRequest
        response = wire.call(
            ApiKey.CREATE_TOPICS,
            7,
            request(
                topics=[
                    request.CreatableTopic(
                        name,
                        partitions,
                        1,
                        configs=[
                            request.CreatableTopicConfig(key.replace("_", "."), str(value))
                            for key, value in configs.items()
                        ],
                    )
                ],
                timeout_ms=10_000,
            ),
        )
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        return name

    return create
