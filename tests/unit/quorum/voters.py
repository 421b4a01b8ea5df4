"""Three controllers as processes of their own, for tests that kill, stop and restart them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kraftpy.testing.networks.ports import free_ports
from tests import warm
from tests.waiting import until

from .stack import SECRET, Broker


class Program(NamedTuple):
    """What a controller is started with: a script that takes what `controller_main` does."""

    script: Path
    environment: Mapping[str, str] = {}


TODAYS = Program(Path(__file__).with_name("controller_main.py"))


class Voters:
    """Voters 1, 2 and 3; `options` are those of `ControllerOptions`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "secret").write_bytes(SECRET)
        self.ports = dict(enumerate(free_ports(3), 1))

    def start(self, *voter_ids: int, program: Program = TODAYS, **options: Any) -> None:
        """Start these voters; returns before they answer."""
        for voter_id in voter_ids:
            given = {
                "metadata_dir": str(self.folder / f"m{voter_id}"),
                "voter_id": voter_id,
                "port": self.ports[voter_id],
                "voters": {n: ("127.0.0.1", port) for n, port in self.ports.items()},
                "secret_file": str(self.folder / "secret"),
                **self.options,
                **options,
            }
            with self.log_of(voter_id).open("ab") as log:
                process = warm.popen(
                    [sys.executable, program.script],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=os.environ | dict(program.environment),
                )
            assert process.stdin is not None
            process.stdin.write(json.dumps({"run": given}).encode() + b"\n")
            process.stdin.close()
            self.processes[voter_id] = process

    def kill(self, *voter_ids: int) -> None:
        for voter_id in voter_ids:
            process = self.processes.pop(voter_id)
            process.kill()
            process.wait()

    def signal(self, voter_id: int, number: signal.Signals) -> None:
        os.kill(self.processes[voter_id].pid, number)

    def log_of(self, voter_id: int) -> Path:
        return self.folder / f"log{voter_id}"

    def broker(self, **options: Any) -> Broker:
        return Broker(self.ports, **options)


@contextlib.asynccontextmanager
async def three_voters(folder: Path, **options: Any) -> AsyncIterator[Voters]:
    """All three, started; killed at the end."""
    voters = Voters(folder, **options)
    try:
        voters.start(1, 2, 3)
        yield voters
    finally:
        voters.kill(*voters.processes)


async def leader_of(broker: Broker) -> int:
    """Who leads; waits for an election that goes on."""
    await until(lambda: broker.client.leader_id is not None, timeout_s=30)
    assert broker.client.leader_id is not None
    return broker.client.leader_id


async def follows(broker: Broker, voter_id: int) -> None:
    """Wait until the leader says that this voter holds all that is committed."""

    async def caught_up() -> bool:
        found = await broker.client.describe_quorum(10_000)
        ends = {voter.replica_id: voter.log_end_offset for voter in found.voters}
        return ends[voter_id] >= found.high_watermark

    deadline = asyncio.get_running_loop().time() + 20
    while not await caught_up():
        assert asyncio.get_running_loop().time() < deadline, "it doesn't catch up"
        await asyncio.sleep(0.05)


__all__ = ["Program", "Voters", "follows", "leader_of", "three_voters", "until"]
