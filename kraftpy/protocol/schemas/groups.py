"""Schema tables: consumer groups and their committed offsets."""

TABLES = """
OffsetCommitRequest request 8 v0-10 flex8+
  group_id                             string
  generation_id_or_member_epoch        int32                    1+ =-1
  member_id                            string                   1+
  group_instance_id                    string?                  7+ =null
  retention_time_ms                    int64                    2-4 =-1
  topics                               []OffsetCommitRequestTopic
    name                               string                   0-9
    topic_id                           uuid                     10+
    partitions                         []OffsetCommitRequestPartition
      partition_index                  int32
      committed_offset                 int64
      committed_leader_epoch           int32                    6+ =-1
      commit_timestamp                 int64                    1 =-1
      committed_metadata               string?

OffsetCommitResponse response 8 v0-10 flex8+
  throttle_time_ms                     int32                    3+
  topics                               []OffsetCommitResponseTopic
    name                               string                   0-9
    topic_id                           uuid                     10+
    partitions                         []OffsetCommitResponsePartition
      partition_index                  int32
      error_code                       int16

OffsetFetchRequest request 9 v0-10 flex6+
  group_id                             string                   0-7
  topics                               []OffsetFetchRequestTopic?2+ 0-7
    name                               string
    partition_indexes                  []int32
  groups                               []OffsetFetchRequestGroup 8+
    group_id                           string
    member_id                          string?                  9+ =null
    member_epoch                       int32                    9+ =-1
    topics                             []OffsetFetchRequestTopics?
      name                             string                   8-9
      topic_id                         uuid                     10+
      partition_indexes                []int32
  require_stable                       bool                     7+

OffsetFetchResponse response 9 v0-10 flex6+
  throttle_time_ms                     int32                    3+
  topics                               []OffsetFetchResponseTopic 0-7
    name                               string
    partitions                         []OffsetFetchResponsePartition
      partition_index                  int32
      committed_offset                 int64
      committed_leader_epoch           int32                    5+ =-1
      metadata                         string?
      error_code                       int16
  error_code                           int16                    2-7
  groups                               []OffsetFetchResponseGroup 8+
    group_id                           string
    topics                             []OffsetFetchResponseTopics
      name                             string                   8-9
      topic_id                         uuid                     10+
      partitions                       []OffsetFetchResponsePartitions
        partition_index                int32
        committed_offset               int64
        committed_leader_epoch         int32                    =-1
        metadata                       string?
        error_code                     int16
    error_code                         int16

OffsetDeleteRequest request 47 v0-0
  group_id                             string
  topics                               []OffsetDeleteRequestTopic
    name                               string
    partitions                         []OffsetDeleteRequestPartition
      partition_index                  int32

OffsetDeleteResponse response 47 v0-0
  error_code                           int16
  throttle_time_ms                     int32
  topics                               []OffsetDeleteResponseTopic
    name                               string
    partitions                         []OffsetDeleteResponsePartition
      partition_index                  int32
      error_code                       int16

FindCoordinatorRequest request 10 v0-6 flex3+
  key                                  string                   0-3
  key_type                             int8                     1+
  coordinator_keys                     []string                 4+

FindCoordinatorResponse response 10 v0-6 flex3+
  throttle_time_ms                     int32                    1+
  error_code                           int16                    0-3
  error_message                        string?                  1-3
  node_id                              int32                    0-3
  host                                 string                   0-3
  port                                 int32                    0-3
  coordinators                         []Coordinator            4+
    key                                string
    node_id                            int32
    host                               string
    port                               int32
    error_code                         int16
    error_message                      string?

JoinGroupRequest request 11 v0-9 flex6+
  group_id                             string
  session_timeout_ms                   int32
  rebalance_timeout_ms                 int32                    1+ =-1
  member_id                            string
  group_instance_id                    string?                  5+ =null
  protocol_type                        string
  protocols                            []JoinGroupRequestProtocol
    name                               string
    metadata                           bytes
  reason                               string?                  8+ =null

JoinGroupResponse response 11 v0-9 flex6+
  throttle_time_ms                     int32                    2+
  error_code                           int16
  generation_id                        int32                    =-1
  protocol_type                        string?                  7+ =null
  protocol_name                        string?7+
  leader                               string
  skip_assignment                      bool                     9+
  member_id                            string
  members                              []JoinGroupResponseMember
    member_id                          string
    group_instance_id                  string?                  5+ =null
    metadata                           bytes

HeartbeatRequest request 12 v0-4 flex4+
  group_id                             string
  generation_id                        int32
  member_id                            string
  group_instance_id                    string?                  3+ =null

HeartbeatResponse response 12 v0-4 flex4+
  throttle_time_ms                     int32                    1+
  error_code                           int16

LeaveGroupRequest request 13 v0-5 flex4+
  group_id                             string
  member_id                            string                   0-2
  members                              []MemberIdentity         3+
    member_id                          string
    group_instance_id                  string?                  =null
    reason                             string?                  5+ =null

LeaveGroupResponse response 13 v0-5 flex4+
  throttle_time_ms                     int32                    1+
  error_code                           int16
  members                              []MemberResponse         3+
    member_id                          string
    group_instance_id                  string?
    error_code                         int16

SyncGroupRequest request 14 v0-5 flex4+
  group_id                             string
  generation_id                        int32
  member_id                            string
  group_instance_id                    string?                  3+ =null
  protocol_type                        string?                  5+ =null
  protocol_name                        string?                  5+ =null
  assignments                          []SyncGroupRequestAssignment
    member_id                          string
    assignment                         bytes

SyncGroupResponse response 14 v0-5 flex4+
  throttle_time_ms                     int32                    1+
  error_code                           int16
  protocol_type                        string?                  5+ =null
  protocol_name                        string?                  5+ =null
  assignment                           bytes

DescribeGroupsRequest request 15 v0-6 flex5+
  groups                               []string
  include_authorized_operations        bool                     3+

DescribeGroupsResponse response 15 v0-6 flex5+
  throttle_time_ms                     int32                    1+
  groups                               []DescribedGroup
    error_code                         int16
    error_message                      string?                  6+ =null
    group_id                           string
    group_state                        string
    protocol_type                      string
    protocol_data                      string
    members                            []DescribedGroupMember
      member_id                        string
      group_instance_id                string?                  4+ =null
      client_id                        string
      client_host                      string
      member_metadata                  bytes
      member_assignment                bytes
    authorized_operations              int32                    3+ =-2147483648

ListGroupsRequest request 16 v0-5 flex3+
  states_filter                        []string                 4+
  types_filter                         []string                 5+

ListGroupsResponse response 16 v0-5 flex3+
  throttle_time_ms                     int32                    1+
  error_code                           int16
  groups                               []ListedGroup
    group_id                           string
    protocol_type                      string
    group_state                        string                   4+
    group_type                         string                   5+

DeleteGroupsRequest request 42 v0-3 flex2+
  groups_names                         []string

DeleteGroupsResponse response 42 v0-3 flex2+
  throttle_time_ms                     int32
  results                              []DeletableGroupResult
    group_id                           string
    error_code                         int16
    error_message                      string?                  3+ =null

ConsumerGroupHeartbeatRequest request 68 v0-1 flex0+
  group_id                             string
  member_id                            string
  member_epoch                         int32
  instance_id                          string?                  =null
  rack_id                              string?                  =null
  rebalance_timeout_ms                 int32                    =-1
  subscribed_topic_names               []string?                =null
  subscribed_topic_regex               string?                  1+ =null
  server_assignor                      string?                  =null
  topic_partitions                     []TopicPartitions?       =null
    topic_id                           uuid
    partitions                         []int32

ConsumerGroupHeartbeatResponse response 68 v0-1 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?                  =null
  member_id                            string?                  =null
  member_epoch                         int32
  heartbeat_interval_ms                int32
  assignment                           Assignment?              =null
    topic_partitions                   []TopicPartitions
      topic_id                         uuid
      partitions                       []int32

ConsumerGroupDescribeRequest request 69 v0-1 flex0+
  group_ids                            []string
  include_authorized_operations        bool

ConsumerGroupDescribeResponse response 69 v0-1 flex0+
  throttle_time_ms                     int32
  groups                               []DescribedGroup
    error_code                         int16
    error_message                      string?                  =null
    group_id                           string
    group_state                        string
    group_epoch                        int32
    assignment_epoch                   int32
    assignor_name                      string
    members                            []Member
      member_id                        string
      instance_id                      string?                  =null
      rack_id                          string?                  =null
      member_epoch                     int32
      client_id                        string
      client_host                      string
      subscribed_topic_names           []string
      subscribed_topic_regex           string?                  =null
      assignment                       Assignment
        topic_partitions               []TopicPartitions
          topic_id                     uuid
          topic_name                   string
          partitions                   []int32
      target_assignment                Assignment
      member_type                      int8                     1+ =-1
    authorized_operations              int32                    =-2147483648
"""
