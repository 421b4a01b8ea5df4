"""The pages and the JSON, made of facts that are given: what is said of them, whoever named things.

Rendered HTML is read back by a parser that knows what a browser would do with it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from kraftpy.page.as_json import group_json, status_json, topic_json
from kraftpy.page.group_page import group_page
from kraftpy.page.html import Html, link_to, number, shown, size, tag
from kraftpy.page.layout import Page, assets, fragment, framed
from kraftpy.page.model import (
    TRANSACTIONS_TOPIC,
    Broker,
    BrokerProcess,
    ControllerProcess,
    Disks,
    Ends,
    Event,
    Folder,
    Group,
    GroupDetail,
    Groups,
    Member,
    Node,
    Partition,
    Position,
    Quorum,
    Slice,
    Topic,
    TopicDetail,
    Transaction,
    Transactions,
    Trouble,
    Voter,
    problems,
)
from kraftpy.page.overview import overview
from kraftpy.page.rates import UNKNOWN, Trend
from kraftpy.page.topic_page import topic_page
from kraftpy.page.view import Status, View
from kraftpy.page.watch import Seen
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.wording import printable

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a&lt;b&amp;c",
    "javascript:alert(1)",
    "../../etc/passwd",
    "a/b?c=d#e",
    "..",
    ".",
    "",
    "line\nbreak\ttab\0nul",
    "\u202edrowssap",
    "\u2066isolate\u2069",
    "ünï çødé 日本",
    "x" * 5000,
    "</style><b>",
    "%2e%2e%2f",
    "']];(){}",
]


class Read(HTMLParser):
    """What a browser would find: elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.tags}

    def links(self) -> list[str]:
        return [attributes["href"] or "" for name, attributes in self.tags if name == "a"]


class Chips(Read):
    """The classes of elements and the texts, in their order."""

    def __init__(self, text: str) -> None:
        self.parts: list[str | tuple[str | None]] = []
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((dict(attrs).get("class"),))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def partition(number: int, leader: int, isr: list[int], **changes: list[int]) -> Partition:
    moves = {"elr": [], "adding": [], "removing": [], **changes}
    return Partition(number, leader, 1, [1, 2, 3], isr, **moves)


def broker(id_: int, *, fenced: bool = False) -> Broker:
    return Broker(id_, 7, "host", 9090 + id_, f"rack{id_}", fenced, False)


UP = BrokerProcess("up", True, 100, 1, ("host", 9091))
VOTERS = {1: "host:1", 2: "host:2", 3: "host:3"}
FOLLOWS = ControllerProcess("follower", 1, 4, 99, VOTERS, [])


def node(topics: list[Topic] | None = None, **changes: object) -> Node:
    facts: dict[str, object] = {
        "cluster": "c",
        "broker": UP,
        "controller": FOLLOWS,
        "brokers": {id_: broker(id_) for id_ in (1, 2, 3)},
        "topics": {topic.name: topic for topic in topics or []},
        **changes,
    }
    return Node(1, **facts)  # type: ignore[arg-type]


NO_DISKS = Disks({}, {}, {}, frozenset())
NO_TRANSACTIONS = Transactions(0, 0, 0, (), frozenset())


def status(
    of: Node,
    groups: list[Group] | None = None,
    silent: frozenset[int] = frozenset(),
    transactions: Transactions = NO_TRANSACTIONS,
) -> Status:
    disks = Disks(
        {1: [Folder("/data", 1500, 10_000, 9_000)]},
        {1: {(name, 0): 1500 for name in of.topics}},
        dict.fromkeys(of.topics, 4500),
        silent,
    )
    quorum = Quorum(1, 4, 99, 1, tuple(Voter(n, "voter", "host:1", 0, 5) for n in (1, 2, 3)))
    known = Groups({group.id: group for group in groups or []}, silent)
    return Status(of, Seen(quorum), Seen(disks), Seen(known), Seen(transactions))


def read(page: Page, of: Node) -> Read:
    whole = framed(page, of)
    assert fragment(page) in whole
    return Read(whole)


def texts(of: Node) -> list[str]:
    return [problem.text for problem in problems(of, None, None, None)]


