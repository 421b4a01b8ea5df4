"""The pytest plugin: fixtures that give tests a Kafka broker.

* `kraftpy`: one broker for the whole session (with pytest-xdist: one for each worker), started when
  the first test asks for it.  Tests share it, so each takes topic and group names of its own.
* `kraftpy_factory`: starts brokers that belong to one test, to kill, restart and configure:
  `kraftpy_factory(log_retention_ms=1000)`.

Both hand out a started `kraftpy.testing.Broker` and stop it.  Importing this module costs nothing
but its few lines: pytest does it for every user who has kraftpy installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kraftpy.testing import Broker


@pytest.fixture(scope="session")
def kraftpy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker, shared by the session: `.bootstrap` is its address."""
    from kraftpy.testing import Broker

    with Broker(dir=tmp_path_factory.mktemp("kraftpy")) as broker:
        yield broker


@pytest.fixture
def kraftpy_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """Starts brokers for this test alone; takes `Broker`'s arguments, settings among them."""
    from kraftpy.testing import Broker

    brokers: list[Broker] = []

    def start(**options: object) -> Broker:
        options.setdefault("dir", tmp_path_factory.mktemp("kraftpy"))
        broker = Broker(**options)  # type: ignore[arg-type]
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.close()
