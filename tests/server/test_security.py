"""ACLs and quotas of clients: what a broker answers that has none."""

from __future__ import annotations

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.wire import Wire

ACL_VERSIONS = (1, 2, 3)
Component = m.DescribeClientQuotasRequest.ComponentData


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


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.NONE),
        ([Component("user", 2, None)], ErrorCode.NONE),
        ([Component("user", 0, "a"), Component("client-id", 1, None)], ErrorCode.NONE),
        ([Component("ip", 0, "127.0.0.1")], ErrorCode.NONE),
        ([Component("house", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([Component("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([Component("user", 0, "a"), Component("user", 0, "b")], ErrorCode.INVALID_REQUEST),
        ([Component("user", 7, "a")], ErrorCode.INVALID_REQUEST),
        ([Component("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([Component("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([Component("ip", 2, None), Component("user", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_there_are_no_quotas(
    wire: Wire, version: int, components: list[Component], code: ErrorCode
) -> None:
    request = m.DescribeClientQuotasRequest(components, strict=True)
    answer = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)
    assert answer.error_code == code, answer.error_message
    assert answer.entries == ([] if code is ErrorCode.NONE else None)


def test_they_are_advertised(wire: Wire) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("test", "1"))
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    for key in (
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ):
        assert ranges[key] == ADVERTISED[key]
