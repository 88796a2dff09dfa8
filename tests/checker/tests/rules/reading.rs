//! I3, I4, I5, I8: what connections carry.

use tailrope_checker::{By, Open, Probe, Why};

use crate::story::{END, Story};

/// Three stored events, of which the POST got the first.
fn interrupted() -> Story {
    Story::call().stored("a", [1, 2, 3]).comes("post", "a", [1]).lost("post")
}

#[test]
fn i3_connections_continue_their_cursors() {
    interrupted()
        .open("get", "a", Some("a-1"))
        .prime("get", "p1")
        .comes("get", "a", [2, 3])
        .done("standalone")
        .is_good();
    interrupted().open("get", "a", Some("p0")).prime("get", "p1").comes("get", "a", [1, 2, 3]).is_good();
    // The echo of a position is a cursor, too.
    let twice = interrupted().open("get", "a", Some("a-1")).prime("get", "p1").lost("get");
    twice.open("again", "a", Some("p1")).prime("again", "p2").comes("again", "a", [2]).is_good();
    // What the store did not take is nobody's.
    let failed = Story::call().stored("a", [1]).emit("a", 2).refused("a", 2).stored("a", [3]);
    failed.comes("post", "a", [1, 3]).is_good();
    // Where a listener begins is free, but the same for everybody who knows the id.
    let listener = Story::new().stream("standalone").stored("standalone", 1..=4).open("one", "standalone", None);
    let listener = listener.prime("one", "p").comes("one", "standalone", [3, 4]).lost("one");
    listener.open("two", "standalone", Some("p")).prime("two", "q").comes("two", "standalone", [3]).is_good();
    // Cut off in an event, by no server.
    Story::call().stored("a", [1]).text("post", "id: a-1\ndat").lost("post").is_good();
}

#[test]
fn i3_is_broken() {
    let gap = interrupted().open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [3]);
    gap.breaks("I3", "[[s/a/2]] is missing before it (1 in all)");
    let repeat = interrupted().open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [1, 2, 3]);
    repeat.breaks("I3", "not after the connection's cursor");
    Story::call().stored("a", [1, 2]).comes("post", "a", [2]).breaks("I3", "[[s/a/1]] is missing");
    let late = Story::call().emit("a", 1).stored("a", [2]).comes("post", "a", [2]).ack("a", 1);
    late.breaks("I3", "[[s/a/1]] is missing");
    let echoed = interrupted().open("get", "a", Some("a-1")).prime("get", "p1").lost("get");
    let echoed = echoed.open("again", "a", Some("p1")).prime("again", "p2").comes("again", "a", [3]);
    echoed.breaks("I3", "[[s/a/2]] is missing");
    let listener = Story::new().stream("standalone").stored("standalone", 1..=4).open("one", "standalone", None);
    let listener = listener.prime("one", "p").comes("one", "standalone", [3]).lost("one");
    let listener = listener.open("two", "standalone", Some("p")).prime("two", "q").comes("two", "standalone", [4]);
    listener.breaks("I3", "[[s/standalone/3]] is missing");
    Story::call().stored("a", [1]).text("post", "id: a-1\ndat").closed("post").breaks("I3", "inside an event");
}

#[test]
fn i3_nothing_is_lost_on_a_reader_that_has_everything() {
    let all = interrupted().stored("a", [END]).open("get", "a", Some("a-1")).prime("get", "p1");
    let all = all.comes("get", "a", [2, 3, END]).closed("get").done("a");
    all.is_good();
    let announced = Story::call().stored("a", [1, 2, 3, END]).gap("post", 1, 2).comes("post", "a", [3, END]);
    announced.closed("post").done("a").is_good();
    let expired = Story::call().stored("a", [1, END]).lost("post").gone("a", Why::Expired).done("a");
    expired.is_good();
}

