"""`kraftpy pipeline`: jobs on Spark that move topics in bulk.

Rules:

* Each command has --dry-run, which plans, reads no record and changes nothing.
* stdout has the result only (text, or one JSON document); Spark's progress bar is on stderr, and
  only on a terminal.
* Exit code 0 says that the work is done, all of it; also when there was nothing to do.
* Spark, Arrow and NumPy are imported when a command runs: its help works without them.
"""

from __future__ import annotations

import click

from kraftpy.cli.pipeline.audits import audit
from kraftpy.cli.pipeline.lakes import compact, runs
from kraftpy.cli.pipeline.loads import load, rerun, stream
from kraftpy.cli.pipeline.mirrors import mirror
from kraftpy.cli.pipeline.reports import report
from kraftpy.cli.pipeline.writes import write


@click.group()
def command() -> None:
    """Load topics into a lake of Parquet files and work on it, with Spark (kraftpy[spark])."""


for _job in (load, stream, rerun, write, mirror, compact, runs, audit, report):
    command.add_command(_job)