# -- names


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_wherever_it_is(name: str) -> None:
    topic = Topic(name, False, 2, [partition(0, -1, [])])
    group = Group(name, "classic", "Stable", 1, 1, {name: 3})
    event = Event(0, "broker", 1, 30, "slow-request", {"client": name})
    of = node([topic, Topic(TRANSACTIONS_TOPIC, True, 2, [])], events=(event,))
    open_one = Transaction(name, "Ongoing", 1, 70_000, 60_000, 2)
    detail = GroupDetail(
        name,
        "consumer",
        "Stable",
        name,
        1,
        1,
        (Member(name, name, name, name, {name: [0]}),),
        (Position(name, 0, 1, 4, name),),
    )
    of_topic = TopicDetail({0: 0}, {0: 5}, {name: name})
    everything = status(of, [group], transactions=Transactions(1, 0, 1, (open_one,), frozenset()))
    for page in (
        overview(everything, View({"q": name})),
        topic_page(everything, topic, Seen(of_topic), View({})),
        group_page(name, Seen(detail), View({})),
    ):
        found = read(page, of)
        assert not found.names & {"img", "iframe", "object", "base"}
        assert [name for name, _ in found.tags].count("script") == 1
        assert [name for name, _ in found.tags].count("style") == 1
        for _, attributes in found.tags:
            assert not any(key.startswith("on") or key == "style" for key in attributes)
        for href in found.links():
            address = urlsplit(urljoin("http://node:9300/topics/x", href))
            assert (address.scheme, address.netloc) == ("http", "node:9300")
        if name and len(name) < 100:
            assert " ".join(printable(name).split()) in found.text
    for value in (
        status_json(everything, View({})),
        topic_json(topic, Seen(of_topic), everything, View({})),
        group_json(name, Seen(detail), View({})),
    ):
        assert json.loads(json.dumps(value)) is not None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_link_leads_back_to_its_name(name: str) -> None:
    address = urlsplit(urljoin("http://node:9300/groups/other", link_to("groups", name, "../")))
    if name in ("", ".", ".."):
        assert address.path == "/groups/"
        assert unquote(address.query) == f"name={name}"
    else:
        assert address.path.startswith("/groups/")
        assert "/" not in address.path.removeprefix("/groups/")
        assert unquote(address.path.removeprefix("/groups/")) == name


def test_characters_that_turn_or_hide_text_are_escaped() -> None:
    assert printable("a\u202eb\0\n") == "a\\u202eb\\x00\\n"
    assert "…" in shown("x" * 5000)
    assert len(shown("x" * 5000)) < 300
    assert tag("p", Html("<b>"), "<b>", title='"') == '<p title="&quot;"><b>&lt;b&gt;</p>'


# -- what is said


def test_a_healthy_cluster_is_called_so() -> None:
    of = node([Topic("orders", False, 2, [partition(0, 1, [1, 2, 3])])])
    found = read(overview(status(of), View({})), of)
    assert "Healthy" in found.text
    assert status_json(status(of), View({}))["healthy"] is True
    assert not problems(of, None, None, None)


@pytest.mark.parametrize(
    ("leader", "isr", "moves", "trouble"),
    [
        (1, [1, 2, 3], {}, Trouble.NONE),
        (1, [1, 2], {}, Trouble.UNDER_REPLICATED),
        (1, [1, 2], {"adding": [3]}, Trouble.MOVING),
        (1, [1], {}, Trouble.UNDER_MIN_ISR),
        (-1, [], {}, Trouble.OFFLINE),
    ],
)
def test_a_partition_is_judged(
    leader: int, isr: list[int], moves: dict[str, list[int]], trouble: Trouble
) -> None:
    judged = partition(0, leader, isr, **moves)
    assert judged.trouble(2) is trouble
    of = node([Topic("orders", False, 2, [judged])])
    assert of.count(trouble) == 1
    assert bool(problems(of, None, None, None)) is (trouble < Trouble.MOVING)
    found = read(overview(status(of), View({})), of)
    assert ("Partitions in trouble" in found.text) is (trouble <= Trouble.UNDER_MIN_ISR)


def test_a_minimum_above_the_replicas_asks_for_all_of_them() -> None:
    assert partition(0, 1, [1, 2, 3]).trouble(5) is Trouble.NONE


def test_trouble_comes_first() -> None:
    topics = [
        Topic("a-good-one", False, 2, [partition(0, 1, [1, 2, 3])]),
        Topic("b-behind", False, 2, [partition(0, 1, [1, 2])]),
        Topic("c-offline", False, 2, [partition(0, -1, [])]),
    ]
    of = node(topics)
    found = read(overview(status(of), View({})), of)
    names = [unquote(each) for each in found.links() if each.startswith("topics/")]
    assert names[-3:] == ["topics/c-offline", "topics/b-behind", "topics/a-good-one"]
    assert found.text.index("no leader: it can't") < found.text.index("replicas out of sync")


