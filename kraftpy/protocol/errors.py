"""Kafka's error codes, and the exceptions that carry or cause them.

`ErrorCode` is the wire's 16-bit error number with what a client may do about it: `retriable`
follows Kafka's protocol guide (a client tries the same request again after it refreshed its
metadata, found the coordinator, or simply waited), `message` is one sentence for people. An error
code is part of correctness: look up what clients do with a code before choosing it, because a wrong
one makes a producer write twice.

Codes from 10000 up are kraftpy's own; a stock client never receives one.
"""

from __future__ import annotations

from enum import IntEnum


class DecodeError(ValueError):
    """Bytes from outside do not form the message they claim to be.

    Every decoder raises this and nothing else.
    """


class ErrorCode(IntEnum):
    """A Kafka error code; `ErrorCode(3)` looks one up by number, else `ValueError`."""

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool = False, message: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = (
        -1,
        False,
        "The server failed in a way it did not expect; its log says more.",
    )
    NONE = 0, False, "Success."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside the partition's log."
    CORRUPT_MESSAGE = 2, True, "The records fail their checksum or are otherwise damaged."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server has no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size makes no sense."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader right now; an election is due."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        True,
        "This broker does not lead the partition or holds no replica of it.",
    )
    REQUEST_TIMED_OUT = 7, True, "The request took longer than its timeout."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available for this partition."
    MESSAGE_TOO_LARGE = 10, False, "The record batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = (
        11,
        False,
        "The request comes from a controller that has been replaced.",
    )
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata string of the commit is too long."
    NETWORK_EXCEPTION = 13, True, "The connection ended before the response came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "No coordinator is available at the moment."
    NOT_COORDINATOR = 16, True, "Another broker is the coordinator."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not valid or not allowed here."
    RECORD_LIST_TOO_LARGE = 18, False, "The records do not fit into one segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were written, but too few replicas are in sync to call them safe.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The group is in another generation."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        False,
        "The member shares no protocol with the rest of the group.",
    )
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's limits."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The commit is too large to store."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for this cluster operation."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is outside the accepted range."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "The server does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "The topic exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A configuration value is not valid."
    NOT_CONTROLLER = 41, True, "Another node is the active controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        False,
        "The log's record format cannot answer this request.",
    )
    POLICY_VIOLATION = 44, False, "A policy of the cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence numbers have a gap."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "A producer with a newer epoch has taken over."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The transactional id belongs to another producer id."
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        False,
        "The transaction timeout is above transaction.max.timeout.ms.",
    )
    CONCURRENT_TRANSACTIONS = (
        51,
        True,
        "Another operation on the same transaction is still running.",
    )
    TRANSACTION_COORDINATOR_FENCED = 52, False, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for this transactional id."
    SECURITY_DISABLED = 54, False, "Security features are switched off."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk failed while reading or writing the log."
    LOG_DIR_NOT_FOUND = 57, False, "The log directory is not configured on this broker."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker no longer knows this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The principal may not renew or expire this token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Tokens are not handed out over this kind of connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The fetch session is gone."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session is at another epoch."
    LISTENER_NOT_FOUND = (
        72,
        True,
        "The leader has no listener of the name that the request came in on.",
    )
    TOPIC_DELETION_DISABLED = 73, False, "delete.topic.enable is false."
    FENCED_LEADER_EPOCH = 74, True, "The request's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The request's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "The client cannot read the partition's compression type.",
    )
    STALE_BROKER_EPOCH = 77, False, "The broker has registered anew since."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader has not learnt the high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id of this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member uses the same group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the wanted leader already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = (
        86,
        False,
        "The group is subscribed to the topic whose offsets were to go.",
    )
    INVALID_RECORD = 87, False, "The broker refuses a record because of its content."
    UNSTABLE_OFFSET_COMMIT = (
        88,
        True,
        "A transaction with offsets for this partition is still open.",
    )
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up; wait for the throttle time."
    PRODUCER_FENCED = 90, False, "A newer producer with the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, False, "There is no such resource."
    DUPLICATE_RESOURCE = 92, False, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the rules for credentials."
    INCONSISTENT_VOTER_SET = (
        94,
        False,
        "Sender or receiver is not among the voters the other knows.",
    )
    INVALID_UPDATE_VERSION = 95, False, "The version to update to or from is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The finalized features could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This server knows no topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A live broker uses this id already."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log on disk belongs to another topic id."
    INCONSISTENT_CLUSTER_ID = 104, False, "The peer belongs to another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync set."
    NEW_LEADER_ELECTED = 108, False, "The change to the partition led to a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is only in remote storage now."
    FENCED_MEMBER_EPOCH = 110, False, "The group has fenced this member; join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another live member holds this instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the chosen assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old; heartbeat first, then try again."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This kind of endpoint is not supported yet."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription has been replaced."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed telemetry is too large."
    INVALID_REGISTRATION = 119, False, "The controller finds the registration invalid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction hit an error; abort it."
    INVALID_RECORD_STATE = 121, False, "The record's state does not allow the acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, True, "The share session is gone."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator knows a newer state epoch."
    INVALID_VOTER_KEY = 125, False, "The voter key does not match the receiver."
    DUPLICATE_VOTER = 126, False, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "Start again from the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The streams topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The streams topology epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has as many share sessions as it allows."

    UNEXPECTED_OFFSET = 10_000, False, "Another offset is committed, or about to be, than expected."
    # Of cooperative consumption (seed 001), in its order, and one more.
    INDIVIDUAL_COMMIT_NOT_ALLOWED = (
        10_001,
        False,
        "The coordinator doesn't take claims on parts of a partition.",
    )
    TOPIC_RANGE_FETCH_NOT_ALLOWED = (
        10_002,
        False,
        "The topic's records aren't given out by ranges of keys.",
    )
    CONSUMER_RANGE_FETCH_NOT_ACCEPTED = (
        10_003,
        False,
        "The consumer isn't to share a partition with others.",
    )
    INDIVIDUAL_COMMIT_TOO_OLD = (
        10_004,
        False,
        "All that is claimed lies below the offset up to which everything is done.",
    )
    MAX_INDIVIDUAL_COMMIT_REACHED = (
        10_005,
        True,
        "The coordinator keeps as many claims of the group as it may.",
    )
    KEY_RANGE_NOT_OWNED = 10_006, False, "The records with these keys are another member's."


class KafkaError(Exception):
    """A request failed with a Kafka error code; the server puts it into the response.

    `code` is the `ErrorCode`, `message` the text for people: what is wrong and what to do next
    (the code's own sentence when none is given).
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.message if message is None else message
        super().__init__(f"{code.name}: {self.message}")


def error_code(number: int) -> ErrorCode:
    """The `ErrorCode` of a number; one that a newer release has made is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
