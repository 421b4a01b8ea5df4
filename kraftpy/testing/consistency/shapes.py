"""What the `value` of an operation looks like, by the operation's name `f`.

Rules: one table, `SHAPES`; a workload may use any name in it. A completion that has nothing to add
to its invocation may leave its value out (null), except where it brings what was read. Keys name
partitions (`topic-0`), register names and the like; values written are unique by key.

| f | invocation | ok |
|---|---|---|
| send | [[key, value], ...] | [[key, value, offset or null], ...] |
| poll | null | {key: [[offset, value], ...]} |
| assign | {key: first offset, or null if that isn't known} | |
| subscribe | [topic, ...] | |
| drain | null | {key: [start, end]}: this process has read the log from start to its end |
| commit | {group, key, offset, expected?, epoch?} | |
| fetch | {group, key} | {group, key, offset}: -1 for none |
| commit-all | {group, offset}: the offset for all partitions, in one request | |
| fetch-all | {group} | {group, offsets}: each one that some partition has, -1 for none |
| create, alter | {name, config} | |
| delete | {name} | |
| describe | {name} | {name, config}: null if there is none |
| stored | {node, key} | {node, key, batches}: each [first offset, last, epoch, bytes, CRC] |
| epochs | {node, key, epochs}: each [epoch, first offset], as a replica notes them | |
| led | {key, epoch, leader, source}: who says so | |
| journals | {nodes}: two whose metadata journals are compared | |
| assigned | {group, keys, epoch, slices?, instance?, member?}: a static member, its member id | |
| revoked, lost, gone | {group, keys, slices?}; `gone` is noted by who has killed the process | |
| ended | {detail}: this process ended when it shouldn't have, or didn't when it was told to | |
| calm, uproar | {group}: in between, nothing happens to it but that its coordinator moves | |
| settled | {group, keys, members, ms}: keys by member id, as the coordinator says after so long | |
| unsettled | {group, detail}: what it was like when time was up | |
| ends | {group, ends}: the end of each key's log, which the group had the time to process | |
| left | {group, members}: who is in it when all have been told to leave | |
| crashed | {by}: a fault has ended this process | |
| frozen | {ms}: for so long this process stood still until now | |
| processed | {group, key, first, last, of?, slot?, polled?} | |
| claim | {group, epoch, records, transaction?}: what is done of each key, as [slot, offset] | |
| progress | {group, key} | {group, key, stable, claims}: -1 for none; [slot, last, offset, last] |
| lease | {group, since?} | {group, since?, runs, ...}: of each key [first, last, number] |
| hold | {group, link} | {group, link, epochs}: in which the other end leads, by key |
| acknowledge | {group, said, link?}: of each key [offset, kind] | {..., errors}: of keys refused |
| starts | {group} | {group, starts}: of each key where it begins, and how much isn't done (or -1) |
| txn | [["append", key, value] or ["r", key, null], ...] | reads with the list that was read |
| stable | null | {key: [last stable offset, end]}: how far committed records can be read |

`slices` are for members that share partitions: of each partition those that come or go, as first
and last slots. `keys` are partitions of which the member had nothing before, or has nothing now.

`processed` may say `of` which key a record is (empty: none), in which slot, and when the poll began
that brought it.

A `lease` gives a member of a share group records; `number` says how often they were delivered. Who
makes requests by itself knows which `node` gave them, by which connection (`link`), for how long
(`lock_ms`), and, where that is certain, in which `epochs` that node led; what comes of a library
may have been asked for at any time `since` then; since the poll before, it may have `gave_up`
waiting for an answer. Kinds of `acknowledge` are the protocol's: 1 accepts, 2 releases, 3 rejects,
4 renews.

`commit` with `expected` is compare-and-set. A `commit`, `create`, `alter` or `delete` that failed
because of what the register held says so with the value {"saw": held} or {"saw_not": not held}.
A `send` that ended with info may say which of its records were acknowledged all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[str, Any], str]
"""(type of the event, its value) -> what is wrong with it, empty if nothing is."""

KEY_CHARS_MAX = 300
NO_OFFSET = -1
_RUN_MAX = 100_000
"""So many records are leased at a time, at most."""


def _is_offset(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_key(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= KEY_CHARS_MAX


def _is_value(value: Any) -> bool:
    return type(value) is int or type(value) is str


def _send(kind: str, value: Any) -> str:
    if value is None and kind in ("fail", "info"):
        return ""
    if type(value) is not list or not value:
        return "the value of a send is a list of records, not empty"
    width = 2 if kind == "invoke" else 3
    for record in value:
        if type(record) is not list or len(record) != width:
            return f"a record of a send has {width} parts here, not {record!r}"
        if not _is_key(record[0]) or not _is_value(record[1]):
            return f"{record[:2]!r} is not a key (text) and a value (text or whole number)"
        if width == 3 and record[2] is not None and not _is_offset(record[2]):
            return f"{record[2]!r} is not an offset"
    return ""


def _poll(kind: str, value: Any) -> str:
    if value is None and kind != "ok":
        return ""
    if type(value) is not dict:
        return "the value of a poll is {key: [[offset, value], ...]}"
    for key, records in value.items():
        if not _is_key(key) or type(records) is not list:
            return f"a poll maps a key to a list of records, not {key[:40]!r} to {records!r:.40}"
        for record in records:
            if type(record) is not list or len(record) != 2:
                return f"a record of a poll is [offset, value], not {record!r:.80}"
            offset, read = record
            if type(offset) is not int or offset < 0 or not _is_value(read):
                return f"{record!r:.80} is not an offset and a value (text or whole number)"
    return ""


def _assign(kind: str, value: Any) -> str:
    if value is None and kind != "invoke":
        return ""
    if type(value) is not dict or not all(
        _is_key(key) and (first is None or _is_offset(first)) for key, first in value.items()
    ):
        return "the value of an assign is {key: first offset or null}"
    return ""


def _subscribe(kind: str, value: Any) -> str:
    if value is None and kind != "invoke":
        return ""
    if type(value) is not list or not all(map(_is_key, value)):
        return "the value of a subscribe is a list of topics"
    return ""


def _bounds(name: str, first: str) -> Check:
    """Two offsets for each key, the first one not above the second."""

    def check(kind: str, value: Any) -> str:
        if value is None and kind != "ok":
            return ""
        if type(value) is not dict or not all(
            _is_key(key)
            and type(ends) is list
            and len(ends) == 2
            and all(map(_is_offset, ends))
            and ends[0] <= ends[1]
            for key, ends in value.items()
        ):
            return f"the value of {name} is {{key: [{first}, end]}}"
        return ""

    return check


def _txn(kind: str, value: Any) -> str:
    if value is None and kind in ("fail", "info"):
        return ""
    if type(value) is not list or not value:
        return "the value of a txn is a list of operations, not empty"
    for each in value:
        if type(each) is not list or len(each) != 3 or not _is_key(each[1]):
            return f"{each!r:.80} is not [operation, key, value]"
        f, _, part = each
        if f == "append":
            if not _is_value(part):
                return f"{part!r:.40} can't be appended: it is neither text nor a whole number"
        elif f != "r":
            return f"{f!r:.40} is neither 'append' nor 'r'"
        elif part is None:
            if kind == "ok":
                return f"the read of {each[1]!r} has no list"
        elif type(part) is not list or not all(map(_is_value, part)):
            return f"a read brings a list of values, not {part!r:.40}"
    return ""


Field = Callable[[Any], bool]


def _keys(value: Any) -> bool:
    return type(value) is list and all(map(_is_key, value))


def _epoch(value: Any) -> bool:
    return type(value) is int


def _offset_or_none(value: Any) -> bool:
    return type(value) is int and value >= NO_OFFSET


def _config(value: Any) -> bool:
    return value is None or _is_value(value)


def _offsets(value: Any) -> bool:
    return type(value) is list and bool(value) and all(map(_offset_or_none, value))


_OBSERVED: dict[str, Field] = {"saw": _config, "saw_not": _config}


def _fields(
    name: str,
    invoked: dict[str, Field],
    answered: dict[str, Field] | None = None,
    *,
    observes: bool = False,
) -> Check:
    """A check for an object; a name with `?` may be left out.

    With `answered`, these come on top in the value of an ok, which can't be left out then. With
    `observes` a failure may say what it saw.
    """

    def check(kind: str, value: Any) -> str:
        if value is None and kind != "invoke" and not (kind == "ok" and answered):
            return ""
        if type(value) is not dict:
            return f"the value of {name} is an object"
        if observes and kind == "fail" and value.keys() <= _OBSERVED.keys():
            wanted = {f"{field}?": good for field, good in _OBSERVED.items()}
        else:
            wanted = {**invoked, **(answered or {})} if kind == "ok" else invoked
        known = 0
        for field, good in wanted.items():
            bare = field.removesuffix("?")
            if bare in value:
                known += 1
                if not good(value[bare]):
                    return f"{bare!r} of {name} can't be {value[bare]!r:.40}"
            elif bare == field:
                return f"{name} has no {bare!r}"
        if known < len(value):
            unknown = sorted(value.keys() - {field.removesuffix("?") for field in wanted})
            return f"{name} has no field {unknown[0]!r:.40}"
        return ""

    return check


def _lists_of(width: int) -> Field:
    def are(value: Any) -> bool:
        return type(value) is list and all(
            type(each) is list and len(each) == width and all(type(n) is int for n in each)
            for each in value
        )

    return are


def _numbers(value: Any) -> bool:
    return type(value) is list and all(type(each) is int for each in value)


def _keys_by_member(value: Any) -> bool:
    return type(value) is dict and all(map(_keys, value.values()))


def _ends(value: Any) -> bool:
    return type(value) is dict and all(map(_is_key, value)) and all(map(_is_offset, value.values()))


def _text(value: Any) -> bool:
    return type(value) is str


_pairs, _triples = _lists_of(2), _lists_of(3)


def _pairs_by_key(value: Any) -> bool:
    return type(value) is dict and all(map(_is_key, value)) and all(map(_pairs, value.values()))


def _offset_or_none_by_key(value: Any) -> bool:
    return (
        type(value) is dict
        and all(map(_is_key, value))
        and all(map(_offset_or_none, value.values()))
    )


def _are_runs(value: Any) -> bool:
    return _triples(value) and all(
        0 <= first <= last < first + _RUN_MAX for first, last, _ in value
    )


def _runs_by_key(value: Any) -> bool:
    return type(value) is dict and all(map(_is_key, value)) and all(map(_are_runs, value.values()))


def _starts_by_key(value: Any) -> bool:
    return (
        type(value) is dict
        and all(map(_is_key, value))
        and _pairs(list(value.values()))
        and all(start >= 0 for start, _ in value.values())
    )


def _texts_by_key(value: Any) -> bool:
    return type(value) is dict and all(map(_is_key, value)) and all(map(_text, value.values()))


_REPLICA: dict[str, Field] = {"node": _epoch, "key": _is_key}
_REGISTER: dict[str, Field] = {"group": _is_key, "key": _is_key}
_OWNED: dict[str, Field] = {"group": _is_key, "keys": _keys}
_SHARED: dict[str, Field] = {**_OWNED, "slices?": _pairs_by_key}
_NAMED: dict[str, Field] = {"name": _is_key}

SHAPES: dict[str, Check] = {
    "send": _send,
    "poll": _poll,
    "assign": _assign,
    "subscribe": _subscribe,
    "drain": _bounds("a drain", "start"),
    "stable": _bounds("stable", "last stable offset"),
    "commit": _fields(
        "commit",
        {**_REGISTER, "offset": _is_offset, "expected?": _offset_or_none, "epoch?": _epoch},
        observes=True,
    ),
    "fetch": _fields("fetch", _REGISTER, {"offset": _offset_or_none}),
    "commit-all": _fields("commit-all", {"group": _is_key, "offset": _is_offset}),
    "fetch-all": _fields("fetch-all", {"group": _is_key}, {"offsets": _offsets}),
    "create": _fields("create", {**_NAMED, "config": _is_value}, observes=True),
    "alter": _fields("alter", {**_NAMED, "config": _is_value}, observes=True),
    "delete": _fields("delete", _NAMED, observes=True),
    "describe": _fields("describe", _NAMED, {"config": _config}),
    "stored": _fields("stored", _REPLICA, {"batches": _lists_of(5)}),
    "epochs": _fields("epochs", {**_REPLICA, "epochs": _lists_of(2)}),
    "led": _fields("led", {"key": _is_key, "epoch": _epoch, "leader": _epoch, "source": _is_key}),
    "journals": _fields("journals", {"nodes": _numbers}),
    "assigned": _fields(
        "assigned", {**_SHARED, "epoch": _epoch, "instance?": _is_key, "member?": _is_key}
    ),
    "revoked": _fields("revoked", _SHARED),
    "lost": _fields("lost", _SHARED),
    "gone": _fields("gone", _SHARED),
    "ended": _fields("ended", {"detail": _text}),
    "calm": _fields("calm", {"group": _is_key}),
    "uproar": _fields("uproar", {"group": _is_key}),
    "settled": _fields("settled", {**_OWNED, "members": _keys_by_member, "ms": _epoch}),
    "unsettled": _fields("unsettled", {"group": _is_key, "detail": _text}),
    "ends": _fields("ends", {"group": _is_key, "ends": _ends}),
    "left": _fields("left", {"group": _is_key, "members": _keys}),
    "crashed": _fields("crashed", {"by": _is_key}),
    "frozen": _fields("frozen", {"ms": _epoch}),
    "processed": _fields(
        "processed",
        {
            **_REGISTER,
            "first": _is_offset,
            "last": _is_offset,
            "of?": _text,
            "slot?": _epoch,
            "polled?": _epoch,
        },
    ),
    "claim": _fields(
        "claim",
        {
            "group": _is_key,
            "epoch": _epoch,
            "records": _pairs_by_key,
            "transaction?": lambda value: value is True,
        },
    ),
    "progress": _fields("progress", _REGISTER, {"stable": _offset_or_none, "claims": _lists_of(4)}),
    "lease": _fields(
        "lease",
        {"group": _is_key, "since?": _epoch},
        {
            "runs": _runs_by_key,
            "node?": _epoch,
            "link?": _epoch,
            "lock_ms?": _epoch,
            "epochs?": _offset_or_none_by_key,
            "gave_up?": lambda value: type(value) is bool,
        },
    ),
    "hold": _fields("hold", {"group": _is_key, "link": _epoch}, {"epochs": _offset_or_none_by_key}),
    "acknowledge": _fields(
        "acknowledge",
        {"group": _is_key, "said": _pairs_by_key, "link?": _epoch},
        {"errors": _texts_by_key},
    ),
    "starts": _fields("starts", {"group": _is_key}, {"starts": _starts_by_key}),
    "txn": _txn,
}
