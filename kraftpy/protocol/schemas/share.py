"""Schema tables: the state of share groups, between brokers (KIP-932)."""

TABLES = """
InitializeShareGroupStateRequest request 83 v0-0 flex0+
  group_id                             string
  topics                               []InitializeStateData
    topic_id                           uuid
    partitions                         []PartitionData
      partition                        int32
      state_epoch                      int32
      start_offset                     int64

InitializeShareGroupStateResponse response 83 v0-0 flex0+
  results                              []InitializeStateResult
    topic_id                           uuid
    partitions                         []PartitionResult
      partition                        int32
      error_code                       int16
      error_message                    string?                  =null

ReadShareGroupStateRequest request 84 v0-0 flex0+
  group_id                             string
  topics                               []ReadStateData
    topic_id                           uuid
    partitions                         []PartitionData
      partition                        int32
      leader_epoch                     int32

ReadShareGroupStateResponse response 84 v0-0 flex0+
  results                              []ReadStateResult
    topic_id                           uuid
    partitions                         []PartitionResult
      partition                        int32
      error_code                       int16
      error_message                    string?                  =null
      state_epoch                      int32
      start_offset                     int64
      state_batches                    []StateBatch
        first_offset                   int64
        last_offset                    int64
        delivery_state                 int8
        delivery_count                 int16

WriteShareGroupStateRequest request 85 v0-1 flex0+
  group_id                             string
  topics                               []WriteStateData
    topic_id                           uuid
    partitions                         []PartitionData
      partition                        int32
      state_epoch                      int32
      leader_epoch                     int32
      start_offset                     int64
      delivery_complete_count          int32                    1+ =-1
      state_batches                    []StateBatch
        first_offset                   int64
        last_offset                    int64
        delivery_state                 int8
        delivery_count                 int16

WriteShareGroupStateResponse response 85 v0-1 flex0+
  results                              []WriteStateResult
    topic_id                           uuid
    partitions                         []PartitionResult
      partition                        int32
      error_code                       int16
      error_message                    string?                  =null

DeleteShareGroupStateRequest request 86 v0-0 flex0+
  group_id                             string
  topics                               []DeleteStateData
    topic_id                           uuid
    partitions                         []PartitionData
      partition                        int32

DeleteShareGroupStateResponse response 86 v0-0 flex0+
  results                              []DeleteStateResult
    topic_id                           uuid
    partitions                         []PartitionResult
      partition                        int32
      error_code                       int16
      error_message                    string?                  =null

ReadShareGroupStateSummaryRequest request 87 v0-1 flex0+
  group_id                             string
  topics                               []ReadStateSummaryData
    topic_id                           uuid
    partitions                         []PartitionData
      partition                        int32
      leader_epoch                     int32

ReadShareGroupStateSummaryResponse response 87 v0-1 flex0+
  results                              []ReadStateSummaryResult
    topic_id                           uuid
    partitions                         []PartitionResult
      partition                        int32
      error_code                       int16
      error_message                    string?                  =null
      state_epoch                      int32
      leader_epoch                     int32
      start_offset                     int64
      delivery_complete_count          int32                    1+ =-1
"""
