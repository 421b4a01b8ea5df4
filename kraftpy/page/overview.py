"""The cluster on one page: what is wrong, then its parts, then events."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from kraftpy.page.html import (
    NOTHING,
    Child,
    Column,
    Html,
    ago,
    chip,
    duration,
    ids,
    join,
    link,
    number,
    rate,
    shown,
    size,
    size_rate,
    small,
    table,
    tag,
)
from kraftpy.page.layout import Page, figures, note, verdict
from kraftpy.page.model import (
    NO_ANSWER,
    TRANSACTIONS_TOPIC,
    Broker,
    Disks,
    Event,
    Group,
    Level,
    Node,
    Topic,
    Transaction,
    Trouble,
    problems,
    ranked,
)
from kraftpy.page.rates import Trend
from kraftpy.page.view import Status, View, as_of
from kraftpy.wording import counted

ROWS = 50
TROUBLED = 10
EVENTS = 30
DISKS_OLD_S = 60.0
TOPICS_IN_ROW = 3
TOPIC_ORDERS = ("trouble", "name", "partitions", "size", "records", "bytes")
GROUP_ORDERS = ("lag", "name", "members", "growth")
_KINDS = {
    Trouble.OFFLINE: "bad",
    Trouble.UNDER_MIN_ISR: "bad",
    Trouble.UNDER_REPLICATED: "warn",
    Trouble.MOVING: "quiet",
    Trouble.NONE: "ok",
}
_GROUP_KINDS = {"Stable": "ok", "Empty": "quiet", "Dead": "bad", NO_ANSWER: "bad"}


def overview(status: Status, view: View) -> Page:
    """The page of `/`."""
    found = problems(
        status.node, status.known_quorum, status.known_disks, status.known_transactions
    )
    cluster = status.node.cluster
    heading: list[Child] = ["Cluster"]
    if cluster:
        heading += [" ", tag("span", cluster, class_="id")]
    body = join(
        [
            verdict(found),
            _figures(status),
            _brokers(status),
            _quorum(status),
            _troubled(status.node),
            _topics(status, view),
            _groups(status, view),
            _transactions(status),
            _events(status.node),
        ]
    )
    bad = any(problem.level is Level.BAD for problem in found)
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    title = ("✖ " if bad else "▲ ") + count if found else "Healthy"
    return Page(title, join(heading), body, search=view.search)


def part(heading: str, *children: Child, aside: str = "", found: bool = False) -> Html:
    """A section under its heading; the rows of what can be `found` are searched while one types."""
    identity = heading.lower().replace(" ", "-")
    head = [tag("h2", heading, id=identity)]
    if aside:
        head.append(tag("span", aside, class_="quiet"))
    return tag(
        "section",
        tag("div", *head, class_="heading"),
        *children,
        class_="part",
        aria_labelledby=identity,
        data_found="" if found else None,
    )


def trouble_chip(trouble: Trouble, count: int = 0) -> Html:
    """A state of partitions; of so many of them, if that is said."""
    return chip(f"{count:,} {trouble.text}" if count else trouble.text, _KINDS[trouble])


def group_state(state: str, trend: Trend) -> tuple[str, str]:
    """The state of a group and its kind; one that falls behind isn't well."""
    if state == "Stable" and trend.rises:
        return "Stable, lag rises", "warn"
    # All that aren't here pass.
    return state, _GROUP_KINDS.get(state, "warn")


def group_chip(state: str, trend: Trend) -> Html:
    """The state of a group."""
    return chip(*group_state(state, trend))


def lag_rate(trend: Trend) -> Html:
    """How fast a lag grows or shrinks."""
    if trend.per_s is None:
        return number(None)
    per_s = round(trend.per_s)
    return Html(f"{per_s:+,}/s" if per_s else "0")


