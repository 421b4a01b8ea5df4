"""Schema tables: authentication, authorization and quotas."""

TABLES = """
SaslHandshakeRequest request 17 v0-1
  mechanism                            string

SaslHandshakeResponse response 17 v0-1
  error_code                           int16
  mechanisms                           []string

SaslAuthenticateRequest request 36 v0-2 flex2+
  auth_bytes                           bytes

SaslAuthenticateResponse response 36 v0-2 flex2+
  error_code                           int16
  error_message                        string?
  auth_bytes                           bytes
  session_lifetime_ms                  int64                    1+

DescribeAclsRequest request 29 v1-3 flex2+
  resource_type_filter                 int8
  resource_name_filter                 string?
  pattern_type_filter                  int8                     =3
  principal_filter                     string?
  host_filter                          string?
  operation                            int8
  permission_type                      int8

DescribeAclsResponse response 29 v1-3 flex2+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?
  resources                            []DescribeAclsResource
    resource_type                      int8
    resource_name                      string
    pattern_type                       int8                     =3
    acls                               []AclDescription
      principal                        string
      host                             string
      operation                        int8
      permission_type                  int8

CreateAclsRequest request 30 v1-3 flex2+
  creations                            []AclCreation
    resource_type                      int8
    resource_name                      string
    resource_pattern_type              int8                     =3
    principal                          string
    host                               string
    operation                          int8
    permission_type                    int8

CreateAclsResponse response 30 v1-3 flex2+
  throttle_time_ms                     int32
  results                              []AclCreationResult
    error_code                         int16
    error_message                      string?

DeleteAclsRequest request 31 v1-3 flex2+
  filters                              []DeleteAclsFilter
    resource_type_filter               int8
    resource_name_filter               string?
    pattern_type_filter                int8                     =3
    principal_filter                   string?
    host_filter                        string?
    operation                          int8
    permission_type                    int8

DeleteAclsResponse response 31 v1-3 flex2+
  throttle_time_ms                     int32
  filter_results                       []DeleteAclsFilterResult
    error_code                         int16
    error_message                      string?
    matching_acls                      []DeleteAclsMatchingAcl
      error_code                       int16
      error_message                    string?
      resource_type                    int8
      resource_name                    string
      pattern_type                     int8                     =3
      principal                        string
      host                             string
      operation                        int8
      permission_type                  int8

DescribeClientQuotasRequest request 48 v0-1 flex1+
  components                           []ComponentData
    entity_type                        string
    match_type                         int8
    match                              string?
  strict                               bool

DescribeClientQuotasResponse response 48 v0-1 flex1+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?
  entries                              []EntryData?
    entity                             []EntityData
      entity_type                      string
      entity_name                      string?
    values                             []ValueData
      key                              string
      value                            float64

AlterClientQuotasRequest request 49 v0-1 flex1+
  entries                              []EntryData
    entity                             []EntityData
      entity_type                      string
      entity_name                      string?
    ops                                []OpData
      key                              string
      value                            float64
      remove                           bool
  validate_only                        bool

AlterClientQuotasResponse response 49 v0-1 flex1+
  throttle_time_ms                     int32
  entries                              []EntryData
    error_code                         int16
    error_message                      string?
    entity                             []EntityData
      entity_type                      string
      entity_name                      string?

EnvelopeRequest request 58 v0-0 flex0+
  request_data                         bytes
  request_principal                    bytes?
  client_host_address                  bytes

EnvelopeResponse response 58 v0-0 flex0+
  response_data                        bytes?                   =null
  error_code                           int16

DescribeUserScramCredentialsRequest request 50 v0-0 flex0+
  users                                []UserName?
    name                               string

DescribeUserScramCredentialsResponse response 50 v0-0 flex0+
  throttle_time_ms                     int32
  error_code                           int16
  error_message                        string?
  results                              []DescribeUserScramCredentialsResult
    user                               string
    error_code                         int16
    error_message                      string?
    credential_infos                   []CredentialInfo
      mechanism                        int8
      iterations                       int32

AlterUserScramCredentialsRequest request 51 v0-0 flex0+
  deletions                            []ScramCredentialDeletion
    name                               string
    mechanism                          int8
  upsertions                           []ScramCredentialUpsertion
    name                               string
    mechanism                          int8
    iterations                         int32
    salt                               bytes
    salted_password                    bytes

AlterUserScramCredentialsResponse response 51 v0-0 flex0+
  throttle_time_ms                     int32
  results                              []AlterUserScramCredentialsResult
    user                               string
    error_code                         int16
    error_message                      string?

CreateDelegationTokenRequest request 38 v1-3 flex2+
  owner_principal_type                 string?                  3+
  owner_principal_name                 string?                  3+
  renewers                             []CreatableRenewers
    principal_type                     string
    principal_name                     string
  max_lifetime_ms                      int64

CreateDelegationTokenResponse response 38 v1-3 flex2+
  error_code                           int16
  principal_type                       string
  principal_name                       string
  token_requester_principal_type       string                   3+
  token_requester_principal_name       string                   3+
  issue_timestamp_ms                   int64
  expiry_timestamp_ms                  int64
  max_timestamp_ms                     int64
  token_id                             string
  hmac                                 bytes
  throttle_time_ms                     int32

RenewDelegationTokenRequest request 39 v1-2 flex2+
  hmac                                 bytes
  renew_period_ms                      int64

RenewDelegationTokenResponse response 39 v1-2 flex2+
  error_code                           int16
  expiry_timestamp_ms                  int64
  throttle_time_ms                     int32

ExpireDelegationTokenRequest request 40 v1-2 flex2+
  hmac                                 bytes
  expiry_time_period_ms                int64

ExpireDelegationTokenResponse response 40 v1-2 flex2+
  error_code                           int16
  expiry_timestamp_ms                  int64
  throttle_time_ms                     int32

DescribeDelegationTokenRequest request 41 v1-3 flex2+
  owners                               []DescribeDelegationTokenOwner?
    principal_type                     string
    principal_name                     string

DescribeDelegationTokenResponse response 41 v1-3 flex2+
  error_code                           int16
  tokens                               []DescribedDelegationToken
    principal_type                     string
    principal_name                     string
    token_requester_principal_type     string                   3+
    token_requester_principal_name     string                   3+
    issue_timestamp                    int64
    expiry_timestamp                   int64
    max_timestamp                      int64
    token_id                           string
    hmac                               bytes
    renewers                           []DescribedDelegationTokenRenewer
      principal_type                   string
      principal_name                   string
  throttle_time_ms                     int32
"""
