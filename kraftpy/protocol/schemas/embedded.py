"""Schema tables: messages kept inside other messages and inside records."""

TABLES = """
ConsumerProtocolSubscription data v0-3
  topics                               []string
  user_data                            bytes?                   =null
  owned_partitions                     []TopicPartition         1+
    topic                              string
    partitions                         []int32
  generation_id                        int32                    2+ =-1
  rack_id                              string?                  3+ =null

ConsumerProtocolAssignment data v0-3
  assigned_partitions                  []TopicPartition
    topic                              string
    partitions                         []int32
  user_data                            bytes?                   =null

DefaultPrincipalData data v0-0 flex0+
  type                                 string
  name                                 string
  token_authenticated                  bool

OffsetCommitKey data v0-1
  group                                string
  topic                                string
  partition                            int32

OffsetCommitValue data v0-4 flex4+
  offset                               int64
  leader_epoch                         int32                    3+ =-1
  metadata                             string
  commit_timestamp                     int64
  expire_timestamp                     int64                    1 =-1
  topic_id                             uuid                     4+ tag0

GroupMetadataKey data v2-2
  group                                string

GroupMetadataValue data v0-4 flex4+
  protocol_type                        string
  generation                           int32
  protocol                             string?
  leader                               string?
  current_state_timestamp              int64                    2+ =-1
  members                              []MemberMetadata
    member_id                          string
    group_instance_id                  string?                  3+ =null
    client_id                          string
    client_host                        string
    rebalance_timeout                  int32                    1+
    session_timeout                    int32
    subscription                       bytes
    assignment                         bytes

ConsumerGroupMetadataKey data v3-3
  group_id                             string

ConsumerGroupMetadataValue data v0-0 flex0+
  epoch                                int32
  metadata_hash                        int64                    0+ tag0

ConsumerGroupMemberMetadataKey data v5-5
  group_id                             string
  member_id                            string

ConsumerGroupMemberMetadataValue data v0-0 flex0+
  instance_id                          string?
  rack_id                              string?
  client_id                            string
  client_host                          string
  subscribed_topic_names               []string
  subscribed_topic_regex               string?
  rebalance_timeout_ms                 int32                    =-1
  server_assignor                      string?

ConsumerGroupClassicMemberMetadata data v0-0 flex0+
  session_timeout_ms                   int32
  supported_protocols                  []ClassicProtocol
    name                               string
    metadata                           bytes

ConsumerGroupTargetAssignmentMetadataKey data v6-6
  group_id                             string

ConsumerGroupTargetAssignmentMetadataValue data v0-0 flex0+
  assignment_epoch                     int32
  assignment_timestamp                 int64                    0+ tag0

ConsumerGroupTargetAssignmentMemberKey data v7-7
  group_id                             string
  member_id                            string

ConsumerGroupTargetAssignmentMemberValue data v0-0 flex0+
  topic_partitions                     []TopicPartition
    topic_id                           uuid
    partitions                         []int32

ConsumerGroupCurrentMemberAssignmentKey data v8-8
  group_id                             string
  member_id                            string

ConsumerGroupCurrentMemberAssignmentValue data v0-0 flex0+
  member_epoch                         int32
  previous_member_epoch                int32
  state                                int8
  assigned_partitions                  []TopicPartitions
    topic_id                           uuid
    partitions                         []int32
    assignment_epochs                  []int32?                 0+ tag0 =null
  partitions_pending_revocation        []TopicPartitions

ConsumerGroupRegularExpressionKey data v16-16
  group_id                             string
  regular_expression                   string

ConsumerGroupRegularExpressionValue data v0-0 flex0+
  topics                               []string
  version                              int64
  timestamp                            int64

ShareGroupMemberMetadataKey data v10-10
  group_id                             string
  member_id                            string

ShareGroupMemberMetadataValue data v0-0 flex0+
  rack_id                              string?
  client_id                            string
  client_host                          string
  subscribed_topic_names               []string

ShareGroupMetadataKey data v11-11
  group_id                             string

ShareGroupMetadataValue data v0-0 flex0+
  epoch                                int32
  metadata_hash                        int64

ShareGroupTargetAssignmentMetadataKey data v12-12
  group_id                             string

ShareGroupTargetAssignmentMetadataValue data v0-0 flex0+
  assignment_epoch                     int32
  assignment_timestamp                 int64                    0+ tag0

ShareGroupTargetAssignmentMemberKey data v13-13
  group_id                             string
  member_id                            string

ShareGroupTargetAssignmentMemberValue data v0-0 flex0+
  topic_partitions                     []TopicPartition
    topic_id                           uuid
    partitions                         []int32

ShareGroupCurrentMemberAssignmentKey data v14-14
  group_id                             string
  member_id                            string

ShareGroupCurrentMemberAssignmentValue data v0-0 flex0+
  member_epoch                         int32
  previous_member_epoch                int32
  state                                int8
  assigned_partitions                  []TopicPartitions
    topic_id                           uuid
    partitions                         []int32

ShareGroupStatePartitionMetadataKey data v15-15
  group_id                             string

ShareGroupStatePartitionMetadataValue data v0-0 flex0+
  initializing_topics                  []TopicPartitionsInfo
    topic_id                           uuid
    topic_name                         string
    partitions                         []int32
  initialized_topics                   []TopicPartitionsInfo
  deleting_topics                      []TopicInfo
    topic_id                           uuid
    topic_name                         string

TransactionLogKey data v0-0
  transactional_id                     string

TransactionLogValue data v0-1 flex1+
  producer_id                          int64
  previous_producer_id                 int64                    1+ tag0 =-1
  next_producer_id                     int64                    1+ tag1 =-1
  producer_epoch                       int16
  transaction_timeout_ms               int32
  transaction_status                   int8
  transaction_partitions               []PartitionsSchema?
    topic                              string
    partition_ids                      []int32
  transaction_last_update_timestamp_ms int64
  transaction_start_timestamp_ms       int64
  client_transaction_version           int16                    1+ tag2
  next_producer_epoch                  int16                    1+ tag3 =-1

ShareSnapshotKey data v0-0
  group_id                             string
  topic_id                             uuid
  partition                            int32

ShareSnapshotValue data v0-0 flex0+
  snapshot_epoch                       int32
  state_epoch                          int32
  leader_epoch                         int32
  start_offset                         int64
  delivery_complete_count              int32                    0+ tag0 =-1
  create_timestamp                     int64
  write_timestamp                      int64
  state_batches                        []StateBatch
    first_offset                       int64
    last_offset                        int64
    delivery_state                     int8
    delivery_count                     int16

ShareUpdateKey data v1-1
  group_id                             string
  topic_id                             uuid
  partition                            int32

ShareUpdateValue data v0-0 flex0+
  snapshot_epoch                       int32
  leader_epoch                         int32
  start_offset                         int64
  delivery_complete_count              int32                    0+ tag0 =-1
  state_batches                        []StateBatch
    first_offset                       int64
    last_offset                        int64
    delivery_state                     int8
    delivery_count                     int16

ControlRecordTypeSchema data v0-0
  type                                 int16

EndTxnMarker data v0-0
  coordinator_epoch                    int32
"""
