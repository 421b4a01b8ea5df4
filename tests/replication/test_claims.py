"""Claims on parts of a partition when brokers die: both logs follow."""

from __future__ import annotations

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Cluster
from tests.server.test_claims import TWIN, Claimer, topics_of
from tests.server.test_transactional_claims import Transactional, TransactionalClaimer
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
        # A transaction is open when it dies, which has its coordinator elsewhere.
        with Wire(*_address(cluster, first)) as wire:
            claimer = TransactionalClaimer(wire, "g")
            number, ending = next(
                (number, node_id)
                for number in range(100)
                if (node_id := _coordinator(wire, f"id-{number}", 1)) not in (first, -1)
            )
            with Wire(*_address(cluster, ending)) as other_wire:
                transactional = Transactional(other_wire, f"id-{number}")
                transactional.begin()
            assert claimer.claim_in(transactional, "t", [(11, 12)]) == (E.NONE, 5)
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
            assert claimer.offset("t") is E.UNSTABLE_OFFSET_COMMIT
            assert claimer.claim_soon("t", [(5, 6)]) == 9
            with Wire(*_address(cluster, ending)) as other_wire:
                transactional._wire = other_wire
                wait_until(lambda: transactional.end() is E.NONE, "the transaction's end")
            wait_until(lambda: claimer.offset("t") == 9, "the marker")
            assert claimer.ranges("t") == (9, [(10, 12, 3)], [])
            found = topics_of(wire)
            leaders = [
                {each.partition_index: each.leader_id for each in found[name].partitions}
                for name in (TWIN, "__consumer_offsets")
            ]
            assert leaders[0] == leaders[1]


def _address(cluster: Cluster, node_id: int) -> tuple[str, int]:
    host, port = cluster.bootstrap.split(",")[node_id - 1].rsplit(":", 1)
    return host, int(port)


def _coordinator(wire: Wire, key: str = "g", key_type: int = 0) -> int:
    find = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators
    return int(found.node_id)
