"""What a request wants to see: search, order and page of the lists; and what there is to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

from kraftpy.frozen import NamedTuple
from kraftpy.page.html import NOTHING, Child, Html, tag
from kraftpy.page.layout import note
from kraftpy.page.model import Disks, Ends, Groups, Node, Quorum, Transactions
from kraftpy.page.watch import Seen

SEARCH_MAX_LENGTH = 255
OLD_S = 8.0
"""What is older than this says so."""

T = TypeVar("T")


class Status(NamedTuple):
    """All that the overview shows."""

    node: Node
    quorum: Seen
    disks: Seen
    groups: Seen
    transactions: Seen
    ends: Seen = Seen()

    @property
    def known_quorum(self) -> Quorum | None:
        value: Quorum | None = self.quorum.value
        return value

    @property
    def known_disks(self) -> Disks | None:
        value: Disks | None = self.disks.value
        return value

    @property
    def known_groups(self) -> Groups | None:
        value: Groups | None = self.groups.value
        return value

    @property
    def known_transactions(self) -> Transactions | None:
        value: Transactions | None = self.transactions.value
        return value

    @property
    def record_rates(self) -> dict[str, float]:
        """Records a second, by topic, as far as they are known."""
        value: Ends | None = self.ends.value
        return {} if value is None else value.rates

    @property
    def byte_rates(self) -> dict[str, float]:
        """Bytes a second, by topic, as far as they are known."""
        disks = self.known_disks
        return {} if disks is None else disks.rates


class View:
    """The query of a request; what makes no sense in it is as if it weren't there."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = {key: value for key, value in query.items() if key in _KNOWN and value}
        self.search = query.get("q", "")[:SEARCH_MAX_LENGTH]

    def order(self, what: str, orders: Sequence[str]) -> str:
        """How the list is to be sorted; the first order if it doesn't say."""
        order = self._query.get(what, "")
        return order if order in orders else orders[0]

    def page(self, what: str) -> int:
        """From 0 on."""
        text = self._query.get(f"{what}_page", "")
        return max(0, int(text) - 1) if text.isascii() and text.isdigit() and len(text) < 7 else 0

    def start(self, what: str) -> int:
        """The row that a list in JSON begins with."""
        text = self._query.get(f"{what}_from", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def address(self, **changes: str) -> str:
        """The same page with these changes to its query."""
        query = self._query | changes
        encoded = urlencode({key: value for key, value in query.items() if value})
        return f"?{encoded}" if encoded else "?"

    def matches(self, name: str) -> bool:
        """Whether it is looked for."""
        return self.search.lower() in name.lower()

    def cut(self, what: str, rows: Sequence[T], at_most: int) -> tuple[Sequence[T], Html]:
        """The rows of the page that is wanted, and links to the others."""
        last = max(0, (len(rows) - 1) // at_most)
        page = min(self.page(what), last)
        some = rows[page * at_most : (page + 1) * at_most]
        if not last:
            return some, NOTHING
        links: list[Child] = [
            f"{page * at_most + 1:,} to {page * at_most + len(some):,} of {len(rows):,}"
        ]
        for text, to in (("Previous", page - 1), ("Next", page + 1)):
            if 0 <= to <= last:
                href = self.address(**{f"{what}_page": str(to + 1)})
                links.append(tag("a", text, href=href, data_live="", id=f"{what}-{text}"))
        return some, tag("nav", *links, class_="pages", aria_label=f"Pages of {what}")


_KNOWN = frozenset(
    {"q", "name"}
    | {"topics", "groups", "partitions"}
    | {"topics_page", "groups_page", "partitions_page", "members_page", "shares_page"}
    | {"topics_from", "groups_from", "partitions_from", "members_from", "shares_from"}
    | {"troubled_from"}
)


def as_of(seen: Seen, what: str, old_s: float = OLD_S) -> Html:
    """That something is missing or old, and why; nothing if all is well."""
    reason = f": {seen.problem}" if seen.problem else ""
    if seen.value is None:
        return note(f"{what} can't be told{reason}." if seen.problem else f"{what} is being asked…")
    if seen.problem or seen.age_s > old_s:
        return note(f"{what} as of {seen.age_s:.0f} s ago{reason}.")
    return NOTHING