#[test]
fn i3_is_broken_by_a_loss() {
    let lost = Story::new().stream("standalone").stored("standalone", 1..=3).open("one", "standalone", None);
    let lost = lost.prime("one", "p").comes("one", "standalone", [2]).done("standalone");
    lost.breaks("I3", "lost");
    let lost = Story::call().stored("a", [1, 2]).comes("post", "a", [1]).lost("post").emit("a", END).refused("a", END);
    let lost = lost.open("get", "a", Some("a-1")).prime("get", "p").gone("a", Why::Unstored).error("get", "a");
    let violations = lost.closed("get").done("a").report().violations;
    let says: Vec<&str> = violations.iter().map(|violation| violation.says.as_str()).collect();
    assert!(says.len() == 2 && says[0].contains("missing before it") && says[1].contains("lost"), "{says:?}");
}

fn taken_over(with: impl FnOnce(&mut Open)) -> Story {
    let story = Story::call().at(100).stored("a", [1, 2]).comes("post", "a", [1]);
    story.open_as("get", "a", Some("a-1"), with).at(200).prime("get", "p1").comes("get", "a", [2])
}

#[test]
fn i4_the_newest_reader_has_the_stream() {
    taken_over(|_| {}).closed("post").stored("a", [3]).comes("get", "a", [3]).is_good();
    taken_over(|open| open.in_flight = true).comes("post", "a", [2]).is_good();
    taken_over(|open| open.elsewhere = true).at(5_200).stored("a", [3]).comes("post", "a", [2, 3]).is_good();
    taken_over(|open| open.process = Some("b".into())).stored("a", [3]).comes("post", "a", [2, 3]).is_good();
    // A reader that got nothing yet has not taken over.
    let waits = Story::call().stored("a", [1, 2]).comes("post", "a", [1]).open("get", "a", Some("a-1"));
    waits.comes("post", "a", [2]).is_good();
    let primed = Story::call().stored("a", [1, 2]).comes("post", "a", [1]).open("get", "a", Some("a-1"));
    primed.prime("get", "p1").comes("post", "a", [2]).is_good();
    let all = Story::call().open("get", "a", Some("p0")).prime("get", "p1").stored("a", [1, END]);
    let all = all.comes("post", "a", [1, END]).closed("post").comes("get", "a", [1, END]).closed("get");
    all.done("a").is_good();
    let gave_up = Story::call().open("get", "a", Some("p0")).prime("get", "p1").closed("get").stored("a", [1]);
    gave_up.comes("post", "a", [1]).is_good();
    // One that was not valid takes nothing over.
    let invalid = Story::call().gone("a", Why::StoreLost).open("get", "a", Some("p0")).error("get", "a").closed("get");
    invalid.stored("a", [1]).comes("post", "a", [1]).is_good();
    let parked = Story::new().stream("standalone").stored("standalone", [1]).open("one", "standalone", None);
    let parked = parked.prime("one", "p").open("two", "standalone", None).prime("two", "q").lost("two");
    parked.comes("one", "standalone", [1]).is_good();
    // The server had both requests at one time, and came to the later one first.
    crossed().closed("two").prime("one", "p2").comes("one", "a", [1]).closed("one").is_good();
}

fn crossed() -> Story {
    let story = Story::call().lost("post").open("one", "a", Some("p0")).open("two", "a", Some("p0")).stored("a", [1]);
    story.prime("two", "p1").comes("two", "a", [1])
}

#[test]
fn i4_is_broken() {
    crossed().prime("one", "p2").comes("one", "a", [1]).breaks("I4", "after two");
    // A third one that is closed says nothing about the second, which is still open.
    let third = crossed().open("three", "a", Some("p0")).prime("three", "p3").closed("three");
    third.prime("one", "p2").comes("one", "a", [1]).breaks("I4", "after two");
    // The one that the server came to last is the newest for those before it, too.
    let before = Story::call().open("one", "a", Some("p0")).open("two", "a", Some("p0")).stored("a", [1, 2]);
    let before = before.prime("two", "p1").comes("two", "a", [1]).closed("two").prime("one", "p2");
    before.comes("one", "a", [1]).comes("post", "a", [1]).breaks("I4", "after");
    taken_over(|_| {}).comes("post", "a", [2]).breaks("I4", "after get has taken the stream over");
    let primed = Story::call().open("get", "a", Some("p0")).prime("get", "p1").stored("a", [1]);
    primed.comes("post", "a", [1]).breaks("I4", "after get");
    let both = Story::call().open("get", "a", Some("p0")).prime("get", "p1").stored("a", [1, END]);
    let both = both.comes("post", "a", [1]).comes("get", "a", [1, END]).closed("get").comes("post", "a", [END]);
    both.closed("post").report_has("I4", "after get");
    let ended = Story::call().gone("a", Why::Cancelled).open("get", "a", Some("p0")).error("get", "a").closed("get");
    ended.stored("a", [1]).comes("post", "a", [1]).report_has("I4", "after get");
    let in_flight = taken_over(|open| open.in_flight = true).stored("a", [3]).comes("post", "a", [2, 3]);
    in_flight.breaks("I4", "after get");
    let elsewhere = taken_over(|open| open.elsewhere = true).at(5_201).stored("a", [3]).comes("post", "a", [2, 3]);
    elsewhere.breaks("I4", "after get");
    let same = taken_over(|open| (open.process, open.in_flight) = (None, false)).comes("post", "a", [2]);
    same.breaks("I4", "after get");
}

