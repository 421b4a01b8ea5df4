"""A metadata state with brokers in it, for the tests of its commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack

from kraftpy.core.metadata import LEVEL, MetadataState, PartitionState, Result
from kraftpy.core.metadata.commands import COMMANDS, Command, encode
from kraftpy.core.metadata.judgement import judge
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.packing import pack, unpack


def packed(state: MetadataState) -> bytes:
    """The bytes of a snapshot."""
    data: bytes = msgpack.packb(state.snapshot(), use_bin_type=True)
    return data


def restored(state: MetadataState) -> MetadataState:
    """The state after a round trip through a snapshot's bytes."""
    return MetadataState.from_snapshot(msgpack.unpackb(packed(state), raw=False))


def read(command: Any) -> Command | None:
    """The command in a map; None if it's no sound one."""
    try:
        return COMMANDS.decode(command)[0]
    except (KafkaError, KeyError, TypeError):
        return None


def written(command: Command) -> dict[str, Any]:
    """The map of a command after a round trip through the log's bytes."""
    found: dict[str, Any] = unpack(pack(encode(command)))
    return found


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

    def __init__(self, brokers: int = 0, *, level: int = LEVEL, **fields: Any) -> None:
        self.state = MetadataState()
        for broker_id in range(1, brokers + 1):
            self.ok(registration(broker_id, **fields))
        for broker_id in range(1, brokers + 1):
            self.unfence(broker_id)
        if level:
            self.ok({"type": "raise_level", "level": level})

    def apply(self, command: Any) -> Result:
        """Judges the command as a proposer does, and applies what is left of it."""
        index = self.state.applied_index + 1
        known = read(command)
        if known is None:
            return self.state.apply(index, command)
        judged = judge(self.state, known)
        if judged.command is None:
            self.state.apply(index, {"type": "barrier"})
            return Result(value=dict(judged.answers({})))
        result = self.state.apply(index, written(judged.command))
        if result.error is not ErrorCode.NONE:
            return result
        return replace(result, value=dict(judged.answers(result.value)))

    def ok(self, command: Any) -> Result:
        """Applies a command that must succeed, and all of its items with it."""
        result = self.apply(command)
        assert result.error is ErrorCode.NONE, result
        for item in [*result.value.get("topics", []), *result.value.get("resources", [])]:
            for each in item.get("partitions", []) if "error" not in item else [item]:
                assert each["error"] == ErrorCode.NONE, each
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

    def partition_errors(self, command: Any) -> list[tuple[ErrorCode, str]]:
        """Error and message of each partition."""
        result = self.apply(command)
        assert result.error is ErrorCode.NONE, result
        return [
            (ErrorCode(each["error"]), each["message"] or "")
            for topic in result.value["topics"]
            for each in topic["partitions"]
        ]

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

    def begin_shutdown(self, broker_id: int) -> Result:
        return self.ok(self._on_broker("begin_shutdown", broker_id))

    def kill(self, *broker_ids: int) -> None:
        """kill -9, noticed: the brokers are fenced, and the next life finds no clean shutdown."""
        for broker_id in broker_ids:
            self.fence(broker_id)

    def start(self, broker_id: int, *, clean: bool = False, **fields: Any) -> None:
        """A new life, after a clean shutdown or not, that serves at once."""
        self.register(broker_id, clean=clean, **fields)
        self.unfence(broker_id)

    def register(self, broker_id: int, *, clean: bool = False, **fields: Any) -> Result:
        """A new life, after a clean shutdown or not, that is still fenced."""
        known = self.state.brokers.get(broker_id)
        if clean and known is not None:
            fields["previous_broker_epoch"] = known.epoch
        life = self.state.applied_index + 1
        return self.ok(registration(broker_id, life=life, **fields))

    def partition(self, topic: str = "t", index: int = 0) -> PartitionState:
        return self.state.topics[topic].partitions[index]

    def proposal(
        self, *isr: int, topic: str = "t", index: int = 0, leader: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        """alter_partition by the leader, on the state as it is; `fields` replace some of it."""
        state = self.partition(topic, index)
        leader = state.leader if leader is None else leader
        item = {
            "index": index,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "isr": [
                {"broker_id": each, "broker_epoch": self.state.brokers[each].epoch} for each in isr
            ],
            **fields,
        }
        return self._on_broker("alter_partition", leader) | {
            "topics": [{"topic_id": self.state.topics[topic].id, "partitions": [item]}]
        }

    def set_isr(self, *isr: int, **fields: Any) -> Result:
        return self.ok(self.proposal(*isr, **fields))

    def set_config(self, name: str, key: str, value: str, type_: int = 2) -> Result:
        """Sets one key of a topic's or (type 4) of the brokers' configuration."""
        resource = {"type": type_, "name": name, "ops": [[key, 0, value]]}
        return self.ok({"type": "alter_configs", "resources": [resource]})

    def _on_broker(self, type_: str, broker_id: int) -> dict[str, Any]:
        epoch = self.state.brokers[broker_id].epoch
        return {"type": type_, "broker_id": broker_id, "broker_epoch": epoch}