def test_a_quorum_without_a_leader_is_said_plainly() -> None:
    cut_off = BrokerProcess("up", False, 12_000, None, ("host", 9091))
    alone = ControllerProcess("candidate", None, 4, 99, VOTERS, [])
    (text,) = texts(node(broker=cut_off, controller=alone))
    assert "no leader" in text
    assert "2 of 3" in text
    assert "12 s ago" in text
    (text,) = texts(node(broker=None, controller=alone))
    assert "no leader" in text
    (text,) = texts(node(broker=cut_off, controller=None))
    assert "no leader" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"silent": ("broker",), "broker": None}, "This node's broker doesn't answer."),
        ({"brokers": {1: broker(1, fenced=True)}}, "Broker 1 is down (fenced)."),
        ({"brokers": {}}, "No broker has registered yet."),
        (
            {"broker": BrokerProcess("starting", False, 0, None, None)},
            "This node's broker is starting.",
        ),
    ],
)
def test_what_is_wrong_with_nodes_is_said(changes: dict[str, object], words: str) -> None:
    assert words in texts(node(**changes))


def test_a_silent_voter_and_a_full_disk_are_said() -> None:
    quorum = Quorum(
        1, 4, 9, 1, (Voter(2, "voter", None, None, None), Voter(3, "voter", "", 0, 9000))
    )
    disks = Disks({2: [Folder("/full", 1, 1000, 50)]}, {}, {}, frozenset({3}))
    found = [problem.text for problem in problems(node(), quorum, disks, None)]
    assert "Voter 2 hasn't been heard of in this term." in found
    assert "Voter 3 hasn't been heard of for 9 s." in found
    assert "Broker 2 has 5 % of its disk left: /full" in found
    assert "Broker 3 doesn't answer this node." in found


def test_an_unknown_number_is_not_shown_as_zero() -> None:
    group = Group("g", "classic", "Stable", 1, None, {"orders": None, "other": 5})
    assert group.lag is None
    assert "not known" in number(None)
    assert size(None) == number(None)
    detail = GroupDetail(
        "g", "classic", "Empty", "", None, 1, (), (Position("t", 0, 5, None, None),)
    )
    assert detail.topics == {"t": None}
    of = node()
    asked = Status(of, Seen(), Seen(), Seen(problem="127.0.0.1:9 says no"), Seen())
    found = read(overview(asked, View({})), of)
    assert "The groups can't be told: 127.0.0.1:9 says no." in found.text
    assert "The quorum is being asked…" in found.text
    assert status_json(asked, View({}))["groups"] is None


def test_a_group_that_falls_behind_is_not_green() -> None:
    topic = Topic("orders", False, 2, [partition(0, 1, [1, 2, 3])])
    of = node([topic])

    def chips(page: Page) -> dict[str, str | None]:
        # A chip's kind, by the text in it.
        found, kind = {}, None
        for part in Chips(framed(page, of)).parts:
            if isinstance(part, str):
                found.setdefault(part, kind)
            else:
                kind = part[0]
        return found

    for trend, words, kind in (
        (Trend(250.4, True), "Stable, lag rises", "chip warn"),
        (Trend(250.4, False), "Stable", "chip ok"),
        (UNKNOWN, "Stable", "chip ok"),
    ):
        group = Group("g", "classic", "Stable", 1, 1, {"orders": 3}, trend)
        seen = status(of, [group])
        for page in (
            overview(seen, View({})),
            topic_page(seen, topic, Seen(TopicDetail({0: 0}, {0: 5}, {})), View({})),
        ):
            assert chips(page)[words] == kind
        shown_growth = "-" if trend.per_s is None else "+250/s"
        assert shown_growth in read(overview(seen, View({})), of).text
        (listed,) = status_json(seen, View({}))["groups"]
        assert (listed["lag_per_s"], listed["lag_rises"]) == trend
    empty = status(of, [Group("g", "classic", "Empty", 1, 0, {"orders": 3}, Trend(9, True))])
    assert chips(overview(empty, View({})))["Empty"] == "chip quiet"


