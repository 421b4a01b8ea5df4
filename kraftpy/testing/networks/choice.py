"""Which network a run gets: namespaces where they work, by trying, or else proxies.

`python -m kraftpy.testing.networks.choice` tries, and says on stdout what is in the way.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from dataclasses import dataclass

from kraftpy.testing import isolation
from kraftpy.testing.networks.hub import Hub, NetworkError

CHOICES = ("auto", "namespaces", "proxy")
_TRY_TIMEOUT_S = 20.0
_CUT_S = 0.3
_ANSWER_S = 5.0
_PORT = 9092
_THIS = "kraftpy.testing.networks.choice"


@dataclass(frozen=True, slots=True)
class Choice:
    """`name` of the network, and in words why it is that one."""

    name: str
    why: str

    def text(self) -> str:
        """Both, for people."""
        what = "network namespaces" if self.name == "namespaces" else "TCP proxies"
        return f"{what} between the nodes ({self.why})"


PROXIES = Choice("proxy", "it was asked for")


def choose(wanted: str) -> Choice:
    """The network to take for one of `CHOICES`. Raises NetworkError if it can't be had."""
    if wanted == "proxy":
        return PROXIES
    missing = in_the_way()
    if not missing:
        return Choice("namespaces", "they work here" if wanted == "auto" else "it was asked for")
    if wanted == "namespaces":
        raise NetworkError(f"network namespaces don't work here: {missing}")
    return Choice("proxy", f"network namespaces don't work here: {missing}")


def enter(choice: Choice) -> None:
    """Puts this process, from now on, where clients of such a network have to be.

    Raises NetworkError. To be called before there are threads or sockets.
    """
    if choice.name == "namespaces":
        try:
            isolation.isolate(isolation.CLONE_NEWNET)
        except OSError as error:
            raise NetworkError(error.strerror) from None


def in_the_way() -> str:
    """Why there can be no network of namespaces here; empty if there can. It takes a moment."""
    try:
        done = subprocess.run(  # noqa: S603 - the command is ours
            [sys.executable, "-m", _THIS],
            capture_output=True,
            text=True,
            timeout=_TRY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a trial of them didn't end within {_TRY_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[-1] if lines else f"a trial of them ended with {done.returncode}"


async def _try() -> None:
    """Makes two nodes' namespaces, sees a connection, cuts it, and sees that it is cut."""
    hub = Hub()
    try:
        hub.serve()
        address = (hub.add(2), _PORT)
        hub.add(1)
        with hub.within(2, lambda: socket.create_server(address)) as server:
            await asyncio.to_thread(hub.within, 1, lambda: _dial(address, _ANSWER_S))
            hub.answer({"stall": [[1, 2]]})
            try:
                await asyncio.to_thread(hub.within, 1, lambda: _dial(address, _CUT_S))
            except TimeoutError:
                pass
            else:
                raise NetworkError("a link that was cut still carries packets")
            hub.answer({"heal": True})
            server.close()
    finally:
        hub.close()


def _dial(address: tuple[str, int], timeout_s: float) -> None:
    socket.create_connection(address, timeout=timeout_s).close()


def _main() -> None:
    try:
        enter(Choice("namespaces", ""))
        asyncio.run(_try())
    except (NetworkError, OSError) as error:
        print(error)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    _main()
