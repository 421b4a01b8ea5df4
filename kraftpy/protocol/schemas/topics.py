"""Schema tables: topics and configuration."""

TABLES = """
CreateTopicsRequest request 19 v0-7 flex5+
  topics                               []CreatableTopic
    name                               string
    num_partitions                     int32
    replication_factor                 int16
    assignments                        []CreatableReplicaAssignment
      partition_index                  int32
      broker_ids                       []int32
    configs                            []CreatableTopicConfig
      name                             string
      value                            string?
  timeout_ms                           int32                    =60000
  validate_only                        bool                     1+

CreateTopicsResponse response 19 v0-7 flex5+
  throttle_time_ms                     int32                    2+
  topics                               []CreatableTopicResult
    name                               string
    topic_id                           uuid                     7+
    error_code                         int16
    error_message                      string?                  1+
    topic_config_error_code            int16                    5+ tag0
    num_partitions                     int32                    5+ =-1
    replication_factor                 int16                    5+ =-1
    configs                            []CreatableTopicConfigs? 5+
      name                             string
      value                            string?
      read_only                        bool
      config_source                    int8                     =-1
      is_sensitive                     bool

DeleteTopicsRequest request 20 v0-6 flex4+
  topics                               []DeleteTopicState       6+
    name                               string?                  =null
    topic_id                           uuid
  topic_names                          []string                 0-5
  timeout_ms                           int32

DeleteTopicsResponse response 20 v0-6 flex4+
  throttle_time_ms                     int32                    1+
  responses                            []DeletableTopicResult
    name                               string?6+
    topic_id                           uuid                     6+
    error_code                         int16
    error_message                      string?                  5+ =null

DeleteRecordsRequest request 21 v0-2 flex2+
  topics                               []DeleteRecordsTopic
    name                               string
    partitions                         []DeleteRecordsPartition
      partition_index                  int32
      offset                           int64
  timeout_ms                           int32

DeleteRecordsResponse response 21 v0-2 flex2+
  throttle_time_ms                     int32
  topics                               []DeleteRecordsTopicResult
    name                               string
    partitions                         []DeleteRecordsPartitionResult
      partition_index                  int32
      low_watermark                    int64
      error_code                       int16

CreatePartitionsRequest request 37 v0-3 flex2+
  topics                               []CreatePartitionsTopic
    name                               string
    count                              int32
    assignments                        []CreatePartitionsAssignment?
      broker_ids                       []int32
  timeout_ms                           int32
  validate_only                        bool

CreatePartitionsResponse response 37 v0-3 flex2+
  throttle_time_ms                     int32
  results                              []CreatePartitionsTopicResult
    name                               string
    error_code                         int16
    error_message                      string?                  =null

DescribeConfigsRequest request 32 v1-4 flex4+
  resources                            []DescribeConfigsResource
    resource_type                      int8
    resource_name                      string
    configuration_keys                 []string?
  include_synonyms                     bool
  include_documentation                bool                     3+

DescribeConfigsResponse response 32 v1-4 flex4+
  throttle_time_ms                     int32
  results                              []DescribeConfigsResult
    error_code                         int16
    error_message                      string?
    resource_type                      int8
    resource_name                      string
    configs                            []DescribeConfigsResourceResult
      name                             string
      value                            string?
      read_only                        bool
      config_source                    int8                     =-1
      is_sensitive                     bool
      synonyms                         []DescribeConfigsSynonym
        name                           string
        value                          string?
        source                         int8
      config_type                      int8                     3+
      documentation                    string?                  3+

AlterConfigsRequest request 33 v0-2 flex2+
  resources                            []AlterConfigsResource
    resource_type                      int8
    resource_name                      string
    configs                            []AlterableConfig
      name                             string
      value                            string?
  validate_only                        bool

AlterConfigsResponse response 33 v0-2 flex2+
  throttle_time_ms                     int32
  responses                            []AlterConfigsResourceResponse
    error_code                         int16
    error_message                      string?
    resource_type                      int8
    resource_name                      string

IncrementalAlterConfigsRequest request 44 v0-1 flex1+
  resources                            []AlterConfigsResource
    resource_type                      int8
    resource_name                      string
    configs                            []AlterableConfig
      name                             string
      config_operation                 int8
      value                            string?
  validate_only                        bool

IncrementalAlterConfigsResponse response 44 v0-1 flex1+
  throttle_time_ms                     int32
  responses                            []AlterConfigsResourceResponse
    error_code                         int16
    error_message                      string?
    resource_type                      int8
    resource_name                      string

DescribeTopicPartitionsRequest request 75 v0-0 flex0+
  topics                               []TopicRequest
    name                               string
  response_partition_limit             int32                    =2000
  cursor                               Cursor?                  =null
    topic_name                         string
    partition_index                    int32

DescribeTopicPartitionsResponse response 75 v0-0 flex0+
  throttle_time_ms                     int32
  topics                               []DescribeTopicPartitionsResponseTopic
    error_code                         int16
    name                               string?
    topic_id                           uuid
    is_internal                        bool
    partitions                         []DescribeTopicPartitionsResponsePartition
      error_code                       int16
      partition_index                  int32
      leader_id                        int32
      leader_epoch                     int32                    =-1
      replica_nodes                    []int32
      isr_nodes                        []int32
      eligible_leader_replicas         []int32?                 =null
      last_known_elr                   []int32?                 =null
      offline_replicas                 []int32
    topic_authorized_operations        int32                    =-2147483648
  next_cursor                          Cursor?                  =null
    topic_name                         string
    partition_index                    int32

ListConfigResourcesRequest request 74 v0-1 flex0+
  resource_types                       []int8                   1+

ListConfigResourcesResponse response 74 v0-1 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  config_resources                     []ConfigResource
    resource_name                      string
    resource_type                      int8                     1+ =16
"""
