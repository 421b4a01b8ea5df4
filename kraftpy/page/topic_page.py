"""One topic: its partitions, who reads it, what was set on it."""

from __future__ import annotations

from kraftpy.page.html import (
    NOTHING,
    Child,
    Column,
    Html,
    ids,
    join,
    link,
    number,
    rate,
    shown,
    size,
    size_rate,
    table,
    tag,
)
from kraftpy.page.layout import Page, figures, note
from kraftpy.page.model import Disks, Groups, Partition, Topic, TopicDetail, Trouble
from kraftpy.page.overview import group_chip, part, trouble_chip
from kraftpy.page.view import Status, View, as_of
from kraftpy.page.watch import Seen

ROWS = 200
ROOT = "../"
READERS = 100
ORDERS = ("trouble", "number")


def topic_page(status: Status, topic: Topic, seen: Seen, view: View) -> Page:
    """The page of `/topics/NAME`; `seen` has its `TopicDetail`."""
    detail: TopicDetail | None = seen.value
    disks = status.known_disks
    body = join(
        [
            _figures(topic, detail, status),
            _partitions(topic, detail, disks, view),
            as_of(seen, "Where the partitions start and end"),
            _readers(topic, status.known_groups),
            _settings(detail),
        ]
    )
    heading = join(["Topic ", shown(topic.name)])
    return Page(f"Topic {topic.name}", heading, body, ROOT, trail="topics")


def _figures(topic: Topic, detail: TopicDetail | None, status: Status) -> Html:
    disks = status.known_disks
    records = None
    if detail is not None and len(detail.starts) == len(detail.ends) == len(topic.partitions):
        records = sum(detail.ends[n] - detail.starts[n] for n in detail.ends)
    worst = topic.worst
    kind = {Trouble.OFFLINE: "bad", Trouble.UNDER_MIN_ISR: "bad", Trouble.UNDER_REPLICATED: "warn"}
    return figures(
        [
            ("State", worst.text, kind.get(worst, "")),
            ("Partitions", number(len(topic.partitions)), ""),
            ("Replicas in sync", f"{topic.in_sync:,} of {topic.replicas:,}", ""),
            ("min.insync.replicas", number(topic.min_isr), ""),
            ("Offsets from start to end", number(records), ""),
            ("On disk", size(disks.topics.get(topic.name) if disks is not None else None), ""),
            ("Records/s", rate(status.record_rates.get(topic.name)), ""),
            ("Written/s", size_rate(status.byte_rates.get(topic.name)), ""),
        ]
    )


def _partitions(topic: Topic, detail: TopicDetail | None, disks: Disks | None, view: View) -> Html:
    order = view.order("partitions", ORDERS)
    found = list(topic.partitions)
    if order == "trouble":
        found.sort(key=lambda each: each.trouble(topic.min_isr))
    some, pages = view.cut("partitions", found, ROWS)

    def column(label: str, by: str) -> Column:
        address = view.address(partitions=by, partitions_page="")
        return Column(label, False, address, "ascending" if by == order else None)

    columns = [
        column("Partition", "number"),
        column("State", "trouble"),
        Column("Leader", numeric=True),
        Column("Replicas"),
        Column("In sync"),
        Column("Start", numeric=True),
        Column("End", numeric=True),
        Column("Size", numeric=True),
    ]
    rows: list[list[Child]] = [
        [
            tag("b", each.number),
            trouble_chip(each.trouble(topic.min_isr)),
            number(each.leader) if each.leader >= 0 else "none",
            _replicas(each),
            ids(each.isr) or "none",
            number(None if detail is None else detail.starts.get(each.number)),
            number(None if detail is None else detail.ends.get(each.number)),
            size(_size(topic, each, disks)),
        ]
        for each in some
    ]
    return part("Partitions", table("Partitions", columns, rows), pages)


def _replicas(partition: Partition) -> Html:
    parts: list[Child] = [ids(partition.replicas)]
    for what, brokers in (
        ("to", partition.adding),
        ("from", partition.removing),
        ("eligible", partition.elr),
    ):
        if brokers:
            parts.append(tag("span", f"{what} {ids(brokers)}", class_="quiet"))
    return join(parts, " ")


def _size(topic: Topic, partition: Partition, disks: Disks | None) -> int | None:
    """One replica's: the leader's if it is known."""
    if disks is None:
        return None
    return disks.size_of(
        (topic.name, partition.number), [partition.leader, *partition.isr, *partition.replicas]
    )


def _readers(topic: Topic, groups: Groups | None) -> Html:
    if groups is None:
        return NOTHING
    found = [
        (each, each.topics[topic.name])
        for each in groups.groups.values()
        if each.topics is not None and topic.name in each.topics
    ]
    if not found:
        return part("Groups", note("No group has committed offsets of this topic."))
    found.sort(key=lambda each: -1 if each[1] is None else each[1], reverse=True)
    columns = [Column("Group"), Column("State"), Column("Lag in this topic", numeric=True)]
    rows: list[list[Child]] = [
        [link("groups", group.id, ROOT), group_chip(group.state, group.trend), number(lag)]
        for group, lag in found[:READERS]
    ]
    more = len(found) - len(rows)
    return part(
        "Groups", table("Groups", columns, rows), note(f"and {more:,} more") if more else None
    )


def _settings(detail: TopicDetail | None) -> Html:
    if detail is None or not detail.settings:
        return NOTHING
    rows: list[list[Child]] = [
        [tag("code", name), tag("code", value)] for name, value in sorted(detail.settings.items())
    ]
    return part(
        "Settings",
        table("Settings", [Column("Setting"), Column("Value")], rows),
        aside="what was set on the topic itself",
    )