def test_rates_are_shown_and_what_is_not_known_is_not_zero() -> None:
    topics = [Topic(name, False, 2, [partition(0, 1, [1, 2, 3])]) for name in ("fast", "idle")]
    of = node([*topics, Topic("new", False, 2, [partition(0, 1, [1, 2, 3])])])
    seen = status(of)
    disks = replace(seen.known_disks or NO_DISKS, rates={"fast": 2048.0, "idle": 0.0})
    seen = seen._replace(ends=Seen(Ends({"fast": 1234.5, "idle": 0.0})), disks=Seen(disks))
    found = status_json(seen, View({}))
    rates = {
        each["topic"]: (each["records_per_s"], each["bytes_per_s"]) for each in found["topics"]
    }
    assert rates == {"fast": (1234.5, 2048.0), "idle": (0.0, 0.0), "new": (None, None)}
    assert (found["records_per_s"], found["bytes_per_s"]) == (1234.5, 2048.0)
    assert status_json(status(of), View({}))["records_per_s"] is None
    text = read(overview(seen, View({"topics": "records"})), of).text
    assert "1,234" in text
    assert text.index(" fast ") < text.index(" idle ") < text.index(" new ")


def test_a_share_group_is_as_far_as_it_is_done() -> None:
    """What is done above its offset isn't in its lag; which member reads what means nothing."""
    members = tuple(Member(each, None, each, "h", {"orders": [0]}) for each in ("one", "two"))
    positions = (
        Position("orders", 0, 5, 20, None, 9),
        Position("orders", 1, 3, None, None),
    )
    detail = GroupDetail("g", "share", "Stable", "simple", 4, 1, members, positions)
    found = read(group_page("g", Seen(detail), View({})), node())
    assert "Partition Offset End Lag" in found.text
    assert "Done above the offset" in found.text
    assert "orders 0 5 20 9 6" in found.text
    assert "Shared partitions" not in found.text
    told = group_json("g", Seen(detail), View({}))
    assert (told["type"], told["lag"]) == ("share", None)
    assert [(each["lag"], each["done_above"]) for each in told["partitions"]] == [
        (9, 6),
        (None, None),
    ]


def test_whose_which_keys_are_is_shown() -> None:
    half = SLOTS // 2
    members = tuple(Member(each, None, each, "h", {"orders": [0]}) for each in ("one", "two"))
    detail = GroupDetail(
        *("g", "classic", "Stable", "kraftpy-cooperative-sticky", None, 1, members),
        (Position("orders", 0, 5, 9, "one"),),
        (
            Slice("orders", 0, 0, half - 1, "one", None),
            Slice("orders", 0, half, half + 9, None, "one"),
            Slice("orders", 0, half + 10, SLOTS - 1, "two", None),
        ),
    )
    found = read(group_page("g", Seen(detail), View({})), node())
    assert "orders 0 0-32767 50.0% one h" in found.text
    assert "orders 0 32768-32777 0.0% draining from one h" in found.text
    assert "orders 0 5 9 4 shared" in found.text
    told = group_json("g", Seen(detail), View({}))
    assert told["shares_total"] == 3
    assert told["shares"][1] == {
        "topic": "orders",
        "partition": 0,
        "first_slot": half,
        "last_slot": half + 9,
        "member": None,
        "draining": "one",
    }


def test_what_holds_back_committed_records_is_shown() -> None:
    of = node([Topic(TRANSACTIONS_TOPIC, True, 2, [])])
    late = Transaction("billing-1", "PrepareCommit", 2, 130_000, 60_000, 3)
    young = Transaction("billing-2", "Ongoing", 3, 15_999, 60_000, 1)
    known = Transactions(1_200, 1, 1, (late, young), frozenset({3}))
    everything = status(of, transactions=known)
    found = read(overview(everything, View({})), of)
    assert "1,200 open, 1 wait for markers, 1 late" in found.text
    assert "billing-1 PrepareCommit, late 2 min 60 s 3 2" in found.text
    assert "billing-2 Ongoing 15 s 60 s 1 3" in found.text
    assert "Broker 3 doesn't answer; what it coordinates isn't known." in found.text
    assert "1 transaction isn't over though its timeout is" in found.text
    told = status_json(everything, View({}))
    assert told["transactions"]["oldest"][0]["id"] == "billing-1"
    assert (told["transactions"]["open"], told["transactions"]["silent"]) == (1200, [3])
    assert not told["healthy"]


def test_transactions_are_shown_where_there_are_any() -> None:
    of = node()
    assert "Transactions" not in read(overview(status(of), View({})), of).text
    of = node([Topic(TRANSACTIONS_TOPIC, True, 2, [])])
    found = read(overview(status(of), View({})), of)
    assert "None is open for as long as 10 seconds." in found.text
    asked = status(of)._replace(transactions=Seen(problem="127.0.0.1:9 says no"))
    found = read(overview(asked, View({})), of)
    assert "The transactions can't be told: 127.0.0.1:9 says no." in found.text
    assert status_json(asked, View({}))["transactions"] is None


