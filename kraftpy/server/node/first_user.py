"""Who may log in first: the users of a file.

Rules: `kraftpy.bootstrap.scram.file` counts while nobody has a credential. That is decided where
the command is applied (`security_commands`), so of several nodes that come up with such a file one
is first. A file that is left lying gives nobody a password back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import AlterScram, ScramUser
from kraftpy.core.security.first_credentials import CredentialError, read
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.sasl import scram
from kraftpy.server.cluster.proposals import Proposals

log = logging.getLogger(__name__)

FILE_MAX_BYTES = 1024 * 1024
_TIMEOUT_MS = 30_000


def new_salt() -> bytes:
    """A salt that nobody has had."""
    return scram.salt_of(os.urandom(32))


def read_file(config: BrokerConfig) -> tuple[ScramUser, ...]:
    """The users of the file that is configured; none without one. Raises CredentialError."""
    path = config.kraftpy_bootstrap_scram_file
    if path is None:
        return ()
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(FILE_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CredentialError(f"can't read kraftpy.bootstrap.scram.file={path}: {reason}") from None
    try:
        return read(text, new_salt)
    except CredentialError as error:
        raise CredentialError(f"kraftpy.bootstrap.scram.file={path}: {error}") from None


async def propose_first(
    controller: Proposals, metadata: MetadataState, users: tuple[ScramUser, ...]
) -> None:
    """Gives these users their credentials if nobody has any; the log says if it can't."""
    if not users or metadata.scram:
        return
    try:
        _, result = await controller.propose(AlterScram(users, only_first=True), _TIMEOUT_MS)
        if result.error is ErrorCode.DUPLICATE_RESOURCE:
            return  # another node was first
        check_answer(result.error, result.message, result.value)
    except KafkaError as error:
        log.error("the users of kraftpy.bootstrap.scram.file have no credentials: %s", error)
    else:
        log.info("the first users: %s", ", ".join(user.name for user in users))


def check_answer(error: ErrorCode, message: str | None, value: Mapping[str, Any]) -> None:
    """Raises KafkaError if the command, or what it says of a user, wasn't carried out."""
    if error is not ErrorCode.NONE:
        raise KafkaError(error, message)
    for each in value["users"]:
        if each["error"]:
            raise KafkaError(ErrorCode(each["error"]), f"user {each['name']!r}: {each['message']}")
