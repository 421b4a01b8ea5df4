"""A metadata state with brokers in it, for the tests of its commands."""

from __future__ import annotations

from typing import Any

import msgpack

from kraftpy.core.metadata import MetadataState, Result
from kraftpy.protocol.errors import ErrorCode


def packed(state: MetadataState) -> bytes:
    """The bytes of a snapshot."""
    data: bytes = msgpack.packb(state.snapshot(), use_bin_type=True)
    return data


def restored(state: MetadataState) -> MetadataState:
    """The state after a round trip through a snapshot's bytes."""
    return MetadataState.from_snapshot(msgpack.unpackb(packed(state), raw=False))


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def registration(broker_id: int, *, life: int = 1, **fields: Any) -> dict[str, Any]:
    """A register_broker command; `life` tells one process of the broker from the next."""
    return {
        "type": "register_broker",
        "broker_id": broker_id,
        "incarnation_id": uuid_of(1_000_000 * life + broker_id),
        "endpoints": [
            {
                "listener": "PLAINTEXT",
                "host": "127.0.0.1",
                "port": 9092,
                "security_protocol": "PLAINTEXT",
            }
        ],
        "directories": [uuid_of(2_000_000 + broker_id)],
        **fields,
    }


def new_topic(
    name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any
) -> dict[str, Any]:
    """One item of create_topics."""
    return {
        "name": name,
        "topic_id": uuid_of(3_000_000 + sum(n * ord(c) * 7919 for n, c in enumerate(name, 1))),
        "partitions": partitions,
        "replication_factor": replication_factor,
        **fields,
    }


class Cluster:
    """Applies commands at consecutive indexes."""

    def __init__(self, brokers: int = 0, **fields: Any) -> None:
        self.state = MetadataState()
        for broker_id in range(1, brokers + 1):
            self.ok(registration(broker_id, **fields))
        for broker_id in range(1, brokers + 1):
            self.unfence(broker_id)

    def apply(self, command: Any) -> Result:
        return self.state.apply(self.state.applied_index + 1, command)

    def ok(self, command: Any) -> Result:
        """Applies a command that must succeed, and all of its items with it."""
        result = self.apply(command)
        assert result.error is ErrorCode.NONE, result
        for item in [*result.value.get("topics", []), *result.value.get("resources", [])]:
            assert item["error"] == ErrorCode.NONE, item
        return result

    def error(self, command: Any) -> tuple[ErrorCode, str]:
        """Applies a command that must fail as a whole without changing anything."""
        before = self.state.snapshot()
        result = self.apply(command)
        assert self.state.snapshot() == before | {"applied_index": self.state.applied_index}
        assert result.changes == ()
        return result.error, result.message or ""

    def item_errors(self, command: Any) -> list[tuple[ErrorCode, str]]:
        """Error and message of each item."""
        result = self.apply(command)
        assert result.error is ErrorCode.NONE, result
        items = result.value.get("topics", result.value.get("resources", []))
        return [(ErrorCode(item["error"]), item["message"] or "") for item in items]

    def create(self, *topics: dict[str, Any], seed: int = 0, **fields: Any) -> Result:
        return self.ok({"type": "create_topics", "topics": list(topics), "seed": seed, **fields})

    def create_error(self, topic: dict[str, Any]) -> tuple[ErrorCode, str]:
        """Error and message of a topic that can't be created; checks that nothing changed."""
        before = self.state.snapshot()
        (error,) = self.item_errors({"type": "create_topics", "topics": [topic], "seed": 0})
        assert self.state.snapshot() == before | {"applied_index": self.state.applied_index}
        return error

    def fence(self, broker_id: int) -> Result:
        return self.ok(self._on_broker("fence_broker", broker_id))

    def unfence(self, broker_id: int) -> Result:
        return self.ok(self._on_broker("unfence_broker", broker_id))

    def _on_broker(self, type_: str, broker_id: int) -> dict[str, Any]:
        epoch = self.state.brokers[broker_id].epoch
        return {"type": type_, "broker_id": broker_id, "broker_epoch": epoch}
