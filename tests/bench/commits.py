"""Commits of the metadata quorum, proposed as a broker proposes them, with fdatasync on.

    python -m tests.bench.commits SECONDS < ORDER

proposes a hundred commands a second from a process of its own and prints, as JSON, how long each
took in ms. ORDER is {"voters": {"1": [HOST, PORT], ...}, "secret": HEX, "topic": NAME}; with
`"under_way": N` in it N proposals are kept under way instead, with 1 each follows the last one at
once. Every command changes a setting of the topic, so that nothing about it can be left out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.commands import OP_SET, AlterConfigs, ConfigChange, ConfigOp, encode
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.client import ControllerClient
from kraftpy.quorum.credentials import Credentials, QuorumSecret, load_secret
from kraftpy.testing.process import BrokerError
from tests.bench.measure import Round, Say
from tests.bench.probe import percentile
from tests.bench.replicated import topics_on
from tests.processes import split_address
from tests.quorums import KraftpyQuorum

TIMEOUT_MS = 30_000
OBSERVER = 1_000_001  # the id of a broker that never registers
INTERVAL_S = 0.01
SECONDS = 5.0
UNDER_WAY = 64


async def _propose(client: ControllerClient, topic: str, number: int) -> float:
    """Milliseconds until the command was committed and applied at the leader."""
    op = ConfigOp("retention.ms", OP_SET, str(10**9 + number))
    command = AlterConfigs((ConfigChange(ResourceType.TOPIC, topic, (op,)),))
    started_at = time.perf_counter()
    _, result = await client.propose(encode(command), TIMEOUT_MS)
    seconds = time.perf_counter() - started_at
    errors = [each["error"] for each in result.value["resources"]] if result.value else []
    if result.error is not ErrorCode.NONE or any(errors):
        raise BrokerError(f"a proposal was refused: {result}")
    return seconds * 1000


async def _measure(order: dict[str, Any], seconds: float) -> list[float]:
    client = ControllerClient(
        {int(voter): (host, port) for voter, (host, port) in order["voters"].items()},
        Credentials(QuorumSecret(bytes.fromhex(order["secret"]))),
        OBSERVER,
        on_commit=lambda index, command: None,
        on_snapshot=lambda state, index: None,
    )
    await client.start(TIMEOUT_MS)
    times: list[float] = []
    until = time.perf_counter() + seconds

    async def one_by_one(interval_s: float) -> None:
        while time.perf_counter() < until:
            times.append(await _propose(client, order["topic"], len(times)))
            await asyncio.sleep(interval_s)

    workers = order.get("under_way")
    if workers is None:
        await one_by_one(INTERVAL_S)
    else:
        await asyncio.gather(*(one_by_one(0) for _ in range(workers)))
    await client.close()
    return times


class Commits:
    """Runs the program above beside a quorum."""

    def __init__(
        self, quorum: KraftpyQuorum, topic: str, seconds: float, under_way: int | None = None
    ) -> None:
        voters = {}
        for voter in quorum.setting(1, "controller.quorum.voters").split(","):
            node, _, address = voter.partition("@")
            voters[node] = split_address(address)
        secret_file = Path(quorum.setting(1, "kraftpy.quorum.secret.file"))
        secret = load_secret(secret_file, "127.0.0.1", quorum.folder)
        order = {
            "voters": voters,
            "secret": secret.dialing.hex(),
            "topic": topic,
            "under_way": under_way,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.commits", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode())
        self._process.stdin.close()

    def times_ms(self) -> list[float]:
        """Waits for the end."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            text = output.read()
        if self._process.wait():
            raise BrokerError("the program that proposes commands has failed")
        return list(json.loads(text))


def quorum_commits(quorum: KraftpyQuorum, say: Say) -> Round:
    say("quorum commits")
    with topics_on(quorum) as (topic,):
        in_turn = Commits(quorum, topic, SECONDS, 1).times_ms()
        paced = Commits(quorum, topic, SECONDS).times_ms()
        together = Commits(quorum, topic, SECONDS, UNDER_WAY).times_ms()
    return {
        "quorum commit, p50": percentile(in_turn, 50),
        "quorum commit, p99": percentile(in_turn, 99),
        "quorum commit at 100/s, p50": percentile(paced, 50),
        f"quorum commits, {UNDER_WAY} under way": len(together) / SECONDS,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(json.load(sys.stdin), float(sys.argv[1])))))
