"""What an operator asks of security.

That is ACLs (KIP-140, KIP-290), who may log in by SCRAM (KIP-554), quotas (KIP-546), and delegation
tokens (KIP-48, KIP-373).

An ACL, and what finds ACLs, are tuples in the order of the protocol's fields, with its numbers:
type, name and pattern of the resource, principal, host, operation, permission. Whoever prints them
knows what the numbers are called.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kraftpy.client.admin import ANSWER_MARGIN_MS, BROKER_RESOURCE
from kraftpy.client.cluster import check
from kraftpy.client.cluster_admin import ClusterAdmin
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.secret import Secret

Entry = tuple[int, str, int, str, str, int, int]
"""An ACL."""

Sought = tuple[int, str | None, int, str | None, str | None, int, int]
"""What finds ACLs: None, and the numbers that mean any, stand for whatever there is."""

Entity = tuple[tuple[str, str | None], ...]
"""Whose quotas these are: (type, name) in the order of the types; None is the default."""

SCRAM_MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

_BY_NAME, _BY_DEFAULT = 0, 1


class Credential(NamedTuple):
    """What a SCRAM user is to log in by: the salted password is made where the password is."""

    mechanism: str
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A delegation token. Principals are written Type:name; times are wall-clock milliseconds.

    `hmac`, in base64, is what it logs in with, `id` the name.
    """

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: Secret


