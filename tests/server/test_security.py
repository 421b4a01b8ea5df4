"""ACLs: what a broker answers that has none."""

from __future__ import annotations

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire

ACL_VERSIONS = (1, 2, 3)


@pytest.mark.parametrize("version", ACL_VERSIONS)
def test_acls_are_disabled(wire: Wire, version: int) -> None:
    disabled = ErrorCode.SECURITY_DISABLED
    described = wire.call(ApiKey.DESCRIBE_ACLS, version, m.DescribeAclsRequest(1))
    assert (described.error_code, described.resources) == (disabled, [])
    assert "no authorizer" in described.error_message
    creation = m.CreateAclsRequest.AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    created = wire.call(ApiKey.CREATE_ACLS, version, m.CreateAclsRequest([creation] * 3))
    assert [each.error_code for each in created.results] == [disabled] * 3
    deletion = m.DeleteAclsRequest.DeleteAclsFilter(1)
    deleted = wire.call(ApiKey.DELETE_ACLS, version, m.DeleteAclsRequest([deletion] * 2))
    assert [each.error_code for each in deleted.filter_results] == [disabled] * 2


def test_they_are_advertised(wire: Wire) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("test", "1"))
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    for key in (
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ):
        assert ranges[key] == ADVERTISED[key]
