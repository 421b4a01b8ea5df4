"""Brokers for tests.

Installing kraftpy gives pytest the fixtures of `kraftpy.testing.plugin`; `Broker` (one node) and
`Cluster` (several, with faults) are what they hand out, for use outside pytest too:

    from kraftpy.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

Only the standard library is imported here: pytest loads the plugin for every user.
"""

from kraftpy.testing.broker import Broker
from kraftpy.testing.cluster import Cluster, ClusterError
from kraftpy.testing.node import Node
from kraftpy.testing.process import BrokerError
from kraftpy.testing.requests import Fault, Observation, Request

__all__ = [
    "Broker",
    "BrokerError",
    "Cluster",
    "ClusterError",
    "Fault",
    "Node",
    "Observation",
    "Request",
]
