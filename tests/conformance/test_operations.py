"""The operations guide, followed to the letter on three real nodes under load."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conformance.guide import Machines, chapter


class Load:
    """A producer that goes on, `acks=all`; nothing that it was told is written may be missing."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        self.errors: list[object] = []
        self.acknowledged: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            value = str(number)
            self._producer.produce("orders", value, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush(30)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.add(message.value().decode())  # type: ignore[attr-defined]
        else:
            self.errors.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


def values(machines: Machines) -> set[str]:
    """What is in the topic, by the guide's own way to copy it out."""
    (line,) = [line for _, line in chapter("Backup and restore") if "consume" in line]
    lines = machines.run("admin", line).splitlines()
    return {json.loads(each)["value"] for each in lines}


@pytest.mark.timeout(400)
def test_the_chapters_do_what_they_say(tmp_path: Path) -> None:
    with Machines(tmp_path) as machines:
        for node in (1, 2, 3):
            machines.start(node)
        machines.until_healthy()
        machines.run("admin", "kraftpy topic create orders -p 6 -r 3 -b node1:9092")
        load = Load(machines.bootstrap)
        try:
            for where, line in chapter("Rolling restart and upgrade"):
                machines.run(where, line)
            for node in (1, 2, 3):
                assert machines.log(node).count("node-stopped") == 1
                assert "controlled-shutdown" in machines.log(node)
            for where, line in chapter("Adding a broker"):
                if where == "admin" and "brokers" in line:
                    machines.run(
                        "admin", "until kraftpy cluster health -b node4:9092; do sleep .1; done"
                    )
                machines.run(where, line)
            replicas = machines.run("admin", "kraftpy topic describe orders -b node1:9092 -o json")
            assert _on(4, replicas), "the new broker has its share"
            for where, line in chapter("Removing a broker"):
                if line.startswith("kraftpy cluster brokers"):
                    machines.finish()
                    brokers = machines.run(where, f"{line} -o json")
                    assert {each["broker"] for each in json.loads(brokers)} == {1, 2, 3}
                machines.run(where, line)
            backup = [each for each in chapter("Backup and restore") if "consume" not in each[1]]
            for where, line in backup:
                machines.run(where, line)
                if "-xzf" in line:
                    assert (tmp_path / "node1/lib/kraftpy/meta.properties").exists()
        finally:
            load.stop()
        assert not load.errors
        assert len(load.acknowledged) > 100
        assert load.acknowledged <= values(machines)
        for node in (1, 2, 3):
            machines.stop(node)


def _on(node: int, described: str) -> bool:
    (topic,) = json.loads(described)
    return any(node in partition["replicas"] for partition in topic["partitions"])
