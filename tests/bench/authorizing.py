"""`make bench ARGS=security`: what it costs a broker to ask for a right.

One principal has 1,000 ACLs, prefixes of topics' names. Handlers' question is asked of thousands of
names that nobody has asked for, and then again of those that a client works with, a hundred.
"""

from __future__ import annotations

import time

from kraftpy.core.security.acl_table import AclTable
from kraftpy.core.security.acls import Acl, Operation, Pattern, Permission, Resource, new_acl
from kraftpy.core.security.authorizer import VIEW_ANSWERS_MAX, Authorizer
from kraftpy.core.security.principals import USER, Principal
from tests.bench.figures import Values

REMEMBERED = "right to a topic, remembered"
FIRST = "right to a topic, first asked for at 1,000 ACLs"

ACLS = 1_000
NAMES = 5_000
NAMES_AGAIN, TIMES = 100, 1_000
assert NAMES <= VIEW_ANSWERS_MAX


def authorizer() -> Authorizer:
    """One with these ACLs."""
    table = AclTable()
    for number in range(ACLS):
        acl = (Pattern.PREFIXED, "User:alice", "*", Operation.READ, Permission.ALLOW)
        table.add(new_acl(Acl(Resource.TOPIC, f"orders-{number:04}-", *acl)))
    return Authorizer(table)


def _us_each(names: list[str], times: int, ask: Authorizer) -> float:
    view, topic, read = (
        ask.view(Principal(USER, "alice"), "10.0.0.1"),
        Resource.TOPIC,
        Operation.READ,
    )
    allowed = 0
    started_at = time.perf_counter()
    for _ in range(times):
        for name in names:
            allowed += view.may(read, topic, name)
    seconds = time.perf_counter() - started_at
    assert allowed == times * len(names)
    return seconds / allowed * 1e6


def round_us() -> dict[str, float]:
    """One round, with an authorizer that nobody has asked."""
    names = [f"orders-{number % ACLS:04}-of-{number}" for number in range(NAMES)]
    asked = authorizer()
    return {
        FIRST: _us_each(names, 1, asked),
        REMEMBERED: _us_each(names[:NAMES_AGAIN], TIMES, asked),
    }


def run(rounds: int) -> Values:
    """Both figures of so many rounds."""
    values: Values = {}
    for _ in range(rounds):
        for name, value in round_us().items():
            values.setdefault(name, []).append(value)
    return values