class SecurityAdmin(ClusterAdmin):
    """`ClusterAdmin` and what concerns who may do what."""

    async def describe_acls(self, sought: Sought) -> list[Entry]:
        """The ACLs that there are, sorted. KafkaErrors: SECURITY_DISABLED without an authorizer."""
        response = await self._ask(messages.DescribeAclsRequest(*sought))
        return sorted(
            (
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in response.resources
            for acl in resource.acls
        )

    async def create_acls(self, entries: Iterable[Entry]) -> None:
        """Adds ACLs; those that are there stay. KafkaErrors, of the first that isn't taken:
        INVALID_REQUEST, SECURITY_DISABLED.
        """
        kinds = messages.CreateAclsRequest
        await self._alter(kinds([kinds.AclCreation(*each) for each in entries]), "results")

    async def delete_acls(self, sought: Iterable[Sought]) -> list[Entry]:
        """Takes away what is found, and says what that was; sorted."""
        kinds = messages.DeleteAclsRequest
        request = kinds([kinds.DeleteAclsFilter(*each) for each in sought])
        results = await self._alter(request, "filter_results")
        found: set[Entry] = set()
        for result in results:
            for acl in result.matching_acls:
                check(acl.error_code, acl.error_message)
                found.add(
                    (
                        acl.resource_type,
                        acl.resource_name,
                        acl.pattern_type,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permission_type,
                    )
                )
        return sorted(found)

    async def broker_settings(self) -> dict[str, str | None]:
        """The settings of a broker that serves; None for the values that it doesn't tell."""
        cluster = await self.describe_cluster()
        serving = [each.id for each in cluster.brokers.values() if not each.fenced]
        values = await self.describe_configs(str(serving[0]), resource_type=BROKER_RESOURCE)
        return {each.name: each.value for each in values}

    async def _alter(self, request: Any, results: str) -> list[Any]:
        """What became of each item, once none of them has an error."""

        async def ask() -> list[Any]:
            response = await self._cluster.request(
                request, timeout_ms=self._timeout_ms + ANSWER_MARGIN_MS
            )
            items: list[Any] = getattr(response, results)
            for item in items:
                check(item.error_code, item.error_message)
            return items

        return await self._patiently(ask)

    async def describe_users(self, names: Sequence[str] = ()) -> dict[str, dict[str, int]]:
        """Iterations by mechanism of each user, or of all who may log in by SCRAM; sorted.

        KafkaErrors: RESOURCE_NOT_FOUND of somebody who has no credentials.
        """
        kinds = messages.DescribeUserScramCredentialsRequest
        response = await self._ask(kinds([kinds.UserName(name) for name in names]))
        found: dict[str, dict[str, int]] = {}
        for result in response.results:
            check(result.error_code, result.error_message)
            found[result.user] = {
                SCRAM_MECHANISMS.get(each.mechanism, str(each.mechanism)): each.iterations
                for each in result.credential_infos
            }
        return dict(sorted(found.items()))

    async def describe_quotas(
        self, parts: Mapping[str, str | None], *, strict: bool = False
    ) -> list[tuple[Entity, dict[str, float]]]:
        """The quotas of all entities that have these parts, `strict`: and no other; sorted."""
        kinds = messages.DescribeClientQuotasRequest
        components = [
            kinds.ComponentData(kind, _BY_DEFAULT if name is None else _BY_NAME, name)
            for kind, name in parts.items()
        ]
        response = await self._ask(kinds(components, strict))
        found = [
            (
                tuple(sorted((part.entity_type, part.entity_name) for part in each.entity)),
                {value.key: value.value for value in sorted(each.values, key=lambda v: v.key)},
            )
            for each in response.entries or ()
        ]
        return sorted(found, key=lambda each: [(kind, name or "") for kind, name in each[0]])

    async def alter_quotas(self, entity: Entity, values: Mapping[str, float | None]) -> None:
        """Has an entity have these quotas, and those that are None no more.

        KafkaErrors: INVALID_REQUEST.
        """
        kinds = messages.AlterClientQuotasRequest
        entry = kinds.EntryData(
            [kinds.EntityData(*part) for part in entity],
            [kinds.OpData(key, value or 0.0, value is None) for key, value in values.items()],
        )
        await self._alter(kinds([entry]), "entries")

    async def upsert_credentials(self, name: str, credentials: Iterable[Credential]) -> None:
        """Has a user log in by these. KafkaErrors: UNACCEPTABLE_CREDENTIAL."""
        kinds = messages.AlterUserScramCredentialsRequest
        upsertions = [
            kinds.ScramCredentialUpsertion(
                name, _number(each.mechanism), each.iterations, each.salt, each.salted_password
            )
            for each in credentials
        ]
        await self._alter(kinds(upsertions=upsertions), "results")

    async def delete_credentials(self, name: str, mechanisms: Iterable[str]) -> None:
        """Has a user not log in by these any more. KafkaErrors: RESOURCE_NOT_FOUND."""
        kinds = messages.AlterUserScramCredentialsRequest
        deletions = [kinds.ScramCredentialDeletion(name, _number(each)) for each in mechanisms]
        await self._alter(kinds(deletions=deletions), "results")

    # -- delegation tokens

    async def create_delegation_token(
        self, *, owner: str = "", renewers: Sequence[str] = (), max_lifetime_ms: int = -1
    ) -> Token:
        """A token of whoever asks, or of `owner`; both and `renewers` are written User:name.

        It lasts for `max_lifetime_ms` at most, if that is more than 0 and no more than the brokers
        let it. When a broker is lost before it has answered there may be another such token, which
        nobody has. KafkaErrors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        INVALID_PRINCIPAL_TYPE, INVALID_REQUEST; UNSUPPORTED_VERSION of a broker before Kafka 3.3,
        which takes whoever asks for the owner: that token is expired.
        """
        kinds = messages.CreateDelegationTokenRequest
        kind, name = _parted(owner) if owner else (None, None)
        asked = [kinds.CreatableRenewers(*_parted(each)) for each in renewers]
        made = await self._ask(kinds(kind, name, asked, max_lifetime_ms))
        requester = f"{made.token_requester_principal_type}:{made.token_requester_principal_name}"
        whose = f"{made.principal_type}:{made.principal_name}"
        token = Token(
            id=made.token_id,
            owner=whose,
            requester=whose if requester == ":" else requester,
            renewers=tuple(renewers),
            issued_ms=made.issue_timestamp_ms,
            expires_ms=made.expiry_timestamp_ms,
            max_ms=made.max_timestamp_ms,
            hmac=_in_base64(made.hmac),
        )
        if owner and whose != owner:
            await self.expire_delegation_token(token.hmac)
            text = "the broker knows no tokens for others than who asks (KIP-373)"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
        return token

    async def renew_delegation_token(self, hmac: Secret, period_ms: int = -1) -> int:
        """Has a token last from now on for so long, below 0 as long as it may; until when.

        KafkaErrors: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH,
        DELEGATION_TOKEN_EXPIRED.
        """
        request = messages.RenewDelegationTokenRequest(_of_base64(hmac), period_ms)
        expires_ms: int = (await self._ask(request)).expiry_timestamp_ms
        return expires_ms

    async def expire_delegation_token(self, hmac: Secret, period_ms: int = -1) -> int:
        """Has a token end when so much time is over, below 0 at once; when that is.

        KafkaErrors: as of `renew_delegation_token`.
        """
        request = messages.ExpireDelegationTokenRequest(_of_base64(hmac), period_ms)
        expires_ms: int = (await self._ask(request)).expiry_timestamp_ms
        return expires_ms

    async def describe_delegation_tokens(self, owners: Sequence[str] | None = None) -> list[Token]:
        """The tokens of these owners, of all if that is None, that the client may see; by id."""
        kinds = messages.DescribeDelegationTokenRequest
        named = None
        if owners is not None:
            named = [kinds.DescribeDelegationTokenOwner(*_parted(each)) for each in owners]
        response = await self._ask(kinds(named))
        found = [_token(each) for each in response.tokens]
        return sorted(found, key=lambda token: token.id)


def _token(each: Any) -> Token:
    owner = f"{each.principal_type}:{each.principal_name}"
    requester = f"{each.token_requester_principal_type}:{each.token_requester_principal_name}"
    return Token(
        id=each.token_id,
        owner=owner,
        requester=owner if requester == ":" else requester,
        renewers=tuple(f"{who.principal_type}:{who.principal_name}" for who in each.renewers),
        issued_ms=each.issue_timestamp,
        expires_ms=each.expiry_timestamp,
        max_ms=each.max_timestamp,
        hmac=_in_base64(each.hmac),
    )


def _parted(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _in_base64(hmac: bytes) -> Secret:
    return Secret(base64.b64encode(hmac).decode())


def _of_base64(hmac: Secret) -> bytes:
    return base64.b64decode(hmac.reveal(), validate=True)


def _number(mechanism: str) -> int:
    return next(number for number, each in SCRAM_MECHANISMS.items() if each == mechanism)
