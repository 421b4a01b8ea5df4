"""The cleaning process: `python -m kraftpy.storage.cleaning JOB PARENT-PID`; prints its result.

It dies with the broker that started it, and is nice: what clients wait for comes first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from kraftpy.storage.cleaning.cleaner import Cleaner, Uncleanable
from kraftpy.storage.cleaning.job import EXIT_FAILED, EXIT_UNCLEANABLE, CleaningJob
from kraftpy.storage.files import Files

_PR_SET_PDEATHSIG = 1
_NICENESS = 10


def main(arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(arguments[1]):  # it died before the call above
        return EXIT_FAILED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    os.nice(_NICENESS)
    try:
        result = Cleaner(CleaningJob.from_text(arguments[0]), Files()).run()
    except Uncleanable as error:
        sys.stdout.write(str(error))
        return EXIT_UNCLEANABLE
    except OSError as error:
        sys.stdout.write(str(error))
        return EXIT_FAILED
    sys.stdout.write(result.to_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
