"""Commands on the real metadata that the tests of the quorum need."""

from __future__ import annotations

from typing import Any


def registration(broker_id: int, life: int = 1) -> dict[str, Any]:
    """register_broker of the `life`th process of a broker."""
    endpoint = {
        "listener": "PLAINTEXT",
        "host": "127.0.0.1",
        "port": 9092,
        "security_protocol": "PLAINTEXT",
    }
    return {
        "type": "register_broker",
        "broker_id": broker_id,
        "incarnation_id": (1000 * life + broker_id).to_bytes(16, "big"),
        "endpoints": [endpoint],
        "directories": [broker_id.to_bytes(16, "big")],
    }


def new_topic(name: str, partitions: int, replication_factor: int) -> dict[str, Any]:
    """One item of create_topics."""
    return {
        "name": name,
        "topic_id": name.encode().rjust(16, b"\1"),
        "partitions": partitions,
        "replication_factor": replication_factor,
    }
