"""Nonsense in settings: a sentence, never a traceback; and the widest settings that are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.cli.common import Failure
from kraftpy.cli.server import parse_config
from kraftpy.core.config import BROKER_SETTINGS, BrokerConfig, ConfigError, ConfigType
from kraftpy.core.config.describe import describe_broker
from kraftpy.testing import Broker
from tests.cli.commands import failure

NONSENSE = (
    "\0",
    "a\0b",
    "/tmp/a\0b,/tmp/c",
    "\x1b[31m",
    "\n",
    "\u2028",
    "\udcff",
    "é",
    "x" * 9000,
    "/" + "x" * 300,
    "",
    ",",
    "://",
    "..",
    "0.0.0.0",
    "[::",
    "a..b:1",
    ":99999",
    "PLAINTEXT://a\0b:1",
    "PLAINTEXT://..:1",
    "PLAINTEXT://" + "a" * 255 + ":1",
    "PLAINTEXT://0.0.0.0:1",
    "1@..:1",
    "9" * 5000,
    "-9223372036854775809",
    "1e400",
    "nan",
    "\u0661",
    "%s{0}$HOME`~",
)
NUMBERS = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
SIZES = (
    *("-1", "0", "1", "2", "14", "1024", "1048576", "10000", "32767", "2147483647"),
    *("9223372036854775807", "1.7976931348623157E308"),
)


@pytest.mark.parametrize("key", sorted(BROKER_SETTINGS))
def test_nonsense_is_refused_with_a_sentence_or_can_be_used(key: str) -> None:
    for value in NONSENSE:
        try:
            config = parse_config("node.id=1", "server.properties", {key: value})
        except Failure as refused:
            said = refused.message
        else:
            said = ""
        if said:
            assert said.startswith((f"-c {key}=", f"-c {key}: ", "server.properties: "))
            assert len(said) < 2000
            continue
        (entry,) = (each for each in describe_broker(config) if each.name == key)
        for text in (entry.value or "", *(each.value or "" for each in entry.synonyms)):
            assert text.encode().find(b"\0") < 0, "it would go over the wire, or name a file"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("log.dirs=/tmp/a\\u0000b", "log.dirs=/tmp/a"),
        ("log.dir=/tmp/a\\u0000b", "log.dir=/tmp/a"),
        ("metadata.log.dir=/tmp/a\\u0000b", "metadata.log.dir=/tmp/a"),
        ("kraftpy.quorum.secret.file=/tmp/a\\u0000b", "kraftpy.quorum.secret.file=/tmp/a"),
        ("listeners=PLAINTEXT://..:0", "listeners=PLAINTEXT://..:0: must be NAME://host:port"),
        ("kraftpy.metrics.listener=..:0", "kraftpy.metrics.listener=..:0: must be host:port"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "clients can't connect to 0.0.0.0"),
        ("advertised.listeners=PLAINTEXT://[::]:1", "clients can't connect to ::"),
    ],
)
def test_a_node_says_what_is_wrong_and_does_not_start(
    line: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\n{line}\n")
    said = failure("server", "--config", str(file), code=2)
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "line",
    [
        "log.dirs=/" + "x" * 300,
        "log.dirs=/dev/null/x",
        "metadata.log.dir=/dev/null/x",
        "kraftpy.quorum.secret.file=/" + "x" * 300,
        "kraftpy.metrics.listener=nowhere.invalid:0",
        "listeners=PLAINTEXT://nowhere.invalid:0",
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://nowhere.invalid:0",
    ],
)
def test_what_only_the_system_can_refuse_is_a_sentence_too(line: str, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    own = {"node.id": "1", "log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://:0"}
    lines = [f"{key}={value}" for key, value in own.items()]
    file.write_text("\n".join([*lines, line]))
    said = failure("server", "--config", str(file), code=4)
    wrong = line.removesuffix(":0").rpartition("://" if "://" in line else "=")[2]
    assert wrong[:100] in said


def test_a_controller_alone_says_so_too(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    lines = [
        "node.id=1",
        "process.roles=controller",
        f"log.dirs={tmp_path}/data",
        "controller.quorum.voters=1@127.0.0.1:9093",
        "listeners=CONTROLLER://nowhere.invalid:9093",
    ]
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    file.write_text("\n".join([*lines, f"kraftpy.quorum.secret.file={secret}"]))
    said = failure("server", "--config", str(file), code=4)
    assert "the quorum can't listen on nowhere.invalid:9093" in said
    assert "choose another port, or an address of this machine" in said


@pytest.mark.parametrize("largest", [False, True])
def test_a_node_lives_with_the_smallest_and_the_largest_numbers(largest: bool) -> None:
    settings: dict[str, str] = {}
    for key, definition in BROKER_SETTINGS.items():
        if definition.kind.type in NUMBERS and key != "node.id":
            for value in reversed(SIZES) if largest else SIZES:
                try:
                    BrokerConfig.from_properties({**settings, key: value})
                except ConfigError:
                    continue
                settings[key] = value
                break
    assert len(settings) > 80
    with Broker(**{key.replace(".", "_"): value for key, value in settings.items()}) as broker:
        broker.stop()
        log = broker.log_path.read_text()
    assert "node-stopped" in log
    assert "Traceback" not in log