def _figures(status: Status) -> Html:
    node, disks, groups = status.node, status.known_disks, status.known_groups
    silent = disks.silent if disks is not None else ()
    up = sum(not each.fenced and each.id not in silent for each in node.brokers.values())
    offline = node.count(Trouble.OFFLINE)
    behind = node.count(Trouble.UNDER_REPLICATED) + node.count(Trouble.UNDER_MIN_ISR)
    lag: Child = number(None)
    if groups is not None:
        lags = [group.lag for group in groups.groups.values()]
        unknown = lags.count(None)
        if unknown < len(lags) or not lags:
            lag = number(sum(each for each in lags if each is not None))
        if unknown:
            lag = join([lag, small(f"{counted(unknown, 'group')} not known")])
    on_disk = size(None if disks is None else sum(disks.topics.values()))
    written = _total(status.byte_rates)
    if written is not None:
        on_disk = join([on_disk, small(size_rate(written), " written")])
    return figures(
        [
            ("Brokers up", f"{up} of {len(node.brokers)}", "bad" if up < len(node.brokers) else ""),
            ("Topics", number(len(node.topics)), ""),
            ("Partitions", number(node.partition_count), ""),
            ("Offline", number(offline), "bad" if offline else ""),
            ("Under-replicated", number(behind), "warn" if behind else ""),
            ("On disk", on_disk, ""),
            ("Records/s", rate(_total(status.record_rates)), ""),
            ("Groups", number(None if groups is None else len(groups.groups)), ""),
            ("Lag of all groups", lag, ""),
        ]
    )


def _total(rates: dict[str, float]) -> float | None:
    return sum(rates.values()) if rates else None


# -- brokers


def _brokers(status: Status) -> Html:
    node, disks = status.node, status.known_disks
    leads, replicas = node.seats()
    columns = [
        Column("Broker"),
        Column("State"),
        Column("Leads", numeric=True),
        Column("Replicas", numeric=True),
        Column("Data"),
    ]
    rows: list[list[Child]] = [
        [
            _broker_name(broker, node),
            _broker_state(broker, disks),
            number(leads[broker.id]),
            number(replicas[broker.id]),
            _folders(broker, disks),
        ]
        for broker in node.brokers.values()
    ]
    body = table("Brokers", columns, rows) if rows else note("None is known.")
    return part("Brokers", body, as_of(status.disks, "What lies on the disks", DISKS_OLD_S))


def _broker_name(broker: Broker, node: Node) -> Html:
    facts = [f"{broker.host}:{broker.port}"]
    if broker.rack:
        facts.append(f"rack {broker.rack}")
    facts.append(f"epoch {broker.epoch}")
    own = " this node" if broker.id == node.id else None
    return join(
        [
            tag("b", broker.id),
            tag("span", own, class_="quiet") if own else None,
            small(" · ".join(facts)),
        ]
    )


def _broker_state(broker: Broker, disks: Disks | None) -> Html:
    if broker.fenced:
        return chip("down (fenced)", "bad")
    if broker.shutting_down:
        return chip("shutting down", "warn")
    if disks is not None and broker.id in disks.silent:
        return chip("no answer", "bad")
    return chip("up", "ok")


def _folders(broker: Broker, disks: Disks | None) -> Html:
    folders = [] if disks is None or broker.fenced else disks.folders.get(broker.id, [])
    if not folders:
        return number(None)
    used = sum(folder.used_bytes for folder in folders)
    lines = [
        small(
            tag("bdi", folder.path),
            ": ",
            join([size(folder.used_bytes), ", "]) if len(folders) > 1 else None,
            size(folder.free_bytes),
            " of ",
            size(folder.total_bytes),
            " free",
        )
        for folder in folders
    ]
    return join([size(used), *lines])


# -- the quorum


def _quorum(status: Status) -> Html:
    quorum = status.known_quorum
    if quorum is None:
        return part("Quorum", as_of(status.quorum, "The quorum"))
    if not quorum.voters and quorum.leader is None:
        return part("Quorum", note("This node isn't in touch with a controller that leads."))
    leads = "no leader" if quorum.leader is None else f"node {quorum.leader} leads"
    aside = f"{leads}, term {quorum.term:,}, log committed up to {quorum.committed:,}"
    columns = [
        Column("Voter"),
        Column("Role"),
        Column("Lag", numeric=True),
        Column("Heard of", numeric=True),
    ]
    is_known = quorum.leader is not None and quorum.told_by == quorum.leader
    rows: list[list[Child]] = [
        [
            join([tag("b", voter.id), small(voter.address) if voter.address else None]),
            chip(
                voter.role,
                {"leader": "ok", "candidate": "warn", "observer": "warn"}.get(voter.role, "quiet"),
            ),
            number(voter.lag),
            ago(voter.heard_ms) if is_known else number(None),
        ]
        for voter in quorum.voters
    ]
    return part(
        "Quorum",
        table("Voters of the metadata quorum", columns, rows),
        as_of(status.quorum, "The quorum"),
        aside=aside,
    )


# -- topics


