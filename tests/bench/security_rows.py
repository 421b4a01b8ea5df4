"""What a race measures of security: one node, TLS 1.3 alone, keys of P-256.

Each entrant has a plain listener, for topics to be made, one with TLS and one with TLS and logins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.apache_kafka import MeasuredApacheKafka
from tests.bench import logins, measure
from tests.bench.load import Load, consume, produce
from tests.bench.measure import BATCHES, LATENCY_INTERVAL_S, Round, partitions_on
from tests.bench.probe import percentile
from tests.bench.race import Meter, Row
from tests.bench.rows import SMALL_BATCH, runs
from tests.certificates import Authority
from tests.processes import Kraftpy, free_port

USER = "alice"
PASSWORD = "of the race"
CLIENTS = 500
TIMEOUT_S = 30.0
MESSAGES = 300_000

PRODUCE = f"TLS 1.3: produce 1 KB, batch {SMALL_BATCH}"
CONSUME = "TLS 1.3: consume 1 KB"
LOGINS = "TLS 1.3: logins by SCRAM-SHA-256, P-256"
RECONNECTING = f"TLS 1.3: latency at 200 msg/s while {CLIENTS} clients reconnect, p99"


class Doors:
    """The listeners of an entrant, its settings for them, and what its clients need."""

    def __init__(self, folder: Path, plain_port: int) -> None:
        authority = Authority()
        self.ca = str(authority.write(folder / "ca.pem"))
        keystore = authority.issue("CN=broker").write_pem(folder / "broker.pem")
        self.plain, self.tls, self.login, controller = (
            f"127.0.0.1:{port}" for port in (plain_port, *(free_port() for _ in range(3)))
        )
        self.settings: dict[str, object] = {
            "listeners": f"PLAINTEXT://{self.plain},TLS://{self.tls},LOGIN://{self.login},"
            f"CONTROLLER://{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL,"
            "CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{controller}",
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keystore,
            "listener.name.login.sasl.enabled.mechanisms": logins.MECHANISM,
            "listener.name.login.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common."
            "security.scram.ScramLoginModule required;",
        }

    def client(self) -> dict[str, str]:
        """Settings of librdkafka beside the address."""
        return {"security.protocol": "ssl", "ssl.ca.location": self.ca}


class SecuredKraftpy(Kraftpy):
    """With these listeners."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.doors = Doors(folder, 0)
        super().__init__(folder, **{**settings, **self.doors.settings})


class SecuredApacheKafka(MeasuredApacheKafka):
    """With the same."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.doors = Doors(folder, free_port())
        super().__init__(folder, **{**settings, **self.doors.settings})
        self.bootstrap = self.doors.plain


def _touched(entrant: Any) -> Path:
    folder: Path = entrant.log_dir
    return folder


@contextlib.contextmanager
def _producing(entrant: Any) -> Iterator[Meter]:
    def run() -> Load:
        with partitions_on(entrant, 1) as topic:
            measure.touch_memory(_touched(entrant))
            doors = entrant.doors
            batch = BATCHES[SMALL_BATCH]
            return produce(doors.tls, topic, MESSAGES, 1000, batch, settings=doors.client())

    yield lambda seconds: {PRODUCE: runs(seconds, run)}


@contextlib.contextmanager
def _consuming(entrant: Any) -> Iterator[Meter]:
    doors = entrant.doors
    with measure.topic_on(entrant) as topic:
        produce(entrant.bootstrap, topic, MESSAGES, 1000, BATCHES[SMALL_BATCH])

        def run() -> Load:
            return consume(doors.tls, topic, MESSAGES, settings=doors.client())

        yield lambda seconds: {CONSUME: runs(seconds, run)}


def make_user(bootstrap: str) -> None:
    """The one who logs in."""
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())]
    admin.alter_user_scram_credentials(wanted)[USER].result(TIMEOUT_S)


@contextlib.contextmanager
def _logging_in(entrant: Any) -> Iterator[Meter]:
    make_user(entrant.bootstrap)
    doors = entrant.doors
    with logins.clients(doors.login, doors.ca, USER, PASSWORD, 0) as process:
        yield lambda seconds: {LOGINS: logins.worked(process, seconds)}


@contextlib.contextmanager
def _reconnecting(entrant: Any) -> Iterator[Meter]:
    make_user(entrant.bootstrap)
    doors = entrant.doors
    with (
        partitions_on(entrant, 1) as topic,
        logins.clients(doors.login, doors.ca, USER, PASSWORD, CLIENTS) as process,
    ):

        def meter(seconds: float) -> Round:
            logins.begin(process, seconds)
            messages = round(seconds / LATENCY_INTERVAL_S)
            times = measure.latencies_ms(doors.tls, topic, "1", messages, doors.client())
            logins.told(process, seconds)
            return {RECONNECTING: percentile(times, 99)}

        yield meter


def rows() -> list[Row]:
    """All of them."""
    return [
        Row((PRODUCE,), _producing),
        Row((CONSUME,), _consuming),
        Row((LOGINS,), _logging_in),
        Row((RECONNECTING,), _reconnecting),
    ]
