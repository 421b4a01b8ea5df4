"""Clients that aren't Python's and have to log in: franz-go, kafkajs, Java's, kcat.

The first three are programs that carry out commands, one after the other; commands and answers are
lines of JSON. kcat is run for each half of a round.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from kraftpy.testing.process import LineProcess
from tests.conformance.foreign import go_program, java_program, kafkajs_folder

TIMEOUT_S = 60.0
_LOGIN_MODULES = "org.apache.kafka.common.security"


class RefusedError(Exception):
    """What the client says of why it isn't let in."""


@dataclass(frozen=True)
class Login:
    """What a client shows at a listener with TLS, and whom it trusts.

    With a mechanism it is a name and a password, else a certificate; `own` has that and its key.
    """

    bootstrap: str
    ca: str
    mechanism: str = ""
    username: str = ""
    password: str = ""
    own: str = ""

    def java(self) -> dict[str, str]:
        """The settings of Java's clients."""
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if not self.mechanism:
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.own}
            return {**found, **own, "security.protocol": "SSL"}
        kind = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
        return {
            **found,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f"{_LOGIN_MODULES}.{kind}LoginModule required "
            f'username="{self.username}" password="{self.password}";',
        }

    def librdkafka(self) -> dict[str, str]:
        """The settings of librdkafka."""
        found = {"bootstrap.servers": self.bootstrap, "ssl.ca.location": self.ca}
        if not self.mechanism:
            own = {"ssl.certificate.location": self.own, "ssl.key.location": self.own}
            return {**found, **own, "security.protocol": "SSL"}
        return {
            **found,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }


class Client(Protocol):
    """One that isn't Python's."""

    def end(self) -> None:
        """Ends its process."""

    def round(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """Writes records to a topic, and reads them by a group; RefusedError if it can't."""


class Program:
    """franz-go, kafkajs, or the Java client."""

    def __init__(self, kind: str) -> None:
        match kind:
            case "franz-go":
                command = [str(go_program("franz")), ""]
            case "kafkajs":
                command = ["node", str(kafkajs_folder() / "secured.js")]
            case _:
                command = java_program("SecuredClient")
        self._process = LineProcess(command, None)

    def end(self) -> None:
        self._process.end()

    def round(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        shown = {**asdict(login), "certificate": login.own, "key": login.own}
        command = {
            "do": "round",
            "bootstrap": login.bootstrap,
            "topic": topic,
            "values": values,
            "login": shown,
            "settings": login.java(),
        }
        self._process.write_line(json.dumps(command))
        read: list[str] = []
        while True:
            line = self._process.read_line(TIMEOUT_S)
            if not line.startswith(b"{"):
                continue  # what the Java client warns of goes to the same place
            said = json.loads(line)
            if "error" in said:
                raise RefusedError(said["error"])
            read += said.get("read", [])
            if "ok" in said:
                return read


class Kcat:
    """kcat, as Debian packages it."""

    def end(self) -> None:
        """There is none between its rounds."""

    def round(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        settings = login.librdkafka()
        options = [word for each in settings.items() for word in ("-X", "=".join(each))]

        def kcat(*words: str, stdin: str = "") -> str:
            done = subprocess.run(
                ["kcat", *options, *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise RefusedError(done.stderr)
            return done.stdout

        kcat("-P", "-t", topic, stdin="".join(f"{value}\n" for value in values))
        count = str(len(values))
        return kcat(
            *("-X", "auto.offset.reset=earliest", "-q", "-c", count, "-G", topic, topic)
        ).splitlines()


def start(kind: str) -> Client:
    """The client of this name."""
    return Kcat() if kind == "kcat" else Program(kind)
