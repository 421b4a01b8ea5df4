"""kraftpy with a slow disk or a defect that tests switch on.

`python -m tests.dashboards.breakable` is `kraftpy`, but while the folder that KRAFTPY_BREAKABLE
names has

* `slow-disk`: every fsync takes `SLOW_S` longer;
* `defect`: the handler of ListGroups fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kraftpy.protocol.api import ApiKey
from kraftpy.server import handlers
from kraftpy.server.dispatch import _handlers

FOLDER = "KRAFTPY_BREAKABLE"
SLOW_DISK = "slow-disk"
DEFECT = "defect"
SLOW_S = 1.2


def _break(folder: Path) -> None:
    slow_disk, defect = folder / SLOW_DISK, folder / DEFECT
    fdatasync = os.fdatasync

    def slow_fdatasync(fd: Any) -> None:
        fdatasync(fd)
        if slow_disk.exists():
            time.sleep(SLOW_S)

    os.fdatasync = slow_fdatasync
    handlers.load()
    spec = _handlers[ApiKey.LIST_GROUPS]
    list_groups: Callable[..., Any] = spec.function

    def failing(*args: Any) -> Any:
        if defect.exists():
            raise RuntimeError("the defect that a test asked for")
        return list_groups(*args)

    spec.function = failing


if __name__ == "__main__":
    from kraftpy.cli import main

    _break(Path(os.environ[FOLDER]))
    main()
