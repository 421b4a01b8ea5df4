"""Schema tables: versions, brokers, replicas and the quorum."""

TABLES = """
ApiVersionsRequest request 18 v0-5 flex3+
  client_software_name                 string                   3+
  client_software_version              string                   3+
  cluster_id                           string?                  5+ =null
  node_id                              int32                    5+ =-1

ApiVersionsResponse response 18 v0-5 flex3+
  error_code                           int16
  api_keys                             []ApiVersion
    api_key                            int16
    min_version                        int16
    max_version                        int16
  throttle_time_ms                     int32                    1+
  supported_features                   []SupportedFeatureKey    3+ tag0
    name                               string
    min_version                        int16
    max_version                        int16
  finalized_features_epoch             int64                    3+ tag1 =-1
  finalized_features                   []FinalizedFeatureKey    3+ tag2
    name                               string
    max_version_level                  int16
    min_version_level                  int16
  zk_migration_ready                   bool                     3+ tag3

AlterReplicaLogDirsRequest request 34 v1-2 flex2+
  dirs                                 []AlterReplicaLogDir
    path                               string
    topics                             []AlterReplicaLogDirTopic
      name                             string
      partitions                       []int32

AlterReplicaLogDirsResponse response 34 v1-2 flex2+
  throttle_time_ms                     int32
  results                              []AlterReplicaLogDirTopicResult
    topic_name                         string
    partitions                         []AlterReplicaLogDirPartitionResult
      partition_index                  int32
      error_code                       int16

DescribeLogDirsRequest request 35 v1-5 flex2+
  topics                               []DescribableLogDirTopic?
    topic                              string
    partitions                         []int32

DescribeLogDirsResponse response 35 v1-5 flex2+
  throttle_time_ms                     int32
  error_code                           int16                    3+
  results                              []DescribeLogDirsResult
    error_code                         int16
    log_dir                            string
    topics                             []DescribeLogDirsTopic
      name                             string
      partitions                       []DescribeLogDirsPartition
        partition_index                int32
        partition_size                 int64
        offset_lag                     int64
        is_future_key                  bool
    total_bytes                        int64                    4+ =-1
    usable_bytes                       int64                    4+ =-1
    is_cordoned                        bool                     5+

ElectLeadersRequest request 43 v0-2 flex2+
  election_type                        int8                     1+
  topic_partitions                     []TopicPartitions?
    topic                              string
    partitions                         []int32
  timeout_ms                           int32                    =60000

ElectLeadersResponse response 43 v0-2 flex2+
  throttle_time_ms                     int32
  error_code                           int16                    1+
  replica_election_results             []ReplicaElectionResult
    topic                              string
    partition_result                   []PartitionResult
      partition_id                     int32
      error_code                       int16
      error_message                    string?

AlterPartitionReassignmentsRequest request 45 v0-1 flex0+
  timeout_ms                           int32                    =60000
  allow_replication_factor_change      bool                     1+ =true
  topics                               []ReassignableTopic
    name                               string
    partitions                         []ReassignablePartition
      partition_index                  int32
      replicas                         []int32?                 =null

AlterPartitionReassignmentsResponse response 45 v0-1 flex0+
  throttle_time_ms                     int32
  allow_replication_factor_change      bool                     1+ =true
  error_code                           int16
  error_message                        string?
  responses                            []ReassignableTopicResponse
    name                               string
    partitions                         []ReassignablePartitionResponse
      partition_index                  int32
      error_code                       int16
      error_message                    string?

ListPartitionReassignmentsRequest request 46 v0-0 flex0+
  timeout_ms                           int32                    =60000
  topics                               []ListPartitionReassignmentsTopics? =null
    name                               string
    partition_indexes                  []int32

ListPartitionReassignmentsResponse response 46 v0-0 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?
  topics                               []OngoingTopicReassignment
    name                               string
    partitions                         []OngoingPartitionReassignment
      partition_index                  int32
      replicas                         []int32
      adding_replicas                  []int32
      removing_replicas                []int32

DescribeQuorumRequest request 55 v0-2 flex0+
  topics                               []TopicData
    topic_name                         string
    partitions                         []PartitionData
      partition_index                  int32

DescribeQuorumResponse response 55 v0-2 flex0+
  error_code                           int16
  error_message                        string?                  2+
  topics                               []TopicData
    topic_name                         string
    partitions                         []PartitionData
      partition_index                  int32
      error_code                       int16
      error_message                    string?                  2+
      leader_id                        int32
      leader_epoch                     int32
      high_watermark                   int64
      current_voters                   []ReplicaState
        replica_id                     int32
        replica_directory_id           uuid                     2+
        log_end_offset                 int64
        last_fetch_timestamp           int64                    1+ =-1
        last_caught_up_timestamp       int64                    1+ =-1
      observers                        []ReplicaState
  nodes                                []Node                   2+
    node_id                            int32
    listeners                          []Listener
      name                             string
      host                             string
      port                             uint16

DescribeClusterRequest request 60 v0-2 flex0+
  include_cluster_authorized_operations bool
  endpoint_type                        int8                     1+ =1
  include_fenced_brokers               bool                     2+

DescribeClusterResponse response 60 v0-2 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?                  =null
  endpoint_type                        int8                     1+ =1
  cluster_id                           string
  controller_id                        int32                    =-1
  brokers                              []DescribeClusterBroker
    broker_id                          int32
    host                               string
    port                               int32
    rack                               string?                  =null
    is_fenced                          bool                     2+
  cluster_authorized_operations        int32                    =-2147483648

UnregisterBrokerRequest request 64 v0-0 flex0+
  broker_id                            int32

UnregisterBrokerResponse response 64 v0-0 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?                  =null

UpdateFeaturesRequest request 57 v0-2 flex0+
  timeout_ms                           int32                    =60000
  feature_updates                      []FeatureUpdateKey
    feature                            string
    max_version_level                  int16
    allow_downgrade                    bool                     0
    upgrade_type                       int8                     1+ =1
  validate_only                        bool                     1+

UpdateFeaturesResponse response 57 v0-2 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?
  results                              []UpdatableFeatureResult 0-1
    feature                            string
    error_code                         int16
    error_message                      string?
"""
