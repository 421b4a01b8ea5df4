"""`kraftpy dev --secure`: stock clients by the files that it writes, brokers among themselves."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaProducer

from kraftpy.cli.dev import command
from kraftpy.cli.securing import USERS
from tests.waiting import wait_until

from .commands import Running, failure, output, running

TIMEOUT_S = 30.0


def conf(file: str) -> dict[str, str]:
    """What a program does that gets the file's name."""
    lines = Path(file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[tuple[Running, dict[str, Any]]]:
    with running(
        "dev", "--secure", "--brokers", "3", "--port", "0", "--dir", str(folder), "-o", "json"
    ) as process:
        yield process, process.ready()


@pytest.fixture
def told(started: tuple[Running, dict[str, Any]]) -> dict[str, Any]:
    return started[1]


def test_the_line_names_files_that_only_their_owner_reads(told: dict[str, Any]) -> None:
    assert set(told["secure"]) == {"ca", "users"}
    assert set(told["secure"]["users"]) == set(USERS) == {"admin", "alice"}
    home = Path(told["secure"]["ca"]).parent
    private = [home / "broker.pem", home / "users.scram"]
    for user, name in told["secure"]["users"].items():
        settings = conf(name)
        assert settings["security.protocol"] == "SASL_SSL"
        assert settings["sasl.username"] == user
        assert settings["ssl.ca.location"] == told["secure"]["ca"]
        private += [Path(name), Path(name).with_name("client.properties")]
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}


