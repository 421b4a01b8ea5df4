"""Run as a script: a controller process on a test's commands; argv[1] is JSON of its options."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from standin import Values  # type: ignore[import-not-found]

from kraftpy.core.config import BrokerConfig
from kraftpy.quorum.controller import ControllerSettings
from kraftpy.quorum.process import ControllerOptions, run_controller


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    voters = {int(voter): (host, port) for voter, (host, port) in given["voters"].items()}
    voter_id = given["voter_id"]
    options = ControllerOptions(
        metadata_dir=Path(given["folder"]),
        voter_id=voter_id,
        machine_type=Values,
        settings=ControllerSettings.of(BrokerConfig()),
        port=voters[voter_id][1],
        voters=voters,
        secret_file=Path(given["secret_file"]),
        snapshot_interval_bytes=given["snapshot_interval_bytes"],
    )
    return run_controller(options)


if __name__ == "__main__":
    sys.exit(main())
