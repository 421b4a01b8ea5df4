"""What a freshly forked process does before anything else, so that it can't outlive or disturb its
parent.

Linux only: PR_SET_PDEATHSIG, pidfd.  The parent must have no other thread at the time of the fork
(a lock held by one would stay locked for ever in the child) and the signal fires when the *thread*
that forked ends, so fork from the main thread.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
from collections.abc import Iterable

__all__ = ["become_child"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def become_child(parent_pid: int, name: str, keep_fds: Iterable[int]) -> None:
    """Call first thing in the child of a fork.

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


def _close_all_but(keep_fds: set[int]) -> None:
    start = 3
    for fd in sorted(fd for fd in keep_fds if fd >= 3):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
