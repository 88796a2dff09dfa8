//! I3: what a server promises that goes on before its store has answered.

use tailrope_checker::Why;

use crate::story::{END, Story};

const AHEAD: u64 = 128;

/// A call whose first event came; then so many were taken.
fn taken(more: u64) -> Story {
    Story::call().taken("a", 1..=1 + more).comes("post", "a", [1])
}

/// Its process is gone, and its reader is told so.
fn left(story: Story) -> Story {
    story.gone("a", Why::OwnerLost).error("post", "a").closed("post").done("a")
}

/// Its response comes.
fn answered(story: Story) -> Story {
    story.emit("a", END).comes("post", "a", [END]).closed("post").done("a")
}

#[test]
fn i3_what_is_taken_comes() {
    answered(taken(2).comes("post", "a", [2, 3])).is_good();
    answered(taken(1).failed("a", 3).comes("post", "a", [2, 3])).is_good();
    // An end that others made up comes before what is stored later.
    let ended = Story::call().taken("a", [1]).emit("a", 2).gone("a", Why::Cancelled).error("post", "a").closed("post");
    ended.kept("a", 2).ack("a", 2).is_good();
    // Where the store tells what it holds, nothing else does.
    answered(Story::call().taken("a", [1, 2]).kept("a", 2).kept("a", END).comes("post", "a", [2])).is_good();
}

#[test]
fn i3_is_broken_by_a_loss_without_a_failure() {
    let missing = "[[s/a/2]] is missing before it (1 in all)";
    answered(taken(2).comes("post", "a", [3])).report_has("I3", missing);
    answered(taken(1)).report_has("I3", missing);
    let cancelled = taken(1).gone("a", Why::Cancelled).error("post", "a").closed("post").done("a");
    cancelled.report_has("I3", "lost: it was stored");
    let unheard = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p");
    let unheard = unheard.taken("standalone", [1, 2]).comes("one", "standalone", [1]).done("standalone");
    unheard.breaks("I3", "lost: it was stored");
    let kept = Story::call().taken("a", [1, 2]).kept("a", 1).kept("a", 2).comes("post", "a", [1]).lost("post");
    kept.gone("a", Why::OwnerLost).done("a").report_has("I3", "lost: it was stored");
}

#[test]
fn i3_a_process_takes_its_last_events_with_it() {
    left(taken(0)).is_good();
    left(taken(1)).is_good();
    left(taken(AHEAD)).is_good();
    // What was in flight came, or not.
    left(taken(AHEAD).comes("post", "a", 2..=100)).is_good();
    let unheard = taken(3).emit("a", END).gone("a", Why::Unheard).error("post", "a").closed("post").done("a");
    unheard.is_good();
    let standalone = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p");
    let standalone = standalone.taken("standalone", 1..=1 + AHEAD).comes("one", "standalone", [1]);
    standalone.gone("standalone", Why::OwnerLost).done("standalone").is_good();
}

#[test]
fn i3_is_broken_by_a_process_that_takes_more_with_it() {
    left(taken(AHEAD + 1)).report_has("I3", "[[s/a/2]] is missing before it (1 in all)");
    let middle = taken(3).comes("post", "a", [2, 4]);
    left(middle).report_has("I3", "[[s/a/3]] is missing before it (1 in all)");
    // The response is behind them all.
    let answered = taken(1).gone("a", Why::OwnerLost).emit("a", END).comes("post", "a", [END]).closed("post");
    answered.done("a").report_has("I3", "[[s/a/2]] is missing before it");
    // What a reader had is there for the next one.
    let again = taken(2).comes("post", "a", [2, 3]).lost("post").gone("a", Why::OwnerLost);
    let again = again.open("get", "a", Some("a-1")).prime("get", "p1").error("get", "a").closed("get");
    again.done("a").report_has("I3", "[[s/a/2]] is missing before it (2 in all)");
    let standalone = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p");
    let standalone = standalone.taken("standalone", 1..=2 + AHEAD).comes("one", "standalone", [1]);
    standalone.gone("standalone", Why::OwnerLost).done("standalone").breaks("I3", "lost: it was stored");
}

#[test]
fn i3_a_store_leaves_out_what_its_sender_is_told_of() {
    answered(taken(2).failed("a", 4).comes("post", "a", [3, 4])).is_good();
    answered(taken(1).emit("a", 3).refused("a", 3)).is_good();
    answered(taken(2).comes("post", "a", [3]).emit("a", 4).unsure("a", 4)).is_good();
    // The one that told it had waited behind as many as there may be.
    let behind = taken(AHEAD + 1).failed("a", AHEAD + 3);
    answered(behind.comes("post", "a", 3..=AHEAD + 3)).is_good();
    // Only a response followed.
    answered(taken(AHEAD).gone("a", Why::Unstored)).is_good();
    answered(taken(2).comes("post", "a", [3]).gone("a", Why::Unstored)).is_good();
}

#[test]
fn i3_is_broken_by_a_failure_that_is_told_too_late_or_never() {
    let late = taken(AHEAD + 2).failed("a", AHEAD + 4).comes("post", "a", 3..=AHEAD + 4);
    answered(late).report_has("I3", "[[s/a/2]] is missing before it (1 in all)");
    let before = Story::call().taken("a", [1]).failed("a", 2).taken("a", [3, 4]).comes("post", "a", [2, 4]);
    answered(before).report_has("I3", "[[s/a/3]] is missing before it (1 in all)");
    answered(taken(1).failed("a", 3).comes("post", "a", [2])).report_has("I3", "[[s/a/3]] is missing before it");
    answered(taken(AHEAD + 1).gone("a", Why::Unstored)).report_has("I3", "(1 in all)");
}
