"""The Raft back-end: `RaftVoter`, built on pysyncobj's elections and commit rule.

Importing this package imports pysyncobj; a quorum of one voter does without.
"""

from kraftpy.quorum.raft import encryption  # noqa: F401 - before pysyncobj
from kraftpy.quorum.raft.voter import RaftVoter

__all__ = ["RaftVoter"]
