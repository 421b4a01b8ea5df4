"""Futures that tell who waits for them at once, without a turn of the event loop.

A commit at three replicas waits twice for a future; what asyncio does between a result and its
callback, a look at all sockets among it, takes longer than what the callback does.

Rules:

* Who gives the result must be done with its own state: the callback may come back to it.
* Errors and cancellations are told in the loop's next turn, as with any future: who fails the waits
  of a role that has ended is in the midst of that.
* What a callback raises is reported as asyncio does it, and not to who gave the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future with one listener that is told at once of a result; others as of any future."""

    _listener: Callable[[asyncio.Future[T]], object] | None = None

    def set_result(self, result: T) -> None:
        super().set_result(result)
        listener, self._listener = self._listener, None
        if listener is not None:
            try:
                listener(self)
            except Exception as error:
                context = {"message": f"{listener!r} failed", "exception": error, "future": self}
                self.get_loop().call_exception_handler(context)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._tell_soon()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._tell_soon()
        return cancelled

    def _tell_soon(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self.get_loop().call_soon(listener, self)

    def listen(self, listener: Callable[[asyncio.Future[T]], object]) -> None:
        """Calls `listener` when there is a result, or an error; in the next turn if it is there."""
        if self.done():
            self.get_loop().call_soon(listener, self)
        else:
            self._listener = listener


def when_done(future: asyncio.Future[T], listener: Callable[[asyncio.Future[T]], object]) -> None:
    """Calls `listener` when the future is done, as soon as its kind of future can."""
    if isinstance(future, PromptFuture):
        future.listen(listener)
    else:
        future.add_done_callback(listener)
