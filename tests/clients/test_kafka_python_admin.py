"""What kafka-python's admin client asks for beyond topics: features, security, elections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import InvalidUpdateVersionError, SecurityDisabledError

from kraftpy.protocol.errors import ErrorCode


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_features(admin: KafkaAdminClient) -> None:
    features = admin.describe_features()
    for name, level in (("metadata.version", 33), ("group.version", 1)):
        assert features[name]["finalized"] == (level, level)
        assert features[name]["supported"][1] == level
    assert admin.update_features({"metadata.version": 33}) == {"metadata.version": "OK"}
    for update in ({"no.such": 1}, {"metadata.version": 34}):
        with pytest.raises(InvalidUpdateVersionError):
            admin.update_features(update)


def test_acls_and_credentials_that_are_not_configured(admin: KafkaAdminClient) -> None:
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    with pytest.raises(SecurityDisabledError):
        admin.describe_acls(
            ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything)
        )
    assert admin.describe_user_scram_credentials() == {}
    assert admin.describe_user_scram_credentials(["alice"])["alice"]["error"]


@pytest.mark.parametrize("timeout_ms", [1, 10_000])
def test_an_election_names_each_partition(
    admin: KafkaAdminClient, new_topic: Callable[..., str], timeout_ms: int
) -> None:
    """Also one that times out at once, which may have taken effect or not."""
    topic = new_topic(partitions=2)
    found = admin.elect_leaders(0, {topic: [0, 1]}, timeout_ms=timeout_ms, raise_errors=False)
    (answer,) = found.replica_election_results
    errors = {each.partition_id: each.error_code for each in answer.partition_result}
    assert set(errors) == {0, 1}
    late = {ErrorCode.REQUEST_TIMED_OUT} if timeout_ms == 1 else set()
    assert set(errors.values()) <= {ErrorCode.ELECTION_NOT_NEEDED} | late
