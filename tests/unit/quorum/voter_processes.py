"""A quorum of controller processes that can be killed, and the check of what they left behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.snapshot import recover
from kraftpy.testing.networks.ports import free_ports
from tests import warm
from tests.waiting import until

from .stack import Broker
from .standin import Values

SCRIPT = Path(__file__).with_name("voter_main.py")
SECRET = b"0123456789abcdef0123456789abcdef"


class VoterProcesses:
    """Voters 1 to `count`, each with a folder and a log below `folder`."""

    def __init__(
        self, folder: Path, *, count: int = 3, snapshot_interval_bytes: int = 4 << 20
    ) -> None:
        self.folder = folder
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self.secret_file = folder / "secret"
        self.secret_file.write_bytes(SECRET)
        self.ports = dict(enumerate(free_ports(count), 1))
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> VoterProcesses:
        for voter in self.ports:
            self.start(voter)
        return self

    def __exit__(self, *_: object) -> None:
        for voter in list(self.running):
            self.kill(voter)

    def start(self, voter: int) -> None:
        options = {
            "folder": str(self.voter_folder(voter)),
            "voter_id": voter,
            "voters": {v: ("127.0.0.1", port) for v, port in self.ports.items()},
            "secret_file": str(self.secret_file),
            "snapshot_interval_bytes": self._snapshot_interval_bytes,
        }
        with self.log(voter).open("ab") as log:
            self.running[voter] = warm.popen(
                [sys.executable, SCRIPT, json.dumps(options)], stderr=log
            )

    async def start_and_join(self, voter: int) -> None:
        """Start a voter and wait until it's connected with all others that run."""
        others = len(self.running)
        before = self.log(voter).stat().st_size
        self.start(voter)
        await until(
            lambda: self.log(voter).read_bytes()[before:].count(b"is connected") >= others,
            timeout_s=20,
        )

    def kill(self, voter: int) -> None:
        process = self.running.pop(voter)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        """All at once, as far as one process can."""
        for process in self.running.values():
            os.kill(process.pid, signal.SIGKILL)
        for voter in list(self.running):
            self.kill(voter)

    def stop(self, voter: int) -> int:
        """Stop in order; returns the exit code."""
        process = self.running.pop(voter)
        process.terminate()
        return process.wait(timeout=20)

    def limit_files(self, voter: int, size_bytes: int) -> None:
        """No file of this voter's may grow beyond so much from now on."""
        limits = (size_bytes, size_bytes)
        resource.prlimit(self.running[voter].pid, resource.RLIMIT_FSIZE, limits)

    async def all_equal(self, broker: Broker) -> None:
        """Wait until all voters hold all that is committed."""
        await broker.client.barrier(20_000)
        behind = True
        async with asyncio.timeout(20):
            while behind:
                voters = (await broker.client.describe_quorum(20_000)).voters
                behind = len({voter.log_end_offset for voter in voters}) > 1

    def wait(self, voter: int) -> int:
        """Wait for a voter that stops by itself; returns the exit code."""
        return self.running.pop(voter).wait(timeout=20)

    def voter_folder(self, voter: int) -> Path:
        return self.folder / str(voter)

    def snapshots(self, voter: int) -> list[Path]:
        return sorted(self.voter_folder(voter).glob("*.checkpoint"))

    def log(self, voter: int) -> Path:
        return self.folder / f"{voter}.log"

    def broker(self, node_id: int = 42) -> Broker:
        return Broker(self.ports, node_id=node_id, secret=SECRET)

    def values_on_disk(self, voter: int) -> list[Any]:
        """The state that a stopped voter's folder gives."""
        journal, state, _, _ = recover(self.voter_folder(voter), Values, FileLayer(), replay=True)
        journal.close()
        assert isinstance(state.machine, Values)
        return state.machine.values
