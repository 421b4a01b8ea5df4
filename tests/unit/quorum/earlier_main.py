"""As `controller_main`, of the release before metadata had levels, as far as that differs.

That release knows no `raise_level`; it reads and says nothing of levels. Whoever has its sources
gives their folder in KRAFTPY_EARLIER, and the tests run those instead of this.
"""

from __future__ import annotations

from typing import Any

import controller_main  # type: ignore[import-not-found]

from kraftpy.core.metadata import commands, levels, snapshots, state
from kraftpy.quorum import controller, links, listener
from kraftpy.quorum.raft import peers
from kraftpy.quorum.raft.messages import Kind


def introduction(self: listener._Broker, other: Any) -> Any:
    """The same to voters and brokers."""
    return say_to_brokers(self, None)


def authenticated(self: peers._Dialed, introduction: Any) -> None:
    """Whatever the other says of levels is passed over."""
    dial(self, introduction[:5])


def propose(self: controller.ActiveController, envelope: bytes) -> Any:
    """It judges no levels."""
    return self._quorum.propose(envelope)


def received(self: peers.Peers, link: peers._Link, message: Any) -> None:
    """A kind of message that it doesn't know."""
    if message[0] == Kind.KNOWS:
        raise ValueError("a message of unknown kind")
    take(self, link, message)


say_to_brokers = listener._Broker.introduction
dial = peers._Dialed.authenticated
take = peers.Peers.received

known = [each for each in commands.COMMANDS if each is not commands.RaiseLevel]
levels.LEVEL = state.LEVEL = snapshots.LEVEL = 0  # type: ignore[misc]
state.COMMANDS = commands.Codec(known)  # type: ignore[misc]
snapshots._WITH_LEVEL = snapshots._WITHOUT_LEVEL
links.with_level = lambda number: number
controller.ActiveController.propose = propose  # type: ignore[method-assign]
listener._Broker.introduction = introduction  # type: ignore[method-assign]
peers._Dialed.authenticated = authenticated  # type: ignore[method-assign]
peers.Peers.received = received  # type: ignore[method-assign]

if __name__ == "__main__":
    controller_main.main()
