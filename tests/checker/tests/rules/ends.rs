//! I6, I13: how requests and connections end.

use tailrope_checker::{By, Fact, Why};

use crate::story::{END, Story};

fn answered() -> Story {
    Story::call().stored("a", [1, END]).comes("post", "a", [1, END])
}

#[test]
fn i6_the_end_of_a_request_ends_its_connection() {
    answered().closed("post").done("a").is_good();
    answered().ended("post", By::Client, true).done("a").is_good();
    answered().lost("post").done("a").is_good();
    let again = answered().closed("post").open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [END]);
    again.closed("get").is_good();
    answered().closed("post").open("get", "a", Some("a-end")).head("get", 204, "").closed("get").is_good();
}

#[test]
fn i6_is_broken() {
    answered().breaks("I6", "is open after the end");
    answered().ended("post", By::Server, false).breaks("I6", "cut off");
    answered().emit("a", 2).comes("post", "a", [2]).closed("post").breaks("I6", "something follows the end");
    answered().text("post", ": comment\n\n").closed("post").breaks("I6", "something follows the end");
    answered().closed("post").text("post", ": comment\n\n").breaks("I6", "bytes follow its end");
    let early = answered().closed("post").open("get", "a", Some("a-1")).head("get", 204, "");
    early.breaks("I6", "not at the end");
}

#[test]
fn i13_a_request_has_one_end() {
    answered().closed("post").done("a").is_good();
    let cancelled = Story::call().stored("a", [1]).gone("a", Why::Cancelled).comes("post", "a", [1]).error("post", "a");
    cancelled.closed("post").done("a").is_good();
    let unstored = Story::call().emit("a", END).error("post", "a").refused("a", END).closed("post").done("a");
    unstored.is_good();
    let unheard =
        Story::call().emit("a", END).unsure("a", END).gone("a", Why::Unheard).error("post", "a").closed("post");
    let unheard = unheard.open("get", "a", Some("p0")).prime("get", "p1").comes("get", "a", [END]).closed("get");
    unheard.is_good();
    // The same error comes again, and the response of an expired stream is an error.
    let again = Story::call().gone("a", Why::OwnerLost).error("post", "a").closed("post");
    again.open("get", "a", Some("p0")).prime("get", "p1").error("get", "a").closed("get").done("a").is_good();
    let expired = answered().closed("post").gone("a", Why::Expired).open("get", "a", Some("p0")).error("get", "a");
    expired.closed("get").done("a").is_good();
}

#[test]
fn i3_what_an_owner_that_counts_as_lost_says_is_no_promise_where_another_ended_its_call() {
    let told = || Story::call().stored("a", [1]).comes("post", "a", [1]);
    let lost = || told().gone("a", Why::OwnerLost);
    lost().error("post", "a").closed("post").stored("a", [2, 3]).done("a").is_good();
    lost().emit("a", 2).error("post", "a").closed("post").ack("a", 2).done("a").is_good();
    lost().stored("a", [2]).error("post", "a").closed("post").done("a").is_good();
    let before = told().stored("a", [2]).gone("a", Why::OwnerLost).error("post", "a").closed("post");
    before.done("a").report_has("I3", "lost: it was stored");
    lost()
        .stored("a", [2, END])
        .comes("post", "a", [END])
        .closed("post")
        .done("a")
        .report_has("I3", "is missing before it");
}

#[test]
fn i13_is_broken() {
    Story::call().stored("a", [1]).comes("post", "a", [1]).lost("post").done("a").breaks("I13", "has no end");
    Story::call().error("post", "a").closed("post").done("a").breaks("I13", "nothing explains");
    Story::call().error("post", "a").closed("post").gone("a", Why::Cancelled).breaks("I13", "nothing explains");
    let both = answered().closed("post").gone("a", Why::OwnerLost).open("get", "a", Some("a-1"));
    let both = both.prime("get", "p1").error("get", "a").closed("get");
    both.breaks("I13", "had another end on post");
    let both = Story::call().emit("a", END).unsure("a", END).error("post", "a").closed("post");
    let both = both.open("get", "a", Some("p0")).prime("get", "p1").comes("get", "a", [END]).closed("get");
    both.breaks("I13", "had another end on post");
    let hung = Fact::Hung { session: "s".into(), stream: None, says: "no answer".into(), invariant: None };
    Story::call().tell(hung).breaks("I13", "no answer");
}

#[test]
fn an_error_of_another_request_is_no_end() {
    let foreign = "data: {\"jsonrpc\":\"2.0\",\"id\":\"another\",\"error\":{}}\n\n";
    Story::call().text("post", foreign).lost("post").done("a").breaks("I13", "has no end");
    let nested = "data: {\"jsonrpc\":\"2.0\",\"id\":\"id of a\",\"result\":{\"error\":{}}}\n\n";
    Story::call().text("post", nested).lost("post").done("a").breaks("I13", "has no end");
}
