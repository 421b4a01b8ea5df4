"""Offsets of partitions, by position or time, and what asks for them without records."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import EARLIEST, LATEST, Partition, list_offsets
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError

from .peer import Peer, list_offsets_answer, running

T0: Partition = ("t", 0)


def test_list_offsets() -> None:
    peer = Peer({"t": 2})
    peer.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 1, LATEST: 5, 1234: -1})

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            asked = {T0: EARLIEST, ("t", 1): LATEST}
            assert await list_offsets(cluster, asked) == {T0: 1, ("t", 1): 5}
            assert await list_offsets(cluster, {T0: 1234}) == {T0: -1}
            with pytest.raises(KafkaError, match="no partition 2"):
                await list_offsets(cluster, {("t", 2): LATEST})
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await list_offsets(cluster, {("nowhere", 0): LATEST})

    asyncio.run(run())


@pytest.mark.parametrize("command", ["topic", "group", "cluster", "offsets"])
def test_commands_that_read_no_records_start_without_them(command: str) -> None:
    program = (
        f"import sys, kraftpy.cli.{command}; sys.exit('kraftpy.protocol.records' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
