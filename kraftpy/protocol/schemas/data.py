"""Schema tables: reading and writing partitions, and finding their leaders."""

TABLES = """
ProduceRequest request 0 v0-13 flex9+
  transactional_id                     string?                  3+ =null
  acks                                 int16
  timeout_ms                           int32
  topic_data                           []TopicProduceData
    name                               string                   0-12
    topic_id                           uuid                     13+
    partition_data                     []PartitionProduceData
      index                            int32
      records                          records?

ProduceResponse response 0 v0-13 flex9+
  responses                            []TopicProduceResponse
    name                               string                   0-12
    topic_id                           uuid                     13+
    partition_responses                []PartitionProduceResponse
      index                            int32
      error_code                       int16
      base_offset                      int64
      log_append_time_ms               int64                    2+ =-1
      log_start_offset                 int64                    5+ =-1
      record_errors                    []BatchIndexAndErrorMessage 8+
        batch_index                    int32
        batch_index_error_message      string?                  =null
      error_message                    string?                  8+ =null
      current_leader                   LeaderIdAndEpoch         10+ tag0
        leader_id                      int32                    =-1
        leader_epoch                   int32                    =-1
  throttle_time_ms                     int32                    1+
  node_endpoints                       []NodeEndpoint           10+ tag0
    node_id                            int32
    host                               string
    port                               int32
    rack                               string?                  =null

FetchRequest request 1 v0-18 flex12+
  cluster_id                           string?                  12+ tag0 =null
  replica_id                           int32                    0-14 =-1
  replica_state                        ReplicaState             15+ tag1
    replica_id                         int32                    =-1
    replica_epoch                      int64                    =-1
  max_wait_ms                          int32
  min_bytes                            int32
  max_bytes                            int32                    3+ =2147483647
  isolation_level                      int8                     4+
  session_id                           int32                    7+
  session_epoch                        int32                    7+ =-1
  topics                               []FetchTopic
    topic                              string                   0-12
    topic_id                           uuid                     13+
    partitions                         []FetchPartition
      partition                        int32
      current_leader_epoch             int32                    9+ =-1
      fetch_offset                     int64
      last_fetched_epoch               int32                    12+ =-1
      log_start_offset                 int64                    5+ =-1
      partition_max_bytes              int32
      replica_directory_id             uuid                     17+ tag0
      high_watermark                   int64                    18+ tag1 =9223372036854775807
  forgotten_topics_data                []ForgottenTopic         7+
    topic                              string                   7-12
    topic_id                           uuid                     13+
    partitions                         []int32
  rack_id                              string                   11+

FetchResponse response 1 v0-18 flex12+
  throttle_time_ms                     int32                    1+
  error_code                           int16                    7+
  session_id                           int32                    7+
  responses                            []FetchableTopicResponse
    topic                              string                   0-12
    topic_id                           uuid                     13+
    partitions                         []PartitionData
      partition_index                  int32
      error_code                       int16
      high_watermark                   int64
      last_stable_offset               int64                    4+ =-1
      log_start_offset                 int64                    5+ =-1
      diverging_epoch                  EpochEndOffset           12+ tag0
        epoch                          int32                    =-1
        end_offset                     int64                    =-1
      current_leader                   LeaderIdAndEpoch         12+ tag1
        leader_id                      int32                    =-1
        leader_epoch                   int32                    =-1
      snapshot_id                      SnapshotId               12+ tag2
        end_offset                     int64                    =-1
        epoch                          int32                    =-1
      aborted_transactions             []AbortedTransaction?    4+
        producer_id                    int64
        first_offset                   int64
      preferred_read_replica           int32                    11+ =-1
      records                          records?
  node_endpoints                       []NodeEndpoint           16+ tag0
    node_id                            int32
    host                               string
    port                               int32
    rack                               string?                  =null

ListOffsetsRequest request 2 v0-11 flex6+
  replica_id                           int32
  isolation_level                      int8                     2+
  topics                               []ListOffsetsTopic
    name                               string
    partitions                         []ListOffsetsPartition
      partition_index                  int32
      current_leader_epoch             int32                    4+ =-1
      timestamp                        int64
      max_num_offsets                  int32                    0 =1
  timeout_ms                           int32                    10+

ListOffsetsResponse response 2 v0-11 flex6+
  throttle_time_ms                     int32                    2+
  topics                               []ListOffsetsTopicResponse
    name                               string
    partitions                         []ListOffsetsPartitionResponse
      partition_index                  int32
      error_code                       int16
      old_style_offsets                []int64                  0
      timestamp                        int64                    1+ =-1
      offset                           int64                    1+ =-1
      leader_epoch                     int32                    4+ =-1

MetadataRequest request 3 v0-13 flex9+
  topics                               []MetadataRequestTopic?1+
    topic_id                           uuid                     10+
    name                               string?10+
  allow_auto_topic_creation            bool                     4+ =true
  include_cluster_authorized_operations bool                     8-10
  include_topic_authorized_operations  bool                     8+

MetadataResponse response 3 v0-13 flex9+
  throttle_time_ms                     int32                    3+
  brokers                              []MetadataResponseBroker
    node_id                            int32
    host                               string
    port                               int32
    rack                               string?                  1+ =null
  cluster_id                           string?                  2+ =null
  controller_id                        int32                    1+ =-1
  topics                               []MetadataResponseTopic
    error_code                         int16
    name                               string?12+
    topic_id                           uuid                     10+
    is_internal                        bool                     1+
    partitions                         []MetadataResponsePartition
      error_code                       int16
      partition_index                  int32
      leader_id                        int32
      leader_epoch                     int32                    7+ =-1
      replica_nodes                    []int32
      isr_nodes                        []int32
      offline_replicas                 []int32                  5+
    topic_authorized_operations        int32                    8+ =-2147483648
  cluster_authorized_operations        int32                    8-10 =-2147483648
  error_code                           int16                    13+

OffsetForLeaderEpochRequest request 23 v2-4 flex4+
  replica_id                           int32                    3+ =-2
  topics                               []OffsetForLeaderTopic
    topic                              string
    partitions                         []OffsetForLeaderPartition
      partition                        int32
      current_leader_epoch             int32                    =-1
      leader_epoch                     int32

OffsetForLeaderEpochResponse response 23 v2-4 flex4+
  throttle_time_ms                     int32
  topics                               []OffsetForLeaderTopicResult
    topic                              string
    partitions                         []EpochEndOffset
      error_code                       int16
      partition                        int32
      leader_epoch                     int32                    =-1
      end_offset                       int64                    =-1
"""
