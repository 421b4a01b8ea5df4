"""The metadata commands: what can be proposed to the quorum, one module per subject.

Each is a frozen dataclass whose fields say by their types what they may hold; `codec` says how it
is written. `state` carries them out.
"""

from __future__ import annotations

from kraftpy.core.metadata.commands.acls import (
    AclFilterItem,
    AclItem,
    CreateAcls,
    DeleteAcls,
)
from kraftpy.core.metadata.commands.brokers import (
    AllocateProducerIds,
    BeginShutdown,
    FenceBroker,
    OfBroker,
    RegisterBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from kraftpy.core.metadata.commands.cluster import (
    Barrier,
    FeatureLevel,
    RaiseLevel,
    UpdateFeatures,
)
from kraftpy.core.metadata.commands.codec import Codec, Command, Since, encode, level_of
from kraftpy.core.metadata.commands.configs import (
    OP_APPEND,
    OP_DELETE,
    OP_SET,
    OP_SUBTRACT,
    AlterConfigs,
    ConfigChange,
    ConfigOp,
)
from kraftpy.core.metadata.commands.leaders import (
    PREFERRED,
    UNCLEAN,
    AlterPartition,
    Elections,
    ElectLeaders,
    InSync,
    ProposedIsr,
    ProposedIsrs,
    RenewedReplica,
    RenewedReplicas,
    RenewReplicas,
)
from kraftpy.core.metadata.commands.quotas import (
    AlterClientQuotas,
    EntityPart,
    EntityQuotas,
    QuotaValue,
)
from kraftpy.core.metadata.commands.reassignments import (
    AlterReassignments,
    Reassignment,
    Reassignments,
)
from kraftpy.core.metadata.commands.security import AlterScram, ScramUpsertion, ScramUser
from kraftpy.core.metadata.commands.tokens import (
    CreateToken,
    ExpireToken,
    RemoveExpiredTokens,
    RenewToken,
)
from kraftpy.core.metadata.commands.topics import (
    Assignment,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    GrownTopic,
    NewTopic,
    OldTopic,
)

COMMANDS = Codec(
    (
        Barrier,
        RaiseLevel,
        UpdateFeatures,
        RegisterBroker,
        UnregisterBroker,
        FenceBroker,
        UnfenceBroker,
        BeginShutdown,
        AllocateProducerIds,
        CreateTopics,
        DeleteTopics,
        CreatePartitions,
        AlterPartition,
        RenewReplicas,
        ElectLeaders,
        AlterReassignments,
        AlterConfigs,
        AlterScram,
        CreateAcls,
        DeleteAcls,
        AlterClientQuotas,
        CreateToken,
        RenewToken,
        ExpireToken,
        RemoveExpiredTokens,
    )
)
"""Those that this release knows."""

__all__ = [
    "COMMANDS",
    "OP_APPEND",
    "OP_DELETE",
    "OP_SET",
    "OP_SUBTRACT",
    "PREFERRED",
    "UNCLEAN",
    "AclFilterItem",
    "AclItem",
    "AllocateProducerIds",
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterPartition",
    "AlterReassignments",
    "AlterScram",
    "Assignment",
    "Barrier",
    "BeginShutdown",
    "Codec",
    "Command",
    "ConfigChange",
    "ConfigOp",
    "CreateAcls",
    "CreatePartitions",
    "CreateToken",
    "CreateTopics",
    "DeleteAcls",
    "DeleteTopics",
    "ElectLeaders",
    "Elections",
    "EntityPart",
    "EntityQuotas",
    "ExpireToken",
    "FeatureLevel",
    "FenceBroker",
    "GrownTopic",
    "InSync",
    "NewTopic",
    "OfBroker",
    "OldTopic",
    "ProposedIsr",
    "ProposedIsrs",
    "QuotaValue",
    "RaiseLevel",
    "Reassignment",
    "Reassignments",
    "RegisterBroker",
    "RemoveExpiredTokens",
    "RenewReplicas",
    "RenewToken",
    "RenewedReplica",
    "RenewedReplicas",
    "ScramUpsertion",
    "ScramUser",
    "Since",
    "UnfenceBroker",
    "UnregisterBroker",
    "UpdateFeatures",
    "encode",
    "level_of",
]
