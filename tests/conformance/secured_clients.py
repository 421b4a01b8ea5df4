"""Clients that aren't Python's and have to log in: franz-go, kafkajs, Java's, kcat.

The first three are programs that carry out commands, one after the other; commands and answers are
lines of JSON. kcat is run for each half of a round.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from kraftpy.testing.process import LineProcess
from tests.conformance.foreign import go_program, java_program, kafkajs_folder
from tests.logins import Login

TIMEOUT_S = 60.0


class RefusedError(Exception):
    """What the client says of why it isn't let in."""


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
        return self.ask("round", login, topic=topic, values=values, settings=login.java())

    def ask(self, do: str, login: Login | None = None, **more: object) -> list[str]:
        """Has a command carried out, and returns what it read; RefusedError if it failed."""
        command = {"do": do, **more}
        if login is not None:
            shown = {**asdict(login), "certificate": login.own, "key": login.own}
            command |= {"bootstrap": login.bootstrap, "login": shown}
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