def test_events_of_one_kind_and_second_are_one_line() -> None:
    def event(number: int, time_ms: int, name: str) -> Event:
        return Event(time_ms, "broker", number, 30, name, {"partition": f"orders-{number}"})

    events = [event(4, 7001, "isr-shrunk"), *(event(n, 5000 + n, "isr-shrunk") for n in (3, 2, 1))]
    of = node(events=(*events, event(0, 5000, "broker-fenced")))
    found = read(overview(status(of), View({})), of)
    assert found.text.count("isr-shrunk") == 2
    assert "orders-4" in found.text
    assert "orders-3 and 2 more of this kind in the same second" in found.text
    assert found.text.count("broker-fenced") == 1
    assert len(status_json(status(of), View({}))["events"]) == 5


# -- lists


def many_groups(count: int) -> list[Group]:
    return [Group(f"g{n:05}", "classic", "Stable", 1, 1, {"t": n}) for n in range(count)]


def test_groups_are_sorted_searched_and_cut() -> None:
    of = node()
    everything = status(of, many_groups(1000))

    def listed(**query: str) -> list[str]:
        found = read(overview(everything, View(query)), of)
        return [each.removeprefix("groups/") for each in found.links() if "groups/" in each]

    assert listed()[:2] == ["g00999", "g00998"]
    assert listed(groups="name")[:2] == ["g00000", "g00001"]
    assert len(listed()) == 50
    assert listed(groups="name", groups_page="2")[0] == "g00050"
    assert listed(groups="name", groups_page="999")[0] == "g00950"
    assert listed(q="G0012") == [f"g{n:05}" for n in range(129, 119, -1)]
    assert listed(groups="<b>", groups_page="-1")[:1] == ["g00999"]
    assert status_json(everything, View({"q": "g0012"}))["groups_total"] == 10


def test_no_answer_is_large_however_large_the_cluster_is() -> None:
    names = [f"{n:05}-{'n' * 200}" for n in range(10_000)]
    of = node([Topic(name, False, 2, [partition(0, -1, [])]) for name in names])
    groups = [
        Group(f"{n}{'g' * 1000}", "classic", "Stable", 1, 1, dict.fromkeys(names[:300], 1))
        for n in range(1000)
    ]
    everything = status(of, groups)
    assert len(framed(overview(everything, View({})), of)) < 300_000
    assert len(json.dumps(status_json(everything, View({})))) < 1_000_000
    wide = Topic("wide", False, 2, [partition(n, 1, [1, 2, 3]) for n in range(10_000)])
    detail = TopicDetail(*(dict.fromkeys(range(10_000), 10**12) for _ in range(2)), {})
    assert len(framed(topic_page(everything, wide, Seen(detail), View({})), of)) < 300_000
    assert len(json.dumps(topic_json(wide, Seen(detail), everything, View({})))) < 1_000_000
    positions = tuple(Position("wide", n, 10**12, 10**12, "m") for n in range(10_000))
    members = tuple(
        Member("m" * 100, None, "c" * 100, "h", {"wide": list(range(100))}) for _ in range(1000)
    )
    one = GroupDetail("g", "consumer", "Stable", "uniform", 1, 1, members, positions)
    assert len(framed(group_page("g", Seen(one), View({})), of)) < 300_000
    assert len(json.dumps(group_json("g", Seen(one), View({})))) < 1_000_000


def test_a_list_in_json_says_how_it_goes_on() -> None:
    of = node([Topic(f"{n:05}", False, 1, [partition(0, 1, [1, 2, 3])]) for n in range(10_000)])
    everything = status(of)
    names: list[str] = []
    query: dict[str, str] = {}
    while True:
        answer = status_json(everything, View(query))
        names += [each["topic"] for each in answer["topics"]]
        assert answer["topics_total"] == 10_000
        if not answer["next"]:
            break
        (following,) = answer["next"]
        query = dict([following.split("=")])
    assert names == sorted(of.topics)


def test_the_policy_allows_style_and_script_of_the_page_and_nothing_else() -> None:
    policy = dict(each.split(" ", 1) for each in assets().policy.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert "unsafe" not in assets().policy
    of = node()
    found = read(overview(status(of), View({})), of)
    assert {attributes.get("src") for name, attributes in found.tags if name == "script"} == {None}
    rows = [attributes for name, attributes in found.tags if name == "th"]
    assert rows
    assert all(attributes.get("scope") in ("col", "row") for attributes in rows)
    levels = [name for name, _ in found.tags if name in ("h1", "h2", "h3")]
    assert levels[0] == "h1"
    assert levels.count("h1") == 1