def _troubled(node: Node) -> Html:
    """The partitions that are of no use to some or all: what an operator looks for first."""
    found = node.troubled(Trouble.UNDER_MIN_ISR)
    if not found:
        return NOTHING
    columns = [
        Column("Partition"),
        Column("State"),
        Column("Leader"),
        Column("Out of sync"),
        Column("In sync"),
    ]
    rows: list[list[Child]] = [
        [
            join([link("topics", topic.name), f" {partition.number}"]),
            trouble_chip(partition.trouble(topic.min_isr)),
            number(partition.leader) if partition.leader >= 0 else "none",
            ids(each for each in partition.replicas if each not in partition.isr) or "none",
            ids(partition.isr) or "none",
        ]
        for topic, partition in found[:TROUBLED]
    ]
    more = len(found) - len(rows)
    return part(
        "Partitions in trouble",
        table("Partitions in trouble", columns, rows),
        note(f"and {more:,} more; their topics have them") if more else None,
        aside=f"{len(found):,} of {node.partition_count:,} can't be written to as they should",
    )


def _topics(status: Status, view: View) -> Html:
    node, disks = status.node, status.known_disks
    found = [topic for topic in node.topics.values() if view.matches(topic.name)]
    order = view.order("topics", TOPIC_ORDERS)
    sizes = {} if disks is None else disks.topics
    records, written = status.record_rates, status.byte_rates
    if order == "records":
        found.sort(key=lambda topic: -records.get(topic.name, -1))
    elif order == "bytes":
        found.sort(key=lambda topic: -written.get(topic.name, -1))
    elif order == "size":
        found.sort(key=lambda topic: -sizes.get(topic.name, 0))
    elif order == "partitions":
        found.sort(key=lambda topic: -len(topic.partitions))
    elif order == "trouble":
        found.sort(key=lambda topic: (topic.worst, topic.internal))
    some, pages = view.cut("topics", found, ROWS)

    def column(label: str, by: str, numeric: bool = False) -> Column:
        direction = "ascending" if by in ("name", "trouble") else "descending"
        address = view.address(topics=by, topics_page="")
        return Column(label, numeric, address, direction if by == order else None)

    columns = [
        column("Topic", "name"),
        column("State", "trouble"),
        column("Partitions", "partitions", numeric=True),
        Column("In sync", numeric=True),
        Column("Leaders"),
        column("On disk", "size", numeric=True),
        column("Records/s", "records", numeric=True),
        column("Written/s", "bytes", numeric=True),
    ]
    rows = [
        [
            *_topic_row(topic, sizes.get(topic.name)),
            rate(records.get(topic.name)),
            size_rate(written.get(topic.name)),
        ]
        for topic in some
    ]
    if rows:
        body = join([table("Topics", columns, rows), pages])
    else:
        body = note(
            "No topic's name has that in it." if node.topics else "There are no topics yet."
        )
    aside = f"{len(found):,} of {len(node.topics):,}" if view.search else ""
    return part("Topics", body, aside=aside, found=True)


def _topic_row(topic: Topic, size_bytes: int | None) -> list[Child]:
    name = [link("topics", topic.name)]
    if topic.internal:
        name.append(tag("span", " internal", class_="quiet"))
    state = [
        trouble_chip(trouble, count)
        for trouble, count in sorted(topic.counts.items())
        if trouble is not Trouble.NONE
    ]
    return [
        join(name),
        join(state, " ") if state else trouble_chip(Trouble.NONE),
        number(len(topic.partitions)),
        f"{topic.in_sync:,} of {topic.replicas:,}",
        ids(topic.leaders, 6) or "none",
        size(size_bytes),
    ]


# -- groups


def _groups(status: Status, view: View) -> Html:
    groups = status.known_groups
    remark = as_of(status.groups, "The groups")
    if groups is None:
        return part("Groups", remark)
    if groups.silent:
        who = f"Broker {ids(sorted(groups.silent))} doesn't answer"
        remark = join([remark, note(f"{who}; of its groups no more is known than their names.")])
    found = [group for group in groups.groups.values() if view.matches(group.id)]
    order = view.order("groups", GROUP_ORDERS)
    if order == "lag":
        found.sort(key=lambda group: -1 if group.lag is None else group.lag, reverse=True)
    elif order == "members":
        found.sort(key=lambda group: group.members or 0, reverse=True)
    elif order == "growth":
        found.sort(key=lambda group: group.trend.per_s or 0, reverse=True)
    some, pages = view.cut("groups", found, ROWS)

    def column(label: str, by: str, numeric: bool = False) -> Column:
        direction = "ascending" if by == "name" else "descending"
        address = view.address(groups=by, groups_page="")
        return Column(label, numeric, address, direction if by == order else None)

    columns = [
        column("Group", "name"),
        Column("State"),
        column("Members", "members", numeric=True),
        Column("Coordinator", numeric=True),
        column("Lag", "lag", numeric=True),
        column("Lag growth", "growth", numeric=True),
        Column("Lag by topic"),
    ]
    rows = [_group_row(group) for group in some]
    if rows:
        body = join([table("Groups", columns, rows), pages])
    else:
        body = note(
            "No group's name has that in it." if groups.groups else "There are no groups yet."
        )
    aside = f"{len(found):,} of {len(groups.groups):,}" if view.search else ""
    return part("Groups", body, remark, aside=aside, found=True)


