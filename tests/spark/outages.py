"""A broker that is away for longer than a client asks that has never reached it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kraftpy.spark.settings import ClientSettings
from kraftpy.testing import Broker

_logger = logging.getLogger("kraftpy.spark")
_IN_VAIN = 2 * (ClientSettings("").retries + 1)


class _Counter(logging.Handler):
    """Tells when the broker was asked often enough."""

    def __init__(self) -> None:
        super().__init__()
        self.enough = threading.Event()
        self._left = _IN_VAIN

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= "asking again" in record.getMessage()
        if not self._left:
            self.enough.set()


@contextmanager
def outage(broker: Broker, behind_it: Callable[[], None]) -> Iterator[None]:
    """The broker is down until the block has asked it twice as often as it would at first.

    About 8 seconds. Then it is started again, and `behind_it` called.
    """
    counter = _Counter()

    def bring_back() -> None:
        if counter.enough.wait(60):
            broker.restart()
            behind_it()

    helper = threading.Thread(target=bring_back)
    broker.kill()
    _logger.addHandler(counter)
    helper.start()
    try:
        yield
    finally:
        counter.enough.set()
        helper.join()
        _logger.removeHandler(counter)
