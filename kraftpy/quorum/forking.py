"""What a freshly forked process does before anything else, so that it can't outlive or disturb its
parent; and helpers, forked processes that do one job on a copy of the parent's memory.

Linux only: PR_SET_PDEATHSIG, pidfd. The parent must have no other thread at the time of the fork
(a lock held by one would stay locked for ever in the child) and the signal fires when the *thread*
that forked ends, so fork from the main thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

HELPER_FAILED = 70
"""The exit code of a helper whose job raised."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def become_child(parent_pid: int, name: str, keep_fds: Iterable[int]) -> None:
    """To be called first thing in the child of a fork.

    Asks for SIGKILL when the parent dies, resets signal handling, closes every inherited descriptor
    above 2 except `keep_fds`, and shows as `name` (15 characters count) in `ps` and `top`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before the call above
        os._exit(0)
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(set(keep_fds))
    gc.freeze()  # the collector must not touch, and so copy, the pages shared with the parent


def ignore_group_signals() -> None:
    """For a child that its parent ends: Ctrl-C and many a SIGTERM reach the whole group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def log_fds() -> list[int]:
    """Descriptors of log files, which the child goes on writing."""
    streams = [getattr(handler, "stream", None) for handler in logging.getLogger().handlers]
    fds = []
    for stream in streams:
        try:
            fds.append(stream.fileno())  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            continue
    return fds


class Helper:
    """Runs one job at a time in a forked process, for an event loop.

    The job sees a consistent copy of the memory for the price of a fork (a few ms), takes as long
    as it takes, and dies with its parent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._running: tuple[int, int] | None = None
        self._done: Callable[[int], None] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None

    def start(self, job: Callable[[], int], done: Callable[[int], None]) -> None:
        """Forks; calls `done` on the loop with the exit code: what `job` returned (0 to 69),
        `HELPER_FAILED` if it raised, minus a signal's number if it was killed.

        Raises `OSError` if no process is to be had.
        """
        assert self._running is None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run(parent, job)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._running = pid, pidfd
        self._done = done
        self._loop.add_reader(pidfd, self._ended)

    def stop(self) -> None:
        """Kills the job that runs, if any; its `done` is not called."""
        if self._running is not None:
            os.kill(self._running[0], signal.SIGKILL)
            self._reap()

    def _run(self, parent: int, job: Callable[[], int]) -> None:
        """All that the helper process does; never returns."""
        code = HELPER_FAILED
        try:
            become_child(parent, self._name, ())
            ignore_group_signals()
            code = job()
        except Exception:
            logger.exception("%s failed", self._name)
        finally:
            os._exit(code)

    def _ended(self) -> None:
        done = self._done
        assert done is not None
        done(self._reap())

    def _reap(self) -> int:
        assert self._running is not None
        pid, pidfd = self._running
        self._running = self._done = None
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _close_all_but(keep_fds: set[int]) -> None:
    start = 3
    for fd in sorted(fd for fd in keep_fds if fd >= 3):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
