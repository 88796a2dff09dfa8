"""What the Rust servers leave out of this suite, and why.

Behind our service (`tower`, and `tower-front` with a front before it) that is what belongs to the packages of the other
languages. Behind rmcp's (`rmcp`) most of HTTP is rmcp's own: it is asked what a session manager answers for. On its own
transport it is asked for all faults.
"""

from __future__ import annotations

import pytest
from kit.servers import TRANSPORT, Kind

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
    "test_f16_batch_whose_responses_are_made_while_the_client_is_away_is_resumed_whole": "rmcp takes no batches",
}

# A front serves requests that its application does not see.
UNSEEN = "what the server counts or holds up is middleware, which a front passes by"
FRONT = {
    "test_f51_session_whose_post_never_came_whole_becomes_idle": UNSEEN,
    "test_stock_client_survives_ten_closes_that_deliver_nothing": UNSEEN,
}
NODE_FRONT = {
    **FRONT,
    "test_the_kill_switch_leaves_a_server_with_our_store_working": "the SDK's handler, which serves then, has no store",
}
HEADERS = "an answer of a front does not name uvicorn, and has a content type only where it has content"
# The SDK's servers look at `Host`.
PYTHON_FRONT = {
    **FRONT,
    "test_json_response_servers_relay_too": HEADERS,
    "test_relayed_requests_are_answered_as_those_at_their_own_process": HEADERS,
    "test_o7_a_session_is_found_at_its_own_server_alone": "a front makes the host of a whole URL the `Host`",
}

# About the store of a stock transport.
NO_STORE = {
    "test_f54_deleting_a_session_frees_its_log",
    "test_f73_stock_client_fails_its_call_and_stops_when_the_stream_is_gone",
}

# What is asked behind rmcp's service.
ASKED = {
    "test_backpressure.py",
    "test_isolation.py",
    "test_lifecycle.py",
    "test_ownership.py",
    "test_polling.py",
    "test_principals.py",
    "test_replay.py",
}
STATUS = "rmcp answers a resume with 200 and a stream, whatever its session manager says"
REFUSED = "rmcp answers what its session manager refuses with 500"
EVENTS = "rmcp writes events itself"
COMMENT = "a session manager of rmcp's has no way to write a comment"
RMCP = {
    "test_keep_alives_are_comments": "rmcp writes the comments, with an option of its own",
    "test_f24_post_stream_starts_with_an_id": "rmcp writes the answer to initialize by itself",
    "test_f19_unknown_cursor_without_a_request_is_refused": STATUS,
    "test_f19_lost_stream_fails_the_request_it_names": STATUS,
    "test_f32_reader_of_a_finished_stream_is_told_to_stop": STATUS,
    "test_f20_trimmed_history_is_announced": COMMENT,
    "test_f57_slow_reader_costs_no_memory": COMMENT,
    "test_f60_event_over_the_limit_is_not_kept": COMMENT,
    "test_f61_line_separators_are_escaped_on_the_wire": EVENTS,
    "test_lines_end_with_lf_and_fields_have_one_blank": EVENTS,
    "test_deleted_session_is_404_for_every_method": "rmcp answers every DELETE with 202",
    "test_f50_sessions_of_one_user_keep_nobody_else_out": REFUSED,
    "test_f50_a_first_request_that_is_refused_leaves_no_session": REFUSED,
    "test_f08_duplicate_id_in_flight_is_refused_and_the_first_is_untouched": REFUSED,
}


def unseen(item: pytest.Item, server: Kind) -> None:
    """Has a test of a server with a front skipped, with the reason, where it is about what is in front of others."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    reasons = {"python": PYTHON_FRONT, "node": NODE_FRONT}.get(server.language, FRONT)
    if reason := reasons.get(name):
        item.add_marker(pytest.mark.skip(reason=reason))


def left_out(item: pytest.Item, server: str) -> None:
    """Has a test of this Rust server skipped, with the reason, where it is not about what is ours."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    reason = RUST.get(name) or RUST.get(item.path.name)
    if "lab" in getattr(item, "fixturenames", ()):
        reason = LAB
    if server == "rmcp-cache" and name in NO_STORE:
        reason = "it has no event store"
    if server == "rmcp" and TRANSPORT != "stock":
        reason = reason or RMCP.get(name)
        if item.path.name not in ASKED:
            reason = "HTTP is rmcp's own here: the engine is asked behind our service"
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason))
    if item.path.name == "test_stores.py":
        # What its processes go through, one server of each other language goes through in the quick run.
        item.add_marker(pytest.mark.full)
