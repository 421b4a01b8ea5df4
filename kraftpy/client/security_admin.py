"""What an operator asks of security: ACLs, and who may log in by SCRAM (KIP-140, KIP-290, KIP-554).

An ACL, and what finds ACLs, are tuples in the order of the protocol's fields, with its numbers:
type, name and pattern of the resource, principal, host, operation, permission. Whoever prints them
knows what the numbers are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kraftpy.client.admin import ANSWER_MARGIN_MS, BROKER_RESOURCE
from kraftpy.client.cluster import check
from kraftpy.client.cluster_admin import ClusterAdmin
from kraftpy.protocol import messages

Entry = tuple[int, str, int, str, str, int, int]
"""An ACL."""

Sought = tuple[int, str | None, int, str | None, str | None, int, int]
"""What finds ACLs: None, and the numbers that mean any, stand for whatever there is."""

SCRAM_MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Credential(NamedTuple):
    """What a SCRAM user is to log in by: the salted password is made where the password is."""

    mechanism: str
    iterations: int
    salt: bytes
    salted_password: bytes


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


def _number(mechanism: str) -> int:
    return next(number for number, each in SCRAM_MECHANISMS.items() if each == mechanism)
