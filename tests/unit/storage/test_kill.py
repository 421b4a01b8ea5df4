"""kill -9 in the middle of appends: whatever was acknowledged is there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from .support import SMALL, Store, contents, records_of, with_config

CHILD = f"""
    import os, sys, threading
    from pathlib import Path
    from queue import SimpleQueue
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    from storage.support import SMALL, Store, append, batch, with_config
    from kraftpy.storage.flusher import Flusher

    store = Store(Path(sys.argv[1]), with_config(SMALL, flush_messages=1, segment_bytes=4000))
    log = store.log()
    posted = SimpleQueue()
    flusher = Flusher(lambda function, *args: posted.put((function, args)))
    asked = log.log_end_offset

    def acknowledge(offset):
        os.write(1, b"%d\\n" % offset)

    while True:
        for _ in range(3):
            append(log, batch(2, value=os.urandom(50)))
        flusher.request(log, log.log_end_offset, acknowledge)
        store.clock.now_ms += 20_000
        store.tick(high_watermark=0)
        while not posted.empty():
            function, args = posted.get()
            function(*args)
"""


def test_kill_nine(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    acknowledged = 0
    for round_ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(folder)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        lines = 0
        while lines < 20 + 37 * round_:
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            acknowledged = int(line)
            lines += 1
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")[:-1]
        acknowledged = int(rest[-1]) if rest else acknowledged
        child.wait()
        store = Store(folder, with_config(SMALL, flush_messages=1, segment_bytes=4000))
        log = store.log()
        assert log.log_end_offset >= acknowledged
        assert log.recovery_point == log.log_end_offset  # nobody reads what is not on disk
        offsets = [record.offset for record in records_of(contents(log))]
        assert offsets == list(range(log.log_end_offset))
        store.crash()
