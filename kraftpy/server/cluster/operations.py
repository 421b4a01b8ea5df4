"""The authorized-operations bit sets of KIP-430, for responses that are asked to include them.

Without an authorizer everybody may do everything that the resource knows. The bits are Kafka's
AclOperation codes. Who may not describe the cluster isn't told what else may be done with it: 0.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.core.security.acls import CLUSTER_NAME, OPERATIONS, Operation, Resource
from kraftpy.core.security.authorizer import View

NOT_ASKED = -(2**31)


def _bits(resource_type: Resource) -> int:
    return sum(1 << operation for operation in OPERATIONS[resource_type])


TOPIC_OPERATIONS = _bits(Resource.TOPIC)
GROUP_OPERATIONS = _bits(Resource.GROUP)
CLUSTER_OPERATIONS = _bits(Resource.CLUSTER)


def topic_operations(view: View | None, asked: bool) -> Callable[[str], int]:
    """What may be done with a topic of that name."""
    return _operations(view, asked, Resource.TOPIC, TOPIC_OPERATIONS)


def group_operations(view: View | None, asked: bool) -> Callable[[str], int]:
    """The same of a group."""
    return _operations(view, asked, Resource.GROUP, GROUP_OPERATIONS)


def _operations(
    view: View | None, asked: bool, resource_type: Resource, known: int
) -> Callable[[str], int]:
    if not asked:
        return lambda _: NOT_ASKED
    if view is None:
        return lambda _: known
    return lambda name: view.mask(resource_type, name) & known


def cluster_operations(view: View | None, asked: bool) -> int:
    """What may be done with the cluster."""
    if not asked:
        return NOT_ASKED
    if view is None:
        return CLUSTER_OPERATIONS
    mask = view.mask(Resource.CLUSTER, CLUSTER_NAME)
    return mask & CLUSTER_OPERATIONS if mask & 1 << Operation.DESCRIBE else 0
