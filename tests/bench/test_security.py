"""What is told of security comes from logins that succeed, TLS 1.3, and rights that are there."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from kraftpy.testing.process import BrokerError
from tests.bench import authorizing, logins, measure
from tests.bench.__main__ import SECURITY, asked, parts, raced_part, said
from tests.bench.figures import FIGURES, MISSED, race_rows
from tests.bench.load import consume, produce
from tests.bench.race import Raced
from tests.bench.security_rows import LOGINS, PASSWORD, USER, SecuredKraftpy, make_user, rows
from tests.processes import running, split_address


def test_clients_log_in_and_work_by_tls(tmp_path: Path) -> None:
    node = SecuredKraftpy(tmp_path)
    doors = node.doors
    with running(node):
        make_user(node.bootstrap)
        with logins.clients(doors.login, doors.ca, USER, PASSWORD, 3) as process:
            assert logins.worked(process, 0.05) > 0
        context = ssl.create_default_context(cafile=doors.ca)
        host, port = split_address(doors.login)
        with context.wrap_socket(
            socket.create_connection((host, port)), server_hostname=host
        ) as it:
            assert it.version() == "TLSv1.3"
            with pytest.raises(BrokerError, match="SASL_AUTHENTICATION_FAILED"):
                logins.log_in(it, USER, "wrong")
        with measure.partitions_on(node, 1) as topic:
            sent = produce(doors.tls, topic, 100, 1000, 16_384, settings=doors.client())
            read = consume(doors.tls, topic, 100, settings=doors.client())
            assert (sent.messages, sent.bytes) == (99, 99_000)
            assert read.bytes <= 100_000
            times = measure.latencies_ms(doors.tls, topic, "1", 1, doors.client())
            assert len(times) == 1


@pytest.mark.parametrize(
    ("mine", "theirs", "judged"),
    [(1300, 1000, "goal met"), (700, 650, "floor met"), (1300, 1400, MISSED), (500, 100, MISSED)],
)
def test_logins_have_two_floors(mine: float, theirs: float, judged: str) -> None:
    raced = Raced.nothing()
    raced.ours[LOGINS], raced.theirs[LOGINS] = [mine], [theirs]
    assert race_rows(raced)[1][-1] == judged


def test_rights_are_asked_for() -> None:
    assert authorizing.round_us().keys() <= FIGURES.keys()


def test_security_is_a_part_of_the_race() -> None:
    assert raced_part(None, [SECURITY]) == SECURITY
    options = asked(["race", "--rounds", "3", "security"])
    assert raced_part(options.nodes, [str(each) for each in options.files]) == SECURITY
    assert said(SECURITY, []) == " ARGS=security"
    assert [row.figures for row in parts()[SECURITY].rows] == [row.figures for row in rows()]
    assert all(name in FIGURES for row in rows() for name in row.figures)
