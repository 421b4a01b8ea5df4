"""A worker's process: `python -m kraftpy.testing.consistency.worker_process TASK`, as JSON.

Rule: the line "stop" on stdin has it finish what it has under way and end with exit code 0; "stay"
has it end no session by itself until the line "go"; "as 7" has it write in transactions as worker 7
does; the end of stdin ends it at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading

from kraftpy.testing.consistency.worker import WHERE_SIGNAL, Task, Worker
from kraftpy.testing.consistency.workloads import PLAYS


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    stopping, staying = threading.Event(), threading.Event()
    faulthandler.register(WHERE_SIGNAL)
    worker = Worker(task, stopping, staying)
    threading.Thread(target=_listen, args=[worker, stopping, staying], daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        PLAYS[task.workload].roles[task.role](worker)
    worker.history.close()
    sys.stdout.flush()
    os._exit(0)  # a client's thread that doesn't end is nothing that the run could learn from


def _listen(worker: Worker, stopping: threading.Event, staying: threading.Event) -> None:
    for line in sys.stdin:
        match line.split():
            case ["stop"]:
                stopping.set()
            case ["stay"]:
                staying.set()
            case ["go"]:
                staying.clear()
            case ["as", identity]:
                worker.identity = int(identity)
    os._exit(1)


if __name__ == "__main__":
    main()
