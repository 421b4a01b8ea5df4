"""The metadata level: which commands and fields may be in the log, as all nodes know it.

During a rolling upgrade the nodes of a cluster are of two releases. A command that only one of them
knows would be carried out by some and not by others, whose metadata would differ for good. So:

* Each release knows the levels up to `LEVEL`. A command or field that is new belongs to a level of
  its own, and is only proposed once the cluster has reached that (`commands.codec.level_of`).
* The level is part of the state. `raise_level` raises it; it never falls. A new cluster begins with
  the newest level: the controller that leads proposes it before anything else. A cluster that there
  is keeps its level until an operator raises it (as Kafka's metadata.version: KIP-584, KIP-778), so
  that all nodes can go back to the release before. The controller that leads refuses it until every
  voter, every broker that is registered and whoever follows has said on a connection that it knows
  that level.
* A node that meets in the log what is above what it knows stops and says so: it would go on with
  another state than the others. So does one that is given a snapshot of such a level.

The levels:

0. What there was before levels. A field that isn't known is passed over, as those releases do.
1. A field that isn't known stops a node, as a command does. Snapshots name the level.
2. Brokers serve transactions: the leader of any partition knows what to do with their batches.
   Features have levels of their own (`update_features`), and `transaction.version` begins with 2.
   Once: from there on it's what an operator makes of it.
3. Whoever led last is forgotten when it isn't a replica any more, and no reassignment is changed or
   cancelled so that nobody in sync would stay (`elections`, `reassignment_commands`).
4. A topic may be the twin of another (`twins`). `kraftpy.cooperative` begins with 1, once, as
   `transaction.version` did.
5. Users have SCRAM credentials (`security_commands`), and there are ACLs (`acl_commands`). What a
   client changes names the version of the ACLs that allowed it.
6. Clients have quotas (`quota_commands`), and there are delegation tokens (`token_commands`).
7. Brokers serve share groups. `share.version` begins with 1, once, as `transaction.version` did. A
   registration says when it was, and where the node's metrics are.
8. Brokers serve cooperative fetches. `kraftpy.cooperative` goes to 2, once, unless it was lowered
   to 0.
"""

from __future__ import annotations

from kraftpy import __version__

LEVEL = 8
"""The highest level that this release knows."""

UNKNOWN_FIELDS_STOP = 1
"""The level from which on a field that isn't known is one of a later release."""

TRANSACTIONS = 2
"""The level from which on brokers serve transactions."""

REMOVED_ARE_FORGOTTEN = 3
"""The level from which on only a replica is the last known leader, and only they can stay."""

TWINS = 4
"""The level from which on topics have twins, and brokers know what cooperative consumption is."""

SECURITY = 5
"""The level from which on the metadata says who may log in, and do what."""

QUOTAS_AND_TOKENS = 6
"""The level from which on the metadata says how much of a broker clients may have, and who has a
token."""

SHARE_GROUPS = 7
"""The level from which on brokers serve share groups."""

REGISTRY = 7
"""The level from which on a registration says when it was, and where metrics are."""

COOPERATIVE_FETCH = 8
"""The level from which on brokers serve cooperative fetches."""

COOPERATIVE_BEGINS = 1
"""What `kraftpy.cooperative` begins with at level 4, also in later releases."""

COOPERATIVE_FETCH_BEGINS = 2
"""What `kraftpy.cooperative` goes to at level 8, also in later releases."""

TRANSACTION_VERSION = "transaction.version"
"""The feature that says by which version of the protocol clients are to write (KIP-890)."""

TRANSACTION_VERSION_BEGINS = 2
"""What level 2 begins with, also in later releases: they read old journals to the same end."""


SHARE_VERSION = "share.version"
"""The feature that says whether there are share groups (KIP-932)."""

SHARE_VERSION_BEGINS = 1
"""What level 7 begins with, also in later releases."""


class LaterReleaseError(Exception):
    """A later release put something into the metadata that this one doesn't know; what to do."""

    @classmethod
    def met(cls, what: str) -> LaterReleaseError:
        """Somebody met `what` in the metadata."""
        return cls(
            f"the metadata has {what} that kraftpy {__version__} doesn't know: the other nodes run "
            "a later release. Upgrade this node to theirs and start it again"
        )

    @classmethod
    def met_level(cls, level: int) -> LaterReleaseError:
        """The same of a level as a whole."""
        return cls.met(
            f"level {level}, and this release knows {LEVEL}: there may be something in it"
        )
