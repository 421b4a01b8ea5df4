"""`stream`: loads one after the other, each of what has come since.

Rules:

* The lake is the checkpoint. A run's plan is frozen and its files are committed as those of any
  load, so a stream that died goes on exactly, and nobody keeps a second account of offsets.
* What is there now (`available_now`) is where each partition ended at the start; the stream ends
  when the lake has it. Otherwise a run begins every so often, or at once when one took longer.
* A new partition is read from where it begins.
* A stream that is told to stop does so behind the run under way. If it was to load what is there
  and hasn't, that is an error: who waits for the lake to have it is told that it doesn't.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.load import Loader, Outcome

_LAKE, _LATEST = Bound("lake"), Bound("latest")


class StoppedError(Exception):
    """A stream was told to stop before the lake had what was there when it began."""


def stream(loader: Loader, *, every_s: float | None, stop: threading.Event) -> Iterator[Outcome]:
    """The runs, each when it has ended; `every_s` None: until the lake has what is there now.

    Raises StoppedError, and what `Loader.plan_load` and `Loader.run` do.
    """
    target = loader.log_ends() if every_s is None else None
    for begun in loader.unfinished():
        if stop.is_set():
            break
        yield loader.run(begun)
    while not stop.is_set():
        began = time.monotonic()
        plan = loader.plan_load(_LAKE, _LATEST, "stream", until=target)
        if plan is not None:
            yield loader.run(plan)
        elif every_s is None:
            return
        if every_s is not None:
            stop.wait(max(0.0, began + every_s - time.monotonic()))
    if every_s is None and loader.plan_load(_LAKE, _LATEST, "stream", until=target) is not None:
        raise StoppedError
