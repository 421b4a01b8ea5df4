"""The traps of security, and which tests hold each: a list that an auditor reads.

A new test of a trap is added to its line. Every test that is named has to be there, and a trap that
has no test yet stands in UNTESTED.
"""

from __future__ import annotations

import re

import pytest

from tests.sources import TESTS, name_of, text_of

TRAPS: dict[str, tuple[str, ...]] = {
    "1 pipelined": (
        "unit/server/network/test_gate.py::test_what_is_pipelined_behind_a_wrong_token_is_never_taken",
    ),
    "2 second exchange": (
        "unit/server/network/test_gate.py::test_a_second_exchange_is_refused_and_changes_nobody",
    ),
    "3 downgrade": (
        "unit/server/network/test_gate.py::test_another_listeners_mechanism_is_not_there",
        "unit/server/network/test_gate.py::test_after_a_handshake_of_version_0_the_tokens_are_bare",
    ),
    "4 reauthentication": (
        "unit/server/network/test_gate_again.py::test_who_goes_on_when_the_time_is_over_is_closed",
        "unit/server/network/test_gate_again.py::test_nobody_becomes_somebody_else",
        "unit/server/network/test_gate_again.py::test_nobody_changes_the_mechanism",
        "server/test_reauthentication.py::"
        "test_trap_4_a_fetch_does_not_wait_beyond_the_end_of_its_login",
    ),
    "5 oversize": (
        "unit/server/network/test_gate.py::test_an_oversized_frame_closes_at_its_size",
        "server/test_tls.py::test_5_oversize_a_frame_of_two_gigabytes_closes_the_connection",
    ),
    "6 slow-loris": (
        "unit/server/network/test_gate.py::test_who_does_not_log_in_in_time_is_closed",
        "unit/server/network/test_tls_channel.py::test_6_slow_loris_the_oldest_gives_way_and_time_is_limited",
        "server/test_tls.py::test_6_slow_loris_a_handshake_that_takes_its_time_is_ended",
    ),
    "7 SCRAM": (
        "unit/core/test_sasl_server.py::test_another_logins_proof_proves_nothing",
        "unit/core/test_sasl_server.py::test_a_proof_for_another_nonce_or_binding_is_refused",
        "unit/core/test_sasl_server.py::test_a_credential_that_is_replaced_midway_lets_nobody_in",
        "protocol/test_sasl.py::test_a_proof_of_another_length_proves_nothing",
        "unit/client/test_secured_connection.py::"
        "test_trap_7_a_broker_that_only_says_that_it_knows_the_password",
    ),
    "8 unknown user": (
        "unit/core/test_sasl_server.py::test_an_unknown_user_looks_like_a_wrong_password",
        "unit/server/network/test_gate.py::test_an_unknown_user_looks_like_a_wrong_password",
    ),
    "9 Unicode": (
        "protocol/test_sasl.py::test_what_is_no_first_message",
        "unit/core/test_metadata_scram.py::test_names_that_nobody_can_log_in_with_are_refused",
        "server/test_credentials.py::test_names_that_nobody_can_log_in_with_are_refused",
    ),
    "10 reserved names": (
        "unit/core/test_sasl_server.py::test_no_name_of_users_makes_somebody_else",
        "unit/core/test_sasl_server.py::test_what_looks_like_a_principal_is_a_name",
        "unit/core/test_config_logins.py::"
        "test_what_nobody_could_log_in_by_is_refused_without_its_passwords",
        "unit/server/network/test_gate.py::test_no_mechanism_of_users_makes_somebody_else",
        "unit/server/network/test_tls_channel.py::test_who_a_certificate_stands_for",
    ),
    "11 replica id": (
        "server/test_rights.py::test_trap_11_a_replica_needs_cluster_action",
        "replication/test_sasl.py::test_trap_11_a_broker_fetches_as_its_own_replica_only",
    ),
    "12 Envelope": (
        "server/test_envelope.py::test_trap_12_a_client_s_envelope_is_refused",
        "server/test_envelope.py::"
        "test_trap_12_nested_other_requests_and_bad_principals_are_refused",
    ),
    "13 DENY": (
        "unit/core/security/test_authorizer.py::test_trap_13_deny_wins_at_every_width",
        "server/test_rights.py::test_trap_13_deny_wins",
    ),
    "14 prefix": (
        "unit/core/security/test_authorizer.py::test_trap_14_a_prefix_is_one_and_a_name_is_none",
    ),
    "15 existence": (
        "server/test_rights.py::"
        "test_trap_15_and_19_without_rights_nothing_is_told_and_nothing_changes",
    ),
    "16 revoked": (
        "server/test_rights.py::test_trap_16_a_fetch_that_waits_asks_again_when_it_answers",
        "server/test_rights.py::test_trap_16_a_session_s_topics_are_asked_for_in_each_fetch",
        "unit/server/replication/test_fetch_sessions.py::"
        "test_trap_16_a_session_is_that_of_who_has_begun_it",
        "unit/core/test_metadata_acls.py::test_trap_16_a_right_that_is_gone_changes_nothing",
    ),
    "17 re-created topic": (
        "server/test_rights.py::test_trap_17_acls_outlive_a_topic_and_its_old_id_reads_nothing",
        "unit/core/security/test_authorizer.py::test_trap_17_acls_are_of_names_and_outlive_topics",
    ),
    "18 regex": ("server/test_rights.py::test_trap_18_a_regex_matches_only_what_may_be_described",),
    "19 every API": (
        "server/test_rights.py::test_trap_19_every_api_has_a_row",
        "server/test_rights.py::test_trap_19_a_neighbouring_right_is_not_enough",
    ),
    "20 quotas": (
        "unit/core/test_quotas.py::test_many_invented_client_ids_take_no_more_memory",
        "unit/core/test_quotas.py::test_what_is_no_quota_is_refused",
    ),
    "20 muted and pipelined": (
        "unit/server/network/test_connection.py::test_trap_20_muted_and_pipelined",
    ),
    "21 reload": (
        "unit/server/network/test_tls_listeners.py::"
        "test_21_reload_half_of_a_pair_and_what_has_expired_leave_what_was_there",
        "unit/server/network/test_tls_channel.py::"
        "test_21_a_ticket_from_before_the_trust_store_changed_is_not_taken",
        "server/test_tls.py::test_21_reload_of_files_on_sighup_and_by_the_setting",
    ),
    "22 JWT": (
        "unit/core/test_tokens.py::test_trap_22_aud",
        "unit/server/network/test_token_keys.py::test_trap_22_none",
        "unit/server/network/test_token_keys.py::test_trap_22_hs256_by_the_rsa_key",
        "unit/server/network/test_token_keys.py::"
        "test_trap_22_a_flood_of_unknown_keys_is_one_reading",
    ),
    "23 secrets": (
        "server/test_tls.py::test_23_secrets_are_in_no_log_nor_description",
        "server/test_sasl.py::"
        "test_no_password_is_in_the_log_or_the_configuration_that_is_shown",
        "server/test_credentials.py::test_the_salted_password_is_kept_nowhere",
        "unit/core/test_metadata_scram.py::test_no_key_is_in_what_is_printed",
        "cli/test_dev_secure.py::test_trap_23_passwords_are_in_no_log_no_page_and_no_journal",
        "unit/cli/test_access.py::test_trap_23_passwords_on_the_command_line_are_refused",
        "unit/client/test_security_settings.py::test_trap_23_no_repr_has_a_secret",
        "unit/spark/test_security.py::test_trap_23_no_repr_has_a_password",
        "cli/test_acls.py::test_users_by_way_of_a_broker",
        "clients/test_sasl.py",
    ),
}  # fmt: skip

UNTESTED: set[str] = set()
"""What there is no mechanism for yet."""


def test_each_trap_has_tests_or_is_known_to_have_none() -> None:
    assert sorted({int(name.split()[0]) for name in TRAPS}) == list(range(1, 24))
    assert {name for name, tests in TRAPS.items() if not tests} == UNTESTED


@pytest.mark.parametrize("trap", TRAPS)
def test_each_test_is_there(trap: str) -> None:
    modules = {name_of(path).removeprefix("tests/"): text_of(path) for path in TESTS}
    for test in TRAPS[trap]:
        module, _, name = test.partition("::")
        assert module in modules, test
        assert not name or re.search(rf"def {name}\(", modules[module]), test
