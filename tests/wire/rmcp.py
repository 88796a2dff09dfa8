"""What the Rust servers leave out of this suite, and why.

Behind our service (`tower`) that is what belongs to the packages of the other languages. Behind rmcp's (`rmcp`) most of
HTTP is rmcp's own: it is asked what a session manager answers for.
"""

from __future__ import annotations

import pytest

LAB = "a store of one's own is a backend of the engine in Rust: docs/stores/own-in-rust.md"
SDK = "our service answers as the specification has it, and rmcp's own in plain text"
PACKAGE = "an option of the packages for Python and Node"
LOST = "a process in Rust has no hooks at its exit: who ends it drains"

# Of every Rust server, by the name of a test or of its file.
RUST = {
    "test_admission.py": "the vectors are those of the SDKs that a package replaces",
    "test_user_store.py": LAB,
    "test_f28_control_rows_never_appear_as_messages": LAB,
    "test_everything_else_is_answered_as_the_sdk_does": SDK,
    "test_sse_headers_are_those_of_the_sdk": SDK,
    "test_stateless_mode_serves_without_sessions": PACKAGE,
    "test_an_event_store_alone_or_with_install_is_resumable": PACKAGE,
    "test_disabled_by_the_environment_is_stock": PACKAGE,
    "test_the_kill_switch_leaves_a_server_with_our_store_working": PACKAGE,
    "test_install_may_leave_the_transports_of_the_sdk": PACKAGE,
    "test_auth_reaches_handlers_and_binds_the_session": "authentication is middleware of tower's, which says who asks",
    "test_i7_two_tenants_with_the_same_names_see_nothing_of_each_other": "authentication is middleware of tower's",
    "test_i7_a_second_token_of_the_same_tenant_is_the_same_tenant": "authentication is middleware of tower's",
    "test_what_a_process_was_told_to_drop_is_gone_when_it_ends": LOST,
    "test_our_server_is_resumable": "tests/client has no program of a Rust server yet",
    "test_f16_batch_whose_responses_are_made_while_the_client_is_away_is_resumed_whole": "rmcp takes no batches",
}

# What is asked behind rmcp's service.
ASKED = {"test_polling.py", "test_replay.py", "test_isolation.py", "test_ownership.py"}
STATUS = "rmcp answers a resume with 200 and a stream, whatever its session manager says"
COMMENT = "a session manager of rmcp's has no way to write a comment"
RMCP = {
    "test_keep_alives_are_comments": "rmcp writes the comments, with an option of its own",
    "test_f24_post_stream_starts_with_an_id": "rmcp writes the answer to initialize by itself",
    "test_f19_unknown_cursor_without_a_request_is_refused": STATUS,
    "test_f19_lost_stream_fails_the_request_it_names": STATUS,
    "test_f32_reader_of_a_finished_stream_is_told_to_stop": STATUS,
    "test_f20_trimmed_history_is_announced": COMMENT,
    "test_f05_a_session_belongs_to_its_principal": "rmcp shows its session manager the request of a POST only",
    "test_f08_duplicate_id_in_flight_is_refused_and_the_first_is_untouched": "rmcp answers what is refused with 500",
}


def left_out(item: pytest.Item, server: str) -> None:
    """Has a test of this Rust server skipped, with the reason, where it is not about what is ours."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    reason = RUST.get(name) or RUST.get(item.path.name)
    if "lab" in getattr(item, "fixturenames", ()):
        reason = LAB
    if server == "rmcp":
        reason = reason or RMCP.get(name)
        if item.path.name not in ASKED:
            reason = "HTTP is rmcp's own here: the engine is asked behind our service"
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason))
    if item.path.name == "test_stores.py":
        # What its processes go through, one server of each other language goes through in the quick run.
        item.add_marker(pytest.mark.full)
