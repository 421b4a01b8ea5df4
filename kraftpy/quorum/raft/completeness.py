"""Whether a voter has all that it ever acknowledged, and so may vote and stand.

Rules:

* A voter that began with nothing may have lost its folder, and what it had acknowledged. Until it
  has received all that a leader has committed it neither votes nor stands, however long that takes.
* Only where all voters say that they have begun with nothing there is nothing to lose, and they
  elect: that is a quorum's first start. Those that don't hear of all the others for `BLANK_WAIT_S`
  go by those they hear, while their logs are empty.
* An operator who has nothing else can have it vote all the same (`forced`).
* In its pre-votes such a voter counts rounds below zero: it is known by that, also to voters of
  earlier releases, to which a round is just a number.
"""

from __future__ import annotations

import logging

from kraftpy.quorum.replica import Replica

logger = logging.getLogger(__name__)

BLANK_WAIT_S = 2.0
"""How long voters that have begun with nothing wait for word of one that hasn't."""


class Completeness:
    """Of the voter `voter_id`, which has `others` beside it."""

    def __init__(self, voter_id: int, others: int, replica: Replica, *, forced: bool) -> None:
        self._others = others
        self._replica = replica
        self._complete: dict[int, bool] = {}
        """What other voters said of themselves."""
        self.is_blank = replica.is_incomplete()
        if self.is_blank and forced:
            self.is_blank = False
            logger.warning(
                "voter %d votes though its folder was empty, as kraftpy.quorum.force.vote says: "
                "changes that only it and voters that are gone had confirmed are lost",
                voter_id,
            )

    def said(self, voter_id: int, round_number: int) -> None:
        """Another voter asked for a pre-vote in that round of its."""
        self._complete[voter_id] = round_number >= 0

    def committed(self, voter_id: int) -> None:
        """Another voter leads, and has committed something."""
        self._complete[voter_id] = True

    def completed(self) -> None:
        """This voter has all that a leader has committed."""
        self._replica.completed()
        self.is_blank = False

    def round_number(self, count: int) -> int:
        """The number of this voter's round of pre-votes, if it's the one after so many others."""
        return -1 - count if self.is_blank else count

    def may_stand(self, last_index: int, leaderless_s: float) -> bool:
        """Whether it takes part in elections.

        `last_index` is where its log ends, `leaderless_s` how long it has heard of no leader.
        """
        if not self.is_blank:
            return True
        if any(self._complete.values()):
            return False
        return self._all_are_blank or (last_index == 0 and leaderless_s > BLANK_WAIT_S)

    def may_vote(self, candidates: int, last_index: int, leaderless_s: float) -> bool:
        """As `may_stand`, for a candidate whose log ends with the index `candidates`."""
        if not self.may_stand(last_index, leaderless_s):
            return False
        return not self.is_blank or candidates == 0 or self._all_are_blank

    @property
    def _all_are_blank(self) -> bool:
        return len(self._complete) == self._others and not any(self._complete.values())
