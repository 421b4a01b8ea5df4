"""The message classes: defaults, independence of instances, laziness, and the stub file."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kraftpy.protocol import messages, stubs


def test_the_checked_in_stub_file_is_current() -> None:
    path = Path(stubs.__file__).with_name("messages.pyi")
    current = path.read_text(encoding="utf-8") == stubs.render()
    assert current, "messages.pyi is old: make docs"


def test_importing_messages_builds_nothing() -> None:
    script = (
        "import sys; from kraftpy.protocol import messages;"
        "assert 'kraftpy.protocol.generator' not in sys.modules;"
        "assert 'kraftpy.protocol.schema' not in sys.modules;"
        "messages.ProduceRequest();"
        "assert 'kraftpy.protocol.generator' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        messages.NoSuchRequest  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(messages, "__wrapped__")


def test_defaults_are_kafkas() -> None:
    request = messages.FetchRequest()
    assert (request.cluster_id, request.replica_id, request.max_bytes) == (None, -1, 0x7FFFFFFF)
    assert (request.session_id, request.session_epoch, request.rack_id) == (0, -1, "")
    assert request.topics == []
    assert messages.FetchRequest.FetchTopic().topic_id == bytes(16)
    assert messages.ConsumerGroupHeartbeatRequest().topic_partitions is None


def test_instances_do_not_share_lists_or_structs() -> None:
    messages.FetchRequest().topics.append(messages.FetchRequest.FetchTopic())
    assert messages.FetchRequest().topics == []
    member = messages.ConsumerGroupDescribeResponse.Member
    assert member().assignment == messages.ConsumerGroupDescribeResponse.Assignment()
    assert member().assignment is not member().assignment


def test_arguments_go_by_position_in_schema_order() -> None:
    version = messages.ApiVersionsResponse.ApiVersion(0, 3, 11)
    assert (version.api_key, version.min_version, version.max_version) == (0, 3, 11)


def test_misspelt_fields_fail() -> None:
    with pytest.raises(TypeError):
        messages.FetchRequest(max_wait=5)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        messages.FetchRequest().max_wait = 5  # type: ignore[attr-defined]


def test_equality_and_repr_by_fields() -> None:
    topic = messages.MetadataRequest.MetadataRequestTopic
    assert topic(name="t") == topic(name="t")
    assert topic(name="t") != topic(name="u")
    assert topic(name="t") != messages.FetchRequest.FetchTopic()
    assert repr(messages.SaslHandshakeRequest("PLAIN")) == "SaslHandshakeRequest(mechanism='PLAIN')"
    assert "_tags={9: b'x'}" in repr(topic(name="t", _tags={9: b"x"}))


def test_messages_copy_and_pickle_by_name() -> None:
    request = messages.MetadataRequest([messages.MetadataRequest.MetadataRequestTopic(name="t")])
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request
