"""Schema tables: idempotent and transactional producers."""

TABLES = """
InitProducerIdRequest request 22 v0-6 flex2+
  transactional_id                     string?
  transaction_timeout_ms               int32
  producer_id                          int64                    3+ =-1
  producer_epoch                       int16                    3+ =-1
  enable2_pc                           bool                     6+
  keep_prepared_txn                    bool                     6+

InitProducerIdResponse response 22 v0-6 flex2+
  throttle_time_ms                     int32
  error_code                           int16
  producer_id                          int64                    =-1
  producer_epoch                       int16
  ongoing_txn_producer_id              int64                    6+ =-1
  ongoing_txn_producer_epoch           int16                    6+ =-1

AddPartitionsToTxnRequest request 24 v0-5 flex3+
  transactions                         []AddPartitionsToTxnTransaction 4+
    transactional_id                   string
    producer_id                        int64
    producer_epoch                     int16
    verify_only                        bool
    topics                             []AddPartitionsToTxnTopic
      name                             string
      partitions                       []int32
  v3_and_below_transactional_id        string                   0-3
  v3_and_below_producer_id             int64                    0-3
  v3_and_below_producer_epoch          int16                    0-3
  v3_and_below_topics                  []AddPartitionsToTxnTopic 0-3

AddPartitionsToTxnResponse response 24 v0-5 flex3+
  throttle_time_ms                     int32
  error_code                           int16                    4+
  results_by_transaction               []AddPartitionsToTxnResult 4+
    transactional_id                   string
    topic_results                      []AddPartitionsToTxnTopicResult
      name                             string
      results_by_partition             []AddPartitionsToTxnPartitionResult
        partition_index                int32
        partition_error_code           int16
  results_by_topic_v3_and_below        []AddPartitionsToTxnTopicResult 0-3

AddOffsetsToTxnRequest request 25 v0-4 flex3+
  transactional_id                     string
  producer_id                          int64
  producer_epoch                       int16
  group_id                             string

AddOffsetsToTxnResponse response 25 v0-4 flex3+
  throttle_time_ms                     int32
  error_code                           int16

EndTxnRequest request 26 v0-5 flex3+
  transactional_id                     string
  producer_id                          int64
  producer_epoch                       int16
  committed                            bool

EndTxnResponse response 26 v0-5 flex3+
  throttle_time_ms                     int32
  error_code                           int16
  producer_id                          int64                    5+ =-1
  producer_epoch                       int16                    5+ =-1

WriteTxnMarkersRequest request 27 v0-2 flex1+
  markers                              []WritableTxnMarker
    producer_id                        int64
    producer_epoch                     int16
    transaction_result                 bool
    topics                             []WritableTxnMarkerTopic
      name                             string
      partition_indexes                []int32
    coordinator_epoch                  int32
    transaction_version                int8                     2+

WriteTxnMarkersResponse response 27 v0-2 flex1+
  markers                              []WritableTxnMarkerResult
    producer_id                        int64
    topics                             []WritableTxnMarkerTopicResult
      name                             string
      partitions                       []WritableTxnMarkerPartitionResult
        partition_index                int32
        error_code                     int16

TxnOffsetCommitRequest request 28 v0-5 flex3+
  transactional_id                     string
  group_id                             string
  producer_id                          int64
  producer_epoch                       int16
  generation_id                        int32                    3+ =-1
  member_id                            string                   3+
  group_instance_id                    string?                  3+ =null
  topics                               []TxnOffsetCommitRequestTopic
    name                               string
    partitions                         []TxnOffsetCommitRequestPartition
      partition_index                  int32
      committed_offset                 int64
      committed_leader_epoch           int32                    2+ =-1
      committed_metadata               string?

TxnOffsetCommitResponse response 28 v0-5 flex3+
  throttle_time_ms                     int32
  topics                               []TxnOffsetCommitResponseTopic
    name                               string
    partitions                         []TxnOffsetCommitResponsePartition
      partition_index                  int32
      error_code                       int16

DescribeProducersRequest request 61 v0-0 flex0+
  topics                               []TopicRequest
    name                               string
    partition_indexes                  []int32

DescribeProducersResponse response 61 v0-0 flex0+
  throttle_time_ms                     int32
  topics                               []TopicResponse
    name                               string
    partitions                         []PartitionResponse
      partition_index                  int32
      error_code                       int16
      error_message                    string?                  =null
      active_producers                 []ProducerState
        producer_id                    int64
        producer_epoch                 int32
        last_sequence                  int32                    =-1
        last_timestamp                 int64                    =-1
        coordinator_epoch              int32
        current_txn_start_offset       int64                    =-1

DescribeTransactionsRequest request 65 v0-0 flex0+
  transactional_ids                    []string

DescribeTransactionsResponse response 65 v0-0 flex0+
  throttle_time_ms                     int32
  transaction_states                   []TransactionState
    error_code                         int16
    transactional_id                   string
    transaction_state                  string
    transaction_timeout_ms             int32
    transaction_start_time_ms          int64
    producer_id                        int64
    producer_epoch                     int16
    topics                             []TopicData
      topic                            string
      partitions                       []int32

ListTransactionsRequest request 66 v0-2 flex0+
  state_filters                        []string
  producer_id_filters                  []int64
  duration_filter                      int64                    1+ =-1
  transactional_id_pattern             string?                  2+ =null

ListTransactionsResponse response 66 v0-2 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  unknown_state_filters                []string
  transaction_states                   []TransactionState
    transactional_id                   string
    producer_id                        int64
    transaction_state                  string
"""
