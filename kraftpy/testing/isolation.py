"""Linux namespaces for this process: what it does to networks stays among its own children.

Rules:

* Whoever may (CAP_SYS_ADMIN) just takes them. Anybody else becomes root of a user namespace first,
  in which there is nothing but this one user; files still belong to that user, nobody gets rights
  over anything outside.
* Children inherit them, and they are gone with the last of these processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000

_HINTS = {
    errno.EPERM: "a container needs CAP_SYS_ADMIN, a user kernel.unprivileged_userns_clone=1 and"
    " kernel.apparmor_restrict_unprivileged_userns=0, where there are such settings",
    errno.ENOSPC: "user.max_user_namespaces or user.max_net_namespaces is too small",
}

_LIBC = ctypes.CDLL(None, use_errno=True)


def isolate(namespaces: int) -> None:
    """Puts this process into new namespaces (`CLONE_NEW...`). Raises OSError.

    Without CAP_SYS_ADMIN it must have one thread only. Call it early: sockets that are there
    already, and other threads, stay where they are.
    """
    if _unshare(namespaces) == 0:
        return
    uid, gid = os.getuid(), os.getgid()
    if _unshare(CLONE_NEWUSER | namespaces):
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            raise OSError(number, "a process with several threads can't change its user namespace")
        raise OSError(
            number, f"namespaces aren't allowed here: {_HINTS.get(number, os.strerror(number))}"
        )
    # user_namespaces(7): without CAP_SETGID outside, groups are mapped only once this is given up.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def own_network() -> int:
    """Gives this thread alone a network namespace of its own; a descriptor of that.

    Raises OSError.
    """
    if _unshare(CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"a network namespace can't be made: {os.strerror(number)}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    """Moves this thread alone into the network namespace of a descriptor. Raises OSError."""
    if _LIBC.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"a network namespace can't be entered: {os.strerror(number)}")


def _unshare(flags: int) -> int:
    result: int = _LIBC.unshare(flags)
    return result