def _group_row(group: Group) -> list[Child]:
    return [
        join([link("groups", group.id), small(f"{group.type} protocol")]),
        group_chip(group.state, group.trend),
        number(group.members),
        number(group.coordinator),
        number(group.lag),
        lag_rate(group.trend),
        lag_by_topic(group.topics),
    ]


def lag_by_topic(topics: dict[str, int | None] | None) -> Html:
    """The topics with the largest lags."""
    if topics is None:
        return number(None)
    if not topics:
        return tag("span", "nothing committed", class_="quiet")
    parts = [join([shown(name), " ", number(lag)]) for name, lag in ranked(topics)[:TOPICS_IN_ROW]]
    if len(topics) > TOPICS_IN_ROW:
        parts.append(Html(f"{len(topics) - TOPICS_IN_ROW} more"))
    return join(parts, ", ")


# -- transactions


def _transactions(status: Status) -> Html:
    if TRANSACTIONS_TOPIC not in status.node.topics:
        return NOTHING
    known, remark = status.known_transactions, as_of(status.transactions, "The transactions")
    if known is None:
        return part("Transactions", remark)
    aside = f"{known.open:,} open, {known.preparing:,} wait for markers, {known.late:,} late"
    if known.silent:
        who = f"Broker {ids(sorted(known.silent))} doesn't answer"
        remark = join([remark, note(f"{who}; what it coordinates isn't known.")])
    columns = [
        Column("Transactional id"),
        Column("State"),
        Column("Open for", numeric=True),
        Column("Timeout", numeric=True),
        Column("Partitions", numeric=True),
        Column("Coordinator", numeric=True),
    ]
    rows = [_transaction_row(each) for each in known.oldest]
    if rows:
        body = table("The transactions that are open for longest", columns, rows)
    else:
        body = note("None is open for as long as 10 seconds.")
    return part("Transactions", body, remark, aside=aside)


def _transaction_row(each: Transaction) -> list[Child]:
    kind = "warn" if each.is_late else "quiet"
    return [
        shown(each.id),
        chip(f"{each.state}, late" if each.is_late else each.state, kind),
        duration(each.open_ms),
        duration(each.timeout_ms),
        number(each.partitions),
        number(each.coordinator),
    ]


# -- events


def _events(node: Node) -> Html:
    if not node.events:
        return NOTHING
    # A cause has many effects at once: a broker that dies takes its replicas with it.
    alike: dict[tuple[int, str], list[Event]] = {}
    for event in node.events:
        alike.setdefault((event.time_ms // 1000, event.name), []).append(event)
    rows: list[list[Child]] = [
        [
            _time(events[0].time_ms),
            chip(events[0].name, _event_kind(max(event.level for event in events))),
            _happened(events),
        ]
        for events in list(alike.values())[:EVENTS]
    ]
    columns = [Column("Time (UTC)"), Column("Event"), Column("Facts")]
    return part("Events of this node", table("Events", columns, rows), aside="the latest first")


def _happened(events: Sequence[Event]) -> Html:
    """The facts of the first one, and how many more there are."""
    facts = _facts(events[0].fields)
    if len(events) == 1:
        return facts
    return join([facts, small(f"and {len(events) - 1} more of this kind in the same second")])


def _facts(fields: dict[str, str]) -> Html:
    return join(
        [
            join([tag("span", key, class_="quiet"), " ", tag("bdi", value)])
            for key, value in fields.items()
        ],
        " ",
    )


def _time(time_ms: int) -> Html:
    then = time.gmtime(time_ms / 1000)
    text = time.strftime("%b %d %H:%M:%S", then)
    return tag("time", text, datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", then))


def _event_kind(level: int) -> str:
    if level >= logging.ERROR:
        return "bad"
    return "warn" if level >= logging.WARNING else "quiet"