#[test]
fn i5_an_answer_begins_with_a_priming_event() {
    interrupted().open("get", "a", Some("a-1")).prime("get", "p1").text("get", ": keep-alive\n\n").is_good();
    // The store has no log yet.
    let late = Story::new().stream("a").open("post", "a", None).text("post", ": keep-alive\n\n").prime("post", "p");
    late.stored("a", [1]).comes("post", "a", [1]).is_good();
    let old = Story::new().stream_of("a", "2025-06-18").open("post", "a", None).text("post", ": begin\n\n");
    old.stored("a", [1]).comes("post", "a", [1]).is_good();
    let json = Story::new().stream("a").stored("a", [END]).open("post", "a", None);
    let json = json.head("post", 200, "application/json").text("post", "{\"result\":\"[[s/a/end]]\"}");
    json.closed("post").done("a").is_good();
    // There is no position to come back to.
    let gone = Story::call().stored("a", [END]).lost("post").gone("a", Why::Expired).open("get", "a", Some("p0"));
    gone.error("get", "a").closed("get").done("a").is_good();
    // What is given instead of a log that is lost has a name, too, also behind the position that was told before.
    resumed_after_loss().prime("get", "p1").prime("get", "p2").comes("get", "standalone", [3]).is_good();
    let elsewhere =
        Story::new().stream("standalone").gone("standalone", Why::StoreLost).open("one", "standalone", None);
    elsewhere.prime("one", "p1").prime("one", "p2").is_good();
    let foreign = Story::new().stream("standalone").probe("x", Probe::Foreign, "q", 200).prime("x", "p1");
    foreign.prime("x", "p2").is_good();
}

/// A listener whose log is gone comes back.
fn resumed_after_loss() -> Story {
    let listener = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p0");
    let listener = listener.stored("standalone", 1..=3).comes("one", "standalone", [1, 2]).lost("one");
    listener.gone("standalone", Why::StoreLost).open("get", "standalone", Some("standalone-2"))
}

#[test]
fn i5_is_broken() {
    let story = || Story::new().stream("a").stored("a", [1]).open("post", "a", None);
    let says = "does not begin with";
    story().comes("post", "a", [1]).breaks("I5", says);
    story().text("post", "id: p\ndata: \n\n").comes("post", "a", [1]).breaks("I5", says);
    story().text("post", ": comment\n\n").comes("post", "a", [1]).breaks("I5", says);
    story().prime("post", "p").prime("post", "q").comes("post", "a", [1]).breaks("I5", "second priming");
    let thrice = resumed_after_loss().prime("get", "p1").prime("get", "p2").prime("get", "p3");
    thrice.breaks("I5", "second priming");
    let late = resumed_after_loss().prime("get", "p1").comes("get", "standalone", [3]).prime("get", "p2");
    late.breaks("I5", "second priming");
    let kept = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p0").lost("one");
    let kept = kept.open("get", "standalone", Some("p0")).prime("get", "p1").prime("get", "p2");
    kept.breaks("I5", "second priming");
    let listener = Story::new().stream("standalone").open("one", "standalone", None).prime("one", "p0");
    listener.prime("one", "p1").breaks("I5", "second priming");
    story().prime("post", "p").text("post", "id: q\n\n").comes("post", "a", [1]).breaks("I5", "clients drop it");
}

