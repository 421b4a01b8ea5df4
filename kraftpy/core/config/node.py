"""Who a node is, how it is reached, how it replicates: the settings of `BrokerConfig` but those of
groups and logs, and what follows from them.

`broker` has the rules of the table.
"""

from __future__ import annotations

from kraftpy.core.config import addresses, kinds
from kraftpy.core.config.addresses import Address, Listener, Voter
from kraftpy.core.config.kinds import (
    LONG_MAX,
    PARTITIONS_MAX,
    boolean,
    int32,
    int64,
    one_of,
    text,
)
from kraftpy.core.config.settings import setting
from kraftpy.core.config.share_coordinator import ShareCoordinatorSettings
from kraftpy.core.security.principals import Principal
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(ShareCoordinatorSettings):
    """The values of one node's settings."""

    # Who this node is and how it's reached.
    node_id: int = setting(int32(-1), "-1", "Id of this node, unique in the cluster.")
    process_roles: frozenset[str] = setting(
        kinds.word_set("broker", "controller"),
        "broker,controller",
        "What this node is: broker, controller, or both. Kafka has no default; one node that is "
        "both makes a cluster by itself.",
    )
    controller_quorum_voters: tuple[Voter, ...] | None = setting(
        addresses.voters(), None, "The controllers that vote, as id@host:port."
    )
    controller_quorum_bootstrap_servers: tuple[Address, ...] | None = setting(
        addresses.addresses(),
        None,
        "Controllers to contact first; for a node that is a broker only, or a quorum of one.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        kinds.text_list("listener names, comma-separated"),
        "CONTROLLER",
        "Which listeners belong to the controller. Kafka has no default.",
    )
    listeners: tuple[Listener, ...] = setting(
        addresses.listeners(advertised=False),
        "PLAINTEXT://:9092",
        "Addresses to listen on. An empty host is every interface, port 0 any free port.",
    )
    advertised_listeners: tuple[Listener, ...] | None = setting(
        addresses.listeners(advertised=True),
        None,
        "Addresses given to clients. Unset, a client is told the address it connected to.",
    )
    listener_security_protocol_map: tuple[tuple[str, str], ...] = setting(
        addresses.protocol_map(),
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
        "SASL_SSL:SASL_SSL",
        "The security protocol that each listener speaks.",
    )
    inter_broker_listener_name: str | None = setting(
        text("the name of a listener"),
        None,
        "The listener that other brokers use. Unset, the first one that is no controller's.",
    )
    security_inter_broker_protocol: str | None = setting(
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        None,
        "Instead of inter.broker.listener.name: the security protocol of the listener that other "
        "brokers use. Kafka's default is PLAINTEXT.",
    )
    authorizer_class_name: str = setting(
        kinds.authorizer(),
        "",
        "What decides who may do what: org.apache.kafka.metadata.authorizer.StandardAuthorizer, "
        "by ACLs. Empty, everybody may do everything.",
    )
    super_users: frozenset[Principal] = setting(
        kinds.principals(),
        "",
        "Who may do everything, as User:admin;User:CN=broker: separated by semicolons.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        boolean(),
        "false",
        "With an authorizer: let everybody use resources that no ACL of anybody applies to.",
    )
    broker_rack: str | None = setting(
        text("the name of a rack"),
        None,
        "Rack, machine or zone of this broker; replicas of a partition go to different ones.",
    )

    # Where data lies.
    log_dir: str = setting(
        text("a folder"),
        "/tmp/kraftpy-logs",  # noqa: S108 - as Kafka's own default; real installations set it
        "Folder of the data when log.dirs is unset. Kafka's default is /tmp/kafka-logs.",
    )
    log_dirs: tuple[str, ...] | None = setting(
        kinds.text_list("folders, comma-separated, each once"),
        None,
        "Folders of the data. A new partition goes to the one with the fewest partitions.",
    )
    metadata_log_dir: str | None = setting(
        text("a folder"), None, "Folder of the metadata log. Unset, the first of log.dirs."
    )

    # Topics.
    num_partitions: int = setting(
        int32(1, PARTITIONS_MAX), "1", "Partitions of a topic that is created without a number."
    )
    default_replication_factor: int = setting(
        int32(1, 32767), "1", "Replicas of a topic that is created without a replication factor."
    )
    auto_create_topics_enable: bool = setting(
        boolean(), "true", "Create a topic when a client asks for the metadata of an unknown one."
    )
    delete_topic_enable: bool = setting(boolean(), "true", "Allow topics to be deleted.")
    min_insync_replicas: int = setting(
        int32(1),
        "1",
        "Replicas that must have a record before acks=all is answered.",
        dynamic=True,
    )
    unclean_leader_election_enable: bool = setting(
        boolean(),
        "false",
        "Let a replica that is not in sync become leader if there is no other; loses records.",
        dynamic=True,
    )
    compression_type: str = setting(
        kinds.codec_name(),
        "producer",
        "Codec of stored batches; producer keeps what the producer chose.",
        dynamic=True,
    )
    compression_gzip_level: int = setting(
        kinds.gzip_level(),
        "-1",
        "Level at which the broker compresses with gzip, -1 for gzip's own.",
        dynamic=True,
    )
    compression_lz4_level: int = setting(
        int32(1, 17), "9", "Level at which the broker compresses with lz4.", dynamic=True
    )
    compression_zstd_level: int = setting(
        int32(-131072, 22), "3", "Level at which the broker compresses with zstd.", dynamic=True
    )
    message_max_bytes: int = setting(
        int32(0), "1048588", "The largest record batch accepted, as it's stored.", dynamic=True
    )
    max_decompressed_message_bytes: int = setting(
        int32(1, 2147483639),
        "2147483639",
        "The most that a batch's records may take uncompressed; never more than 64 MiB, or "
        "message.max.bytes if that is more.",
        dynamic=True,
    )

    # Connections and requests.
    socket_request_max_bytes: int = setting(
        int32(1), "104857600", "The largest request; a larger one closes the connection."
    )
    socket_send_buffer_bytes: int = setting(
        int32(-1),
        "-1",
        "SO_SNDBUF of client connections. -1 lets the system tune it; Kafka's default is 102400.",
    )
    socket_receive_buffer_bytes: int = setting(
        int32(-1),
        "-1",
        "SO_RCVBUF of client connections. -1 lets the system tune it; Kafka's default is 102400.",
    )
    queued_max_request_bytes: int = setting(
        kinds.int64_or_unlimited(1),
        "268435456",
        "Memory for requests that are being received, over all connections. Kafka's default is "
        "no limit.",
    )
    queued_max_response_bytes: int = setting(
        kinds.int64_or_unlimited(1),
        "134217728",
        "Memory for answers that are being built or that clients haven't read, over all "
        "connections. One answer has at most 64 MiB of it. Kafka has no such limit.",
    )
    fetch_max_bytes: int = setting(
        int32(1024), "57671680", "The most bytes of records in one fetch response."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        int32(0),
        "1000",
        "Fetch sessions that are remembered, of consumers, with 200 partitions each on average.",
    )
    max_bytes_key_range_cache: int = setting(
        int64(0),
        "209715200",
        "Memory for what is known of batches that consumers read by ranges of keys; 16 bytes a "
        "record, and its content where reserve.message.value.range.fetch is true.",
    )
    max_bytes_fetcher_filtering: int = setting(
        int64(0),
        "104857600",
        "Bytes of records taken out of their batches that aren't sent yet; beyond it consumers are "
        "sent whole batches, from which they take what is theirs.",
    )

    # Producers.
    producer_id_expiration_ms: int = setting(
        int32(1),
        "86400000",
        "Time after its last batch for which a producer's sequence numbers are kept.",
        dynamic=True,
    )

    # Brokers and the controller.
    broker_session_timeout_ms: int = setting(
        int32(1), "9000", "Time without a heartbeat after which a broker is fenced."
    )
    broker_heartbeat_interval_ms: int = setting(
        int32(1), "2000", "Time between two heartbeats of a broker."
    )
    broker_disconnect_grace_ms: int = setting(
        int32(0),
        "250",
        "Time in which a broker whose connections to the controller broke has to be back, or it is "
        "fenced. kraftpy's own: Kafka waits for broker.session.timeout.ms.",
    )
    auto_leader_rebalance_enable: bool = setting(
        boolean(), "true", "Give partitions back to their preferred leaders in the background."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        int32(1), "300", "How often to look for partitions that others lead."
    )
    leader_imbalance_per_broker_percentage: int = setting(
        int32(0, 100),
        "10",
        "Share of a broker's partitions, in percent, that others lead before it gets them back.",
    )

    # Replication.
    replica_lag_time_max_ms: int = setting(
        int64(1),
        "30000",
        "Time after which a follower that hasn't caught up with its leader leaves the ISR.",
    )
    replica_fetch_wait_max_ms: int = setting(
        int32(0), "500", "How long a leader may hold a follower's fetch that finds nothing."
    )
    replica_fetch_max_bytes: int = setting(
        int32(0), "1048576", "The most bytes of one partition in one fetch of a follower."
    )
    replica_fetch_response_max_bytes: int = setting(
        int32(0),
        "4194304",
        "The most bytes in one answer to a follower's fetch. Kafka's default is 10485760.",
    )
    replica_fetch_backoff_ms: int = setting(
        int32(0), "1000", "The longest wait before a partition that failed is fetched again."
    )
    replica_socket_timeout_ms: int = setting(
        int32(1),
        "30000",
        "Time without an answer after which a connection to a leader is given up.",
    )
    replica_selector_class: str | None = setting(
        text("the name of a class"),
        None,
        "org.apache.kafka.common.replica.RackAwareReplicaSelector sends consumers to the replica "
        "in their rack. Unset, they read from the leader.",
    )
    leader_replication_throttled_rate: int = setting(
        int64(0),
        str(LONG_MAX),
        "Bytes a second that throttled replicas are sent at most.",
        dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        int64(0),
        str(LONG_MAX),
        "Bytes a second that throttled replicas fetch at most.",
        dynamic=True,
    )

    # kraftpy's own.
    kraftpy_quorum_secret_file: str | None = setting(
        text("a file"),
        None,
        "File with the secret that controllers and brokers share; needed off loopback. It is read "
        "again when it changes, and has a second line while a secret is replaced.",
    )
    kraftpy_quorum_force_vote: bool = setting(
        boolean(),
        "false",
        "For one start, if nothing else is left: this controller votes though its folder is empty "
        "and others' are not. What only it and lost voters had confirmed is gone then.",
    )

    kraftpy_metrics_listener: Address | None = setting(
        addresses.address(),
        None,
        "Where metrics are served by HTTP, as host:port; an empty host is every interface. Unset "
        "or empty, they aren't. listener.name.metrics.ssl.keystore.location makes it HTTPS.",
    )
    kraftpy_metrics_users_file: str | None = setting(
        text("a file"),
        None,
        "File with who may see metrics and the page, a line of `kraftpy user hash` each; "
        "/healthz and /readyz are for everybody. Unset, all of it is.",
    )
    kraftpy_metrics_partitions: bool = setting(
        boolean(), "true", "Serve the metrics of each partition, not only of topics and groups."
    )

    kraftpy_log_level: str = setting(
        one_of("debug", "info", "warning", "error"), "info", "The least that is logged."
    )
    kraftpy_log_format: str = setting(
        one_of("text", "json"), "text", "How a line of the log is written: text, or a JSON object."
    )
    kraftpy_log_slow_request_ms: int = setting(
        int32(0),
        "1000",
        "A request that takes longer, not counting what its client is willing to wait, is logged; "
        "0: none is.",
        dynamic=True,
    )

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The folders of the data, resolved: log.dirs, else log.dir."""
        return self.log_dirs or (self.log_dir,)

    @property
    def metadata_dir(self) -> str:
        """The folder of the metadata log, resolved."""
        return self.metadata_log_dir or self.data_dirs[0]

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """The entries of `listeners` that clients and brokers use."""
        names = {name.upper() for name in self.controller_listener_names}
        return tuple(each for each in self.listeners if each.name not in names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The entries of `listeners` that belong to the controller."""
        names = {name.upper() for name in self.controller_listener_names}
        return tuple(each for each in self.listeners if each.name in names)

    @property
    def inter_broker_listener(self) -> Listener:
        """The entry of `listeners` that other brokers use; needs the broker role."""
        name = self.inter_broker_listener_name
        candidates = self.broker_listeners
        if name is None:
            protocols = dict(self.listener_security_protocol_map)
            wanted = self.security_inter_broker_protocol or protocols[candidates[0].name]
            return next(each for each in candidates if protocols[each.name] == wanted)
        return next(each for each in candidates if each.name == name.upper())

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The quorum: controller.quorum.voters, or this node by itself; empty if unknown here."""
        if self.controller_quorum_voters is not None:
            return self.controller_quorum_voters
        if "controller" not in self.process_roles:
            return ()
        if self.controller_quorum_bootstrap_servers is not None:
            return (Voter(self.node_id, *self.controller_quorum_bootstrap_servers[0]),)
        return tuple(
            Voter(self.node_id, each.host or "127.0.0.1", each.port)
            for each in self.controller_listeners[:1]
        )