def test_librdkafka_by_the_file(told: dict[str, Any]) -> None:
    user = "admin"
    options: dict[str, Any] = conf(told["secure"]["users"][user])
    options["bootstrap.servers"] = told["bootstrap"]
    topic = f"of-{user}"
    producer = Producer(options)
    for number in range(10):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(options | {"group.id": user, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []
    wait_until(lambda: found.extend(consumer.consume(10, 1.0)) or len(found) >= 10, "all came")
    assert sorted(each.value() for each in found) == [b"%d" % number for number in range(10)]
    consumer.commit(asynchronous=False)
    consumer.close()


def test_kafka_python(told: dict[str, Any]) -> None:
    settings = conf(told["secure"]["users"]["admin"])
    producer = KafkaProducer(
        bootstrap_servers=told["bootstrap"].split(","),
        security_protocol=settings["security.protocol"],
        sasl_mechanism=settings["sasl.mechanism"],
        sasl_plain_username=settings["sasl.username"],
        sasl_plain_password=settings["sasl.password"],
        ssl_cafile=settings["ssl.ca.location"],
    )
    assert producer.send("of-kafka-python", b"one").get(TIMEOUT_S).offset == 0
    producer.close()


@pytest.mark.parametrize("name", ["client.conf", "client.properties"])
def test_commands_by_either_file(told: dict[str, Any], name: str) -> None:
    file = Path(told["secure"]["users"]["admin"]).with_name(name)
    given = ("-b", told["bootstrap"], "--command-config", str(file))
    topic = f"by-{name}"
    output("topic", "create", topic, "-p", "3", "-r", "3", *given)
    output("produce", topic, *given, stdin=b"one\n")
    # Written with acks=all: brokers have logged in at each other, and follow.
    assert output("consume", topic, "-o", "start:end", "-f", "%v\n", *given) == "one\n"
    health = json.loads(output("cluster", "health", "-o", "json", *given))
    assert health["healthy"], health


def test_alice_comes_in_and_has_no_rights(told: dict[str, Any]) -> None:
    given = ("-b", told["bootstrap"], "--command-config", told["secure"]["users"]["alice"])
    assert "AUTHORIZATION_FAILED" in failure("topic", "create", "of-alice", *given, code=1)
    assert "of-admin" not in output("topic", "list", *given)


def test_nobody_comes_in_otherwise(told: dict[str, Any]) -> None:
    options: dict[str, Any] = conf(told["secure"]["users"]["alice"])
    options["bootstrap.servers"] = told["bootstrap"]
    failures: list[KafkaError] = []
    quiet = {"error_cb": failures.append, "log_level": 0}
    client = Producer({**options, "sasl.password": "wrong", **quiet})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    client.poll(0)
    assert KafkaError._AUTHENTICATION in {each.code() for each in failures}
    said = failure("topic", "list", "-b", told["bootstrap"], code=3)
    assert "it may want TLS" in said
    ca = f"ssl.ca.location={told['secure']['ca']}"
    given = ("-b", told["bootstrap"], "-X", "security.protocol=SSL", "-X", ca)
    said = failure("topic", "list", *given, code=3)
    assert "it may want a login" in said


def test_the_certificate_is_one_for_strict_clients(told: dict[str, Any]) -> None:
    context = ssl.create_default_context(cafile=told["secure"]["ca"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for host in ("127.0.0.1", "localhost"):
        port = int(told["brokers"][0]["address"].rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            assert secured.version() == "TLSv1.3"


def test_trap_23_passwords_are_in_no_log_no_page_and_no_journal(
    told: dict[str, Any], folder: Path
) -> None:
    passwords = [conf(file)["sasl.password"] for file in told["secure"]["users"].values()]
    texts = [json.dumps(told)]
    for broker in told["brokers"]:
        home = folder / f"node{broker['id']}"
        texts += [(home / "log").read_text(), (home / "server.properties").read_text()]
        for url in (broker["metrics"], broker["page"]):
            with urllib.request.urlopen(url) as answer:
                texts.append(answer.read().decode())
    given = ("-b", told["bootstrap"], "--command-config", told["secure"]["users"]["admin"])
    texts.append(output("cluster", "brokers", "-o", "json", *given))
    journals = [path.read_bytes() for path in folder.glob("node*/data/__cluster_metadata-0/*")]
    assert any(b"alice" in each for each in journals)
    for data in [*journals, *map(str.encode, texts)]:
        assert not [each for each in passwords if each.encode() in data]


def test_started_again_it_is_secured_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    line = ("--port", "0", "--dir", str(home), "-o", "json")
    with running("dev", "--secure", *line) as process:
        first = process.ready()
        before = conf(first["secure"]["users"]["alice"])
    with running("dev", *line) as process:
        again = process.ready()
        assert again["secure"] == first["secure"]
        assert conf(again["secure"]["users"]["alice"]) == before
        given = ("-b", again["bootstrap"], "--command-config", again["secure"]["users"]["alice"])
        output("topic", "list", *given)


def test_a_folder_that_was_moved_is_secured_as_it_was(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    line = ("--port", "0", "-o", "json", "--dir")
    with running("dev", "--secure", *line, str(before)) as process:
        process.ready()
        assert process.end() == 0
    before.rename(after)
    with running("dev", *line, str(after)) as process:
        again = process.ready()
        file = Path(again["secure"]["users"]["admin"])
        for name in (file, file.with_suffix(".properties")):
            output("topic", "list", "-b", again["bootstrap"], "--command-config", str(name))
            assert name.stat().st_mode & 0o777 == 0o600
    assert not before.exists()


def test_a_cluster_that_is_not_secured_stays_so(tmp_path: Path) -> None:
    home = tmp_path / "plain"
    with running("dev", "--port", "0", "--dir", str(home), "-o", "json") as process:
        assert "secure" not in process.ready()
    said = failure("dev", "--secure", "--dir", str(home), code=2)
    assert "isn't secured: leave --secure out" in said
    assert not (home / "secure").exists()


def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    result = CliRunner().invoke(command, ["--secure", "--dir", str(tmp_path / "dev")])
    assert result.exit_code != 0
    assert "pip install 'kraftpy[secure]'" in result.output
    assert not (tmp_path / "dev" / "secure").exists()
