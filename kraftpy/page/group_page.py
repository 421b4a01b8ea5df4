"""One group: who is in it, and how far behind it is in each partition."""

from __future__ import annotations

from kraftpy.client.group_info import SHARE
from kraftpy.page.html import (
    NOTHING,
    Child,
    Column,
    Html,
    ids,
    join,
    link,
    number,
    shown,
    small,
    table,
    tag,
)
from kraftpy.page.layout import Page, figures, note
from kraftpy.page.model import GroupDetail, Member, Position, Slice, ranked, total_lag
from kraftpy.page.overview import group_state, lag_rate, part
from kraftpy.page.view import View, as_of
from kraftpy.page.watch import Seen
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.wording import counted

ROWS = 200
ROOT = "../"
TOPICS = 5
PARTITIONS = 12
ORDERS = ("lag", "name")


def group_page(name: str, seen: Seen, view: View) -> Page:
    """The page of `/groups/NAME`; `seen` has its `GroupDetail`."""
    heading = join(["Group ", shown(name)])
    detail: GroupDetail | None = seen.value
    remark = as_of(seen, "The group")
    if detail is None:
        return Page(f"Group {name}", heading, remark, ROOT, trail="groups")
    body = join(
        [
            _figures(detail),
            remark,
            _members(detail, view),
            _shares(detail, view),
            _topics(detail),
            _positions(detail, view),
        ]
    )
    return Page(f"Group {name}", heading, body, ROOT, trail="groups")


def _figures(detail: GroupDetail) -> Html:
    state, kind = group_state(detail.state, detail.trend)
    lag_kind = "warn" if detail.trend.rises else ""
    protocol = join(
        [detail.type, shown(detail.assignor)] if detail.assignor else [detail.type], ", "
    )
    pairs: list[tuple[str, Child, str]] = [
        ("State", state, kind if kind in ("warn", "bad") else ""),
        ("Lag", number(total_lag(detail.topics)), lag_kind),
        ("Lag growth", lag_rate(detail.trend), lag_kind),
        ("Members", number(len(detail.members)), ""),
        ("Protocol", protocol, ""),
        ("Coordinator", f"broker {detail.coordinator}", ""),
    ]
    if detail.epoch is not None:
        pairs.append(("Epoch", number(detail.epoch), ""))
    return figures(pairs)


def _members(detail: GroupDetail, view: View) -> Html:
    if not detail.members:
        return part("Members", note("Nobody is in this group now."))
    some, pages = view.cut("members", detail.members, ROWS)
    columns = [
        Column("Member"),
        Column("Host"),
        Column("Partitions", numeric=True),
        Column("Reads"),
    ]
    rows: list[list[Child]] = [
        [
            join([shown(each.client_id), small(shown(each.instance_id or each.id))]),
            each.host,
            number(sum(map(len, each.partitions.values()))),
            _reads(each),
        ]
        for each in some
    ]
    return part("Members", table("Members", columns, rows), pages)


def _reads(member: Member) -> Html:
    parts = [
        join([link("topics", topic, ROOT), f" {ids(numbers, PARTITIONS)}"])
        for topic, numbers in list(member.partitions.items())[:TOPICS]
    ]
    more = len(member.partitions) - len(parts)
    if more > 0:
        parts.append(Html(f"and {counted(more, 'topic')} more"))
    return join(parts, "; ") if parts else tag("span", "nothing", class_="quiet")


def _shares(detail: GroupDetail, view: View) -> Html:
    """Who has which keys of the partitions that members share."""
    if not detail.shares:
        return NOTHING
    some, pages = view.cut("shares", detail.shares, ROWS)
    columns = [
        Column("Partition"),
        Column("Slots"),
        Column("Part of the keys", numeric=True),
        Column("Member"),
    ]
    names = {each.id: each for each in detail.members}
    rows: list[list[Child]] = [
        [
            join([link("topics", each.topic, ROOT), f" {each.partition}"]),
            f"{each.first_slot}-{each.last_slot}",
            f"{(each.last_slot - each.first_slot + 1) / SLOTS:.1%}",
            _holder(each, names),
        ]
        for each in some
    ]
    return part("Shared partitions", table("Shared partitions", columns, rows), pages)


def _holder(share: Slice, members: dict[str, Member]) -> Html:
    if share.member is not None or share.draining is None:
        return _member(share.member, members)
    return join([tag("span", "draining from ", class_="quiet"), _member(share.draining, members)])


def _topics(detail: GroupDetail) -> Html:
    if len(detail.topics) < 2:
        return NOTHING
    rows: list[list[Child]] = [
        [link("topics", topic, ROOT), number(lag)] for topic, lag in ranked(detail.topics)[:ROWS]
    ]
    return part("Topics", table("Topics", [Column("Topic"), Column("Lag", numeric=True)], rows))


def _positions(detail: GroupDetail, view: View) -> Html:
    if not detail.positions:
        return part("Partitions", note("It reads no partition and has committed no offset."))
    order = view.order("partitions", ORDERS)
    found = list(detail.positions)
    if order == "lag":
        found.sort(key=lambda each: -1 if each.lag is None else each.lag, reverse=True)
    some, pages = view.cut("partitions", found, ROWS)

    def column(label: str, by: str, numeric: bool = False) -> Column:
        address = view.address(partitions=by, partitions_page="")
        direction = "ascending" if by == "name" else "descending"
        return Column(label, numeric, address, direction if by == order else None)

    columns = [
        column("Partition", "name"),
        Column("Offset", numeric=True),
        Column("End", numeric=True),
        column("Lag", "lag", numeric=True),
        Column("Done above the offset", numeric=True) if detail.type == SHARE else Column("Member"),
    ]
    names = {each.id: each for each in detail.members}
    shared = {(each.topic, each.partition) for each in detail.shares}
    rows: list[list[Child]] = [
        [
            join([link("topics", each.topic, ROOT), f" {each.partition}"]),
            number(each.offset),
            number(each.end),
            number(each.lag),
            _last_cell(detail, each, shared, names),
        ]
        for each in some
    ]
    missing = sum(each.offset is None for each in detail.positions)
    remark = (
        note(
            f"{counted(missing, 'partition')} without a committed offset; the lag leaves them out."
        )
        if missing
        else None
    )
    return part("Partitions", table("Partitions", columns, rows), pages, remark)


def _last_cell(
    detail: GroupDetail, each: Position, shared: set[tuple[str, int]], names: dict[str, Member]
) -> Child:
    """Who reads the partition, or, where anybody may, how much of it is done out of turn."""
    if detail.type == SHARE:
        return number(each.done_above)
    if (each.topic, each.partition) in shared:
        return tag("span", "shared", class_="quiet")
    return _member(each.member, names)


def _member(id_: str | None, members: dict[str, Member]) -> Html:
    member = members.get(id_ or "")
    if member is None:
        return tag("span", "nobody", class_="quiet")
    return join([shown(member.client_id), " ", tag("span", member.host, class_="quiet")])
