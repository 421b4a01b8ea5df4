"""Java's producer and consumer know only a broker that is cut off, and find the others."""

from __future__ import annotations

from tests.apache_kafka import run_tool
from tests.replication.cut_off import Cut, cut

__all__ = ["cut"]


def test_java_clients_that_know_only_it_find_the_others(cut: Cut) -> None:
    server = ("--bootstrap-server", cut.bootstrap, "--topic", cut.topic)
    run_tool("kafka-console-producer", *server, stdin="java\n")
    read = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "60000")
    group = ("--group", cut.groups[0])
    assert run_tool("kafka-console-consumer", *server, *group, *read) == "before\njava\n"