#[test]
fn i3_an_error_may_come_before_what_nobody_was_promised() {
    let ends = |story: Story| story.emit("a", END).unsure("a", END).error("post", "a").closed("post");
    let unsure = Story::call().stored("a", [1]).comes("post", "a", [1]).emit("a", 2).unsure("a", 2);
    let later = |story: Story| {
        let story = ends(story).open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [2]);
        story.error("get", "a").closed("get").done("a")
    };
    later(unsure).is_good();
    let promised = Story::call().stored("a", [1]).comes("post", "a", [1]).stored("a", [2]);
    later(promised).breaks("I3", "[[s/a/2]] is missing");
    // A later event tells of it, and so does an answer.
    let unsure = || Story::call().stored("a", [1]).comes("post", "a", [1]).emit("a", 2).unsure("a", 2);
    let again = |story: Story| story.open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [2, 3]);
    again(unsure().stored("a", [3]).comes("post", "a", [3])).breaks("I3", "[[s/a/2]] is missing");
}

#[test]
fn i8_what_is_missing_is_announced() {
    let trimmed = interrupted().stored("a", [4]).open("get", "a", Some("a-1")).prime("get", "p1");
    trimmed.gap("get", 2, 2).comes("get", "a", [4]).is_good();
    let pieces = interrupted().stored("a", [4]).open("get", "a", Some("a-1")).prime("get", "p1");
    pieces.gap("get", 2, 1).gap("get", 3, 1).comes("get", "a", [4]).is_good();
    // Positions count what is stored.
    let failed = Story::call().emit("a", 1).refused("a", 1).stored("a", 2..=4).gap("post", 1, 2);
    failed.comes("post", "a", [4]).is_good();
    let unsure = Story::call().emit("a", 1).unsure("a", 1).stored("a", 2..=4);
    let unsure = unsure.gap("post", 1, 3).comes("post", "a", [4]).lost("post");
    unsure.is_good();
    let pinned = Story::call().stored("a", 1..=5).gap("post", 1, 1).comes("post", "a", [2]).gap("post", 3, 2);
    pinned.comes("post", "a", [5]).is_good();
    let listener = Story::new().stream("standalone").stored("standalone", 1..=3).open("one", "standalone", None);
    listener.prime("one", "p").gap("one", 1, 2).comes("one", "standalone", [3]).is_good();
    let expired =
        interrupted().gone("a", Why::Expired).open("get", "a", Some("a-1")).head("get", 400, "application/json");
    expired.is_good();
}

#[test]
fn i8_only_what_a_bound_has_dropped_is_missing() {
    let kept = || (1..=4).fold(interrupted().stored("a", [4]), |story, n| story.kept("a", n));
    let skips = |story: Story| story.open("get", "a", Some("a-1")).prime("get", "p1").gap("get", 2, 2);
    let (is_dropped, is_not) = (|| kept().dropped("a", 2).dropped("a", 3), || kept().dropped("a", 2));
    let says = "no bound has dropped it";
    skips(is_dropped()).comes("get", "a", [4]).is_good();
    skips(is_not()).comes("get", "a", [4]).breaks("I8", says);
    skips(is_not()).lost("get").breaks("I8", says);
    skips(is_not()).gone("a", Why::Cancelled).error("get", "a").closed("get").report_has("I8", says);
    let lost = |story: Story| story.gone("a", Why::StoreLost);
    skips(lost(is_not())).comes("get", "a", [4]).is_good();
    skips(lost(is_not())).restored("a").comes("get", "a", [4]).report_has("I8", says);
}

