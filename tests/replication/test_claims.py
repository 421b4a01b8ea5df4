"""Claims on parts of a partition when brokers die: both logs follow."""

from __future__ import annotations

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Cluster
from tests.server.test_claims import TWIN, Claimer, topics_of
from tests.server.wire import Wire
from tests.waiting import wait_until


def test_claims_follow_a_coordinator_that_dies() -> None:
    with Cluster(3) as cluster:
        with Wire(*_address(cluster, 1)) as wire:
            kinds = m.CreateTopicsRequest
            request = kinds([kinds.CreatableTopic("t", 1, 3)], 10_000)
            assert wire.call(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code == 0
            first = _coordinator(wire)
        with Wire(*_address(cluster, first)) as wire:
            claimer = Claimer(wire, "g")
            assert claimer.commit("t", 5) is E.NONE
            assert claimer.claim_soon("t", [(7, 8), (10, 10)]) == 5
        cluster.kill(first)
        other = next(each for each in (1, 2, 3) if each != first)

        def moved() -> bool:
            with Wire(*_address(cluster, other)) as wire:
                return _coordinator(wire) not in (first, -1)

        wait_until(moved, "another coordinator")
        with Wire(*_address(cluster, other)) as wire:
            second = _coordinator(wire)
        with Wire(*_address(cluster, second)) as wire:
            claimer = Claimer(wire, "g")
            assert claimer.ranges_soon("t") == (5, [(7, 8, 3), (10, 10, 3)], [])
            assert claimer.claim_soon("t", [(5, 6)]) == 9
            found = topics_of(wire)
            leaders = [
                {each.partition_index: each.leader_id for each in found[name].partitions}
                for name in (TWIN, "__consumer_offsets")
            ]
            assert leaders[0] == leaders[1]


def _address(cluster: Cluster, node_id: int) -> tuple[str, int]:
    host, port = cluster.bootstrap.split(",")[node_id - 1].rsplit(":", 1)
    return host, int(port)


def _coordinator(wire: Wire) -> int:
    find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators
    return int(found.node_id)
