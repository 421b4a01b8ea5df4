"""DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554): who may log in by SCRAM.

Clients send the salted password, which logs in as well as the password does; the broker makes of it
what checks it (`core.metadata.security_commands`), and forgets it: it's in no command, log or
error. Rules, as in Kafka:

* There is one result for a user, and a user changes as a whole or not at all.
* A credential that is altered twice in one request is DUPLICATE_RESOURCE, one that can't be deleted
  because it isn't there RESOURCE_NOT_FOUND, a mechanism that isn't known
  UNSUPPORTED_SASL_MECHANISM, and too few or too many iterations, an empty salt or a name that
  nobody could log in with UNACCEPTABLE_CREDENTIAL.
* To describe nobody by name is to describe all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.metadata import ScramMechanism
from kraftpy.core.metadata.commands import AlterScram, ScramUpsertion, ScramUser
from kraftpy.core.metadata.limits import (
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    SCRAM_SALT_BYTES_MAX,
)
from kraftpy.core.metadata.records import SCRAM_KEY_BYTES
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kraftpy.protocol.sasl import scram
from kraftpy.server.cluster.membership import METADATA_TIMEOUT_MS
from kraftpy.server.cluster.proposals import propose_items
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import counted, in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

_MECHANISMS = frozenset(ScramMechanism)

_WEIGHT = 10
"""What a user weighs in a command, beside a partition."""


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, long=True, cluster=Operation.DESCRIBE)
async def describe_user_scram_credentials(
    broker: Broker, ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of each user; RESOURCE_NOT_FOUND of who has none."""
    users = broker.metadata.scram
    once, twice = await counted(user.name for user in request.users or ())

    def result(name: str) -> _Described:
        if name in twice:
            return _Described(
                name, ErrorCode.DUPLICATE_RESOURCE, "the user is in the request twice"
            )
        if name not in users:
            return _Described(
                name, ErrorCode.RESOURCE_NOT_FOUND, "the user has no SCRAM credentials"
            )
        infos = [
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism, each.iterations)
            for mechanism, each in users[name].items()
        ]
        return _Described(name, ErrorCode.NONE, None, infos)

    names = once if request.users else sorted(users)
    return DescribeUserScramCredentialsResponse(error_message=None, results=elements(names, result))


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, long=True, cluster=Operation.ALTER)
async def alter_user_scram_credentials(
    broker: Broker, ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """NONE or what is wrong, of each user."""
    asked: dict[str, _Asked] = {}
    async for deletions in in_parts(request.deletions):
        for deletion in deletions:
            asked.setdefault(deletion.name, _Asked()).delete(deletion.mechanism)
    async for upsertions in in_parts(request.upsertions):
        for upsertion in upsertions:
            asked.setdefault(upsertion.name, _Asked()).upsert(upsertion)
    to_propose: list[ScramUser] = []
    async for users in in_parts(asked.items()):
        to_propose += [each.command(name) for name, each in users if each.refused is None]
    answers = await propose_items(
        controller_of(broker, ctx),
        lambda users, _: AlterScram(users),
        to_propose,
        METADATA_TIMEOUT_MS,
        [_WEIGHT] * len(to_propose),
    )
    outcomes: dict[str, tuple[int, str | None]] = {}
    async for pairs in in_parts(zip(to_propose, answers, strict=True)):
        for user, answer in pairs:
            outcomes[user.name] = answer["error"], answer["message"]

    def result(name: str) -> _Altered:
        refused = asked[name].refused
        error, message = outcomes[name] if refused is None else (refused.code, refused.message)
        return _Altered(name, error, message)

    return AlterUserScramCredentialsResponse(results=elements(list(asked), result))


class _Asked:
    """What a request wants of one user."""

    __slots__ = ("_deletions", "_seen", "_upsertions", "refused")

    def __init__(self) -> None:
        self.refused: KafkaError | None = None
        self._deletions: list[int] = []
        self._upsertions: list[ScramUpsertion] = []
        self._seen: set[int] = set()

    def delete(self, mechanism: int) -> None:
        if self._is_first(mechanism):
            self._deletions.append(mechanism)

    def upsert(self, asked: _Upsertion) -> None:
        if self._is_first(asked.mechanism):
            try:
                self._upsertions.append(_derived(asked))
            except KafkaError as error:
                self.refused = self.refused or error

    def _is_first(self, mechanism: int) -> bool:
        """Of more mechanisms than there are, one is enough to say what is wrong."""
        if mechanism in self._seen:
            self.refused = self.refused or KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, "a credential can't be altered twice in one request"
            )
            return False
        self._seen.add(mechanism)
        if mechanism not in _MECHANISMS:
            self.refused = self.refused or KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {mechanism}"
            )
        return self.refused is None

    def command(self, name: str) -> ScramUser:
        return ScramUser(name, tuple(self._upsertions), tuple(self._deletions))


def _derived(asked: _Upsertion) -> ScramUpsertion:
    """What is kept of a salted password. Raises KafkaError."""
    mechanism = ScramMechanism(asked.mechanism)
    salt, salted = bytes(asked.salt), bytes(asked.salted_password)
    problem = None
    if asked.iterations < SCRAM_ITERATIONS_MIN:
        problem = f"Too few iterations: {SCRAM_ITERATIONS_MIN} are the least"
    elif asked.iterations > SCRAM_ITERATIONS_MAX:
        problem = f"Too many iterations: {SCRAM_ITERATIONS_MAX} are the most"
    elif not 0 < len(salt) <= SCRAM_SALT_BYTES_MAX:
        problem = f"a salt has 1 to {SCRAM_SALT_BYTES_MAX} bytes"
    elif len(salted) != SCRAM_KEY_BYTES[mechanism]:
        problem = f"a salted password has {SCRAM_KEY_BYTES[mechanism]} bytes"
    if problem is not None:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
    keys = scram.keys(mechanism.wire_name, salted)
    return ScramUpsertion(mechanism, asked.iterations, salt, keys.stored_key, keys.server_key)