#[test]
fn i8_is_broken() {
    let resumed = || interrupted().stored("a", [4]).open("get", "a", Some("a-1")).prime("get", "p1");
    resumed().gap("get", 2, 1).comes("get", "a", [4]).breaks("I8", "a gap of 1 is announced, and 2 are missing");
    resumed().gap("get", 3, 2).comes("get", "a", [4]).breaks("I8", "begin at 3, and begins at 2");
    resumed().gap("get", 2, 1).gap("get", 2, 1).comes("get", "a", [4]).report_has("I8", "two gaps");
    resumed().gap("get", 2, 1).comes("get", "a", [2]).breaks("I8", "0 are missing");
    let listener = Story::new().stream("standalone").stored("standalone", 1..=3).open("one", "standalone", None);
    listener.prime("one", "p").gap("one", 1, 1).comes("one", "standalone", [3]).breaks("I8", "does not end before it");
    interrupted().open("get", "a", Some("a-1")).head("get", 400, "application/json").breaks("I8", "refused with 400");
    interrupted().open("get", "a", Some("p0")).head("get", 404, "application/json").breaks("I8", "refused with 404");
}

#[test]
fn a_standalone_stream_begins_anew_after_its_store_lost_it() {
    let story = || {
        let story = Story::new().stream("standalone").stored("standalone", 1..=5).open("one", "standalone", None);
        story.prime("one", "p").comes("one", "standalone", [1, 2]).ended("one", By::Server, true)
    };
    let anew = story().gone("standalone", Why::StoreLost).open("two", "standalone", Some("standalone-2"));
    anew.prime("two", "q").comes("two", "standalone", [5]).done("standalone").is_good();
    let silent = story().open("two", "standalone", Some("standalone-2")).prime("two", "q");
    silent.comes("two", "standalone", [5]).breaks("I3", "[[s/standalone/3]] is missing");
    // A reader that waited for it begins anew, also where it is there again by then.
    let restored = || {
        let waits = story().open("two", "standalone", Some("standalone-2")).prime("two", "q");
        waits.gone("standalone", Why::StoreLost).restored("standalone")
    };
    let anew = restored().prime("two", "r").comes("two", "standalone", 1..=5).done("standalone");
    anew.ended("two", By::Server, true).open("three", "standalone", Some("r")).prime("three", "t").is_good();
    restored().comes("two", "standalone", 1..=5).breaks("I3", "not after the connection's cursor");
}

#[test]
fn a_log_that_is_restored_is_judged_again() {
    let lost = |story: Story| story.gone("a", Why::StoreLost);
    let resumed = |story: Story| story.open("get", "a", Some("a-1")).prime("get", "p1");
    let all = |story: Story| story.comes("get", "a", 2..=4).comes("get", "a", [END]).closed("get").done("a");
    let call = || interrupted().stored("a", [4, END]);
    all(resumed(lost(call()).restored("a"))).is_good();
    all(resumed(lost(call())).restored("a")).is_good();
    // What nobody has read is missing once the log has it again.
    let skipped = |story: Story| story.comes("get", "a", [4, END]).closed("get");
    skipped(resumed(lost(call()))).is_good();
    skipped(resumed(lost(call()).restored("a"))).breaks("I3", "[[s/a/2]] is missing");
    let halfway = |story: Story| story.comes("get", "a", [2]).restored("a").comes("get", "a", [4, END]).closed("get");
    halfway(resumed(lost(call()))).breaks("I3", "[[s/a/3]] is missing");
    lost(call()).restored("a").done("a").report_has("I3", "lost: it was stored");
    resumed(lost(call()).restored("a")).error("get", "a").closed("get").report_has("I3", "is missing");
    let refused = |story: Story| story.open("get", "a", Some("a-1")).head("get", 400, "application/json");
    refused(lost(call()).restored("a")).breaks("I8", "refused with 400");
    // What a bound has dropped before may be announced while the log is lost.
    let gap = |story: Story| resumed(lost(story)).gap("get", 2, 2).comes("get", "a", [4]).restored("a");
    gap(call()).comes("get", "a", [END]).closed("get").done("a").is_good();
    // What was told while the log was lost may come later.
    resumed(lost(call())).restored("a").error("get", "a").closed("get").is_good();
    // Lost once more, or for another reason, too.
    skipped(resumed(lost(lost(call()).restored("a")))).is_good();
    skipped(resumed(lost(call()).gone("a", Why::Expired).restored("a"))).breaks("I3", "[[s/a/2]] is missing");
}
