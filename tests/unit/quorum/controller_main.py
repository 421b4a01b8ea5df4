"""Run as a script: a process that starts controllers, as a broker does, on a test's commands.

One JSON object a line on stdin, one answer a line on stdout:

    {"spawn": {"metadata_dir": ..., "port": ...}}   {"pid": ..., "port": ..., "secret": ...}
    {"stop": true}                                  {"exit_code": ...}
    {"watch": true}                                 {"exit_code": ...} once it has ended
    {"run": {...}}                                  becomes the controller; exits with its code

Beside `ControllerOptions`' own there is the option `metadata`: the machine is the real one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from standin import Values  # type: ignore[import-not-found]

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.quorum.controller import ControllerSettings
from kraftpy.quorum.process import (
    ControllerHandle,
    ControllerOptions,
    run_controller,
    spawn_controller,
)


def options(given: dict[str, Any]) -> ControllerOptions:
    given = {k: Path(v) if k in ("metadata_dir", "secret_file") else v for k, v in given.items()}
    voters = {int(id_): tuple(address) for id_, address in given.pop("voters", {}).items()}
    machine_type = MetadataState if given.pop("metadata", False) else Values
    given.setdefault("voter_id", 1)
    return ControllerOptions(
        machine_type=machine_type,
        settings=ControllerSettings.of(BrokerConfig()),
        voters=voters,
        **given,
    )


async def watched(handle: ControllerHandle) -> int:
    ended = asyncio.get_running_loop().create_future()
    handle.watch(asyncio.get_running_loop(), ended.set_result)
    code: int = await ended
    return code


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    handle: ControllerHandle | None = None
    for line in sys.stdin:
        match json.loads(line):
            case {"spawn": given}:
                handle = spawn_controller(options(given))
                answer: Any = {
                    "pid": handle.pid,
                    "port": handle.port,
                    "secret": handle.credentials.secret.dialing.decode(),
                }
            case {"stop": True}:
                assert handle is not None
                answer = {"exit_code": handle.stop()}
            case {"watch": True}:
                assert handle is not None
                answer = {"exit_code": asyncio.run(watched(handle))}
            case {"run": given}:
                sys.exit(run_controller(options(given)))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
