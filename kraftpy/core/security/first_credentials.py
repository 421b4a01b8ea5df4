"""The first credentials of a cluster: lines as `kafka-storage format --add-scram` takes them.

    SCRAM-SHA-512=[name=admin,password=PASSWORD]
    SCRAM-SHA-256=[name=alice,iterations=8192,salt="c2FsdA==",saltedpassword="..."]

Rules (KIP-900): a mechanism and a name are given, and either a password or a salted one with its
salt. Text may stand in quotes, and has to if there is a comma or a bracket in it. Iterations are
4096 unless they are given. No error has a password.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator

from kraftpy.core.metadata.commands import ScramUpsertion, ScramUser
from kraftpy.core.metadata.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from kraftpy.core.metadata.records import SCRAM_KEY_BYTES, ScramMechanism
from kraftpy.core.metadata.security_commands import scram_name_error
from kraftpy.protocol.sasl import scram

LINES_MAX = 100

_MECHANISMS = {each.wire_name: each for each in ScramMechanism}
_LINE = re.compile(r"(?P<mechanism>[A-Z0-9-]+)\s*=\s*\[(?P<options>.*)\]")
_OPTION = re.compile(
    r'\s*(?P<key>[a-z]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<bare>[^",\[\]]*))\s*(,|$)'
)
_KEYS = ("name", "password", "iterations", "salt", "saltedpassword")


class CredentialError(ValueError):
    """A line can't be understood; says why, without its password."""


def new_credential(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> ScramUpsertion:
    """What is kept of a password."""
    name = mechanism.wire_name
    keys = scram.keys(name, scram.salted_password(name, password, salt, iterations))
    return ScramUpsertion(mechanism, iterations, salt, keys.stored_key, keys.server_key)


def read(text: str, new_salt: Callable[[], bytes]) -> tuple[ScramUser, ...]:
    """The users in a file. Raises CredentialError."""
    found: dict[str, list[ScramUpsertion]] = {}
    for number, line in _lines(text):
        try:
            name, upsertion = _read_line(line, new_salt)
        except CredentialError as error:
            raise CredentialError(f"line {number}: {error}") from None
        of_user = found.setdefault(name, [])
        if any(each.mechanism == upsertion.mechanism for each in of_user):
            raise CredentialError(f"line {number}: {name!r} has a credential for that already")
        of_user.append(upsertion)
    return tuple(ScramUser(name, tuple(upsertions)) for name, upsertions in found.items())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    count = 0
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and not line.startswith("#"):
            count += 1
            if count > LINES_MAX:
                raise CredentialError(f"there are more than {LINES_MAX} lines")
            yield number, line


def _read_line(line: str, new_salt: Callable[[], bytes]) -> tuple[str, ScramUpsertion]:
    match = _LINE.fullmatch(line)
    mechanism = _MECHANISMS.get(match["mechanism"]) if match is not None else None
    if match is None or mechanism is None:
        raise CredentialError(
            f"it should be {' or '.join(_MECHANISMS)}=[name=NAME,password=PASSWORD]"
        )
    options = _options(match["options"])
    name = options.get("name", "")
    problem = scram_name_error(name)
    if problem is not None:
        raise CredentialError(problem)
    iterations = _iterations(options.get("iterations", str(SCRAM_ITERATIONS_MIN)))
    given = options.get("salt")
    salt = new_salt() if given is None else _from_base64("salt", given)
    password, salted = options.get("password"), options.get("saltedpassword")
    if (password is None) == (salted is None):
        raise CredentialError("it should have either password or saltedpassword")
    if password:
        return name, new_credential(mechanism, password, salt, iterations)
    if salted is None or given is None:
        raise CredentialError("the password is empty, or saltedpassword has no salt")
    found = _from_base64("saltedpassword", salted)
    if len(found) != SCRAM_KEY_BYTES[mechanism]:
        raise CredentialError(f"saltedpassword isn't {SCRAM_KEY_BYTES[mechanism]} bytes")
    keys = scram.keys(mechanism.wire_name, found)
    return name, ScramUpsertion(mechanism, iterations, salt, keys.stored_key, keys.server_key)


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None or match["key"] not in _KEYS or match["key"] in options:
            raise CredentialError(f"in the brackets there are {', '.join(_KEYS)}, each once")
        quoted = match["quoted"]
        options[match["key"]] = match["bare"].strip() if quoted is None else quoted
        position = match.end()
    return options


def _iterations(text: str) -> int:
    if (
        not re.fullmatch("[0-9]{1,9}", text)
        or not SCRAM_ITERATIONS_MIN <= int(text) <= SCRAM_ITERATIONS_MAX
    ):
        raise CredentialError(
            f"iterations aren't from {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}"
        )
    return int(text)


def _from_base64(what: str, text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise CredentialError(f"{what} isn't base64") from None
    if not found or len(found) > 128:
        raise CredentialError(f"{what} has 1 to 128 bytes")
    return found
