"""Three real nodes for each module of this folder, and topics on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster

_numbers = itertools.count()


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three nodes, whose tests leave them healthy."""
    with Cluster(3) as cluster:
        yield cluster


NewTopicMaker = Callable[..., str]


@pytest.fixture
def new_topic() -> NewTopicMaker:
    """`new_topic(cluster, partitions=1, **configs)` gives a topic's name; _ stands for a dot."""

    def create(cluster: Cluster, partitions: int = 1, **configs: object) -> str:
        name = f"topic-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(
            name,
            partitions,
            len(cluster.nodes),
            config={key.replace("_", "."): str(value) for key, value in configs.items()},
        )
        admin.create_topics([topic])[name].result(timeout=20)
        cluster.wait_healthy()
        return name

    return create
