//! I1, I2, I7: where events come from, and whose they are.

use tailrope_checker::{Fact, Open, Probe, Why};

use crate::story::{END, Story};

#[test]
fn i1_what_is_seen_was_emitted_and_stored() {
    Story::call().stored("a", [1, 2]).comes("post", "a", [1, 2]).is_good();
    Story::call().emit("a", 1).kept("a", 1).comes("post", "a", [1]).ack("a", 1).is_good();
    Story::call().emit("a", 1).comes("post", "a", [1]).dump("a", [1]).is_good();
    // Trimmed before the dump.
    Story::call().emit("a", 1).comes("post", "a", [1]).stored("a", [2]).dump("a", [2]).is_good();
    Story::call().emit("a", 1).unsure("a", 1).comes("post", "a", [1]).dump("a", [1]).is_good();
    Story::call().emit("a", 1).unsure("a", 1).stored("a", [2]).comes("post", "a", [2]).is_good();
}

#[test]
fn i1_is_broken() {
    Story::call().comes("post", "a", [1]).breaks("I1", "never emitted");
    Story::call().stored("a", [1]).comes("post", "b", [1]).breaks("I1", "never emitted");
    Story::call().emit("a", 1).refused("a", 1).comes("post", "a", [1]).breaks("I1", "refused, and sent");
    Story::call().emit("a", 1).comes("post", "a", [1]).refused("a", 1).breaks("I1", "refused, and sent");
    Story::call().emit("a", 1).refused("a", 1).dump("a", [1]).breaks("I1", "refused, and is in the store");
    let early = Story::call().emit("a", 1).kept("a", 1).emit("a", 2).comes("post", "a", [1, 2]).kept("a", 2);
    early.breaks("I1", "before the store had it");
    let unkept = Story::call().stream("b").emit("b", 1).kept("b", 1).emit("a", 1).comes("post", "a", [1]);
    unkept.breaks("I1", "before the store had it");
    let handed_over = |story: Story| story.emit("a", END).unsure("a", END).comes("post", "a", [END]).closed("post");
    handed_over(Story::call().emit("a", 1).kept("a", 1).comes("post", "a", [1]).gone("a", Why::Unstored)).is_good();
    handed_over(Story::call().emit("a", 1).kept("a", 1).comes("post", "a", [1]))
        .breaks("I1", "before the store had it");
    let missing = Story::call().stored("a", [1]).emit("a", 2).comes("post", "a", [1, 2]).dump("a", [1]);
    missing.breaks("I1", "the store does not have it");
    Story::call().stored("a", [1]).dump("a", [1, 2]).breaks("I1", "nobody emitted it");
}

#[test]
fn i2_order_and_ids_are_the_same_for_everybody() {
    let twice = Story::call().stored("a", [1, 2, 3]).comes("post", "a", [1, 2]).lost("post");
    twice.open("get", "a", Some("a-1")).prime("get", "p1").comes("get", "a", [2, 3]).dump("a", [1, 2, 3]).is_good();
    // A position may be echoed under its own id.
    let echoed = Story::call().stored("a", [1]).lost("post").open("get", "a", Some("p0")).prime("get", "p0");
    echoed.comes("get", "a", [1]).is_good();
}

#[test]
fn i2_is_broken() {
    Story::call().stored("a", [1, 2]).comes("post", "a", [1, 2, 2]).breaks("I2", "comes after [[s/a/2]]");
    Story::call().stored("a", [1, 2]).comes("post", "a", [1, 2, 1]).breaks("I2", "comes after");
    Story::call().stored("a", [1, 2]).dump("a", [2, 1]).breaks("I2", "right after 2");
    let renamed = Story::call().stored("a", [1]).comes("post", "a", [1]).lost("post");
    let renamed = renamed.open("get", "a", Some("p0")).prime("get", "p1");
    renamed.text("get", "id: other\ndata: [[s/a/1]]\n\n").breaks("I2", "had a-1 before");
    let shared = Story::call().stored("a", [1, 2]).comes("post", "a", [1]);
    shared.text("post", "id: a-1\ndata: [[s/a/2]]\n\n").breaks("I2", "named something else before");
    let moved = Story::call().stored("a", [1]).comes("post", "a", [1]).lost("post");
    moved.open("get", "a", Some("a-1")).prime("get", "p0").breaks("I2", "named something else before");
    let told = Story::new().stream("standalone").stored("standalone", 1..=4).open("one", "standalone", None);
    let told = told.prime("one", "p0").comes("one", "standalone", [1, 2]).open("two", "standalone", None);
    let told = told.prime("two", "p1").comes("two", "standalone", [4]).open("three", "standalone", Some("p0"));
    told.prime("three", "p1").breaks("I2", "named something else before");
}

fn other_session(story: Story, stream: &str) -> Story {
    let (session, stream) = ("t".to_owned(), stream.to_owned());
    story.tell(Fact::Emit { session, stream, n: tailrope_checker::N::Event(1) })
}

#[test]
fn i7_a_connection_carries_its_own_stream() {
    let own = Story::new().stream("standalone").stored("standalone", [1]).open("get", "standalone", None);
    own.prime("get", "p").comes("get", "standalone", [1]).text("get", "data: {\"method\":\"x\"}\n\n").is_good();
    let unknown = |open: &mut Open| open.stream = None;
    let asked = Story::new().stream("standalone").stored("standalone", [1]);
    asked.open_as("get", "standalone", None, unknown).prime("get", "p").comes("get", "standalone", [1]).is_good();
}

#[test]
fn i7_is_broken_by_a_mark() {
    let foreign = other_session(Story::call(), "a").text("post", "id: x\ndata: [[t/a/1]]\n\n");
    foreign.breaks("I7", "of another session");
    let other = Story::call().stream("b").stored("b", [1]).comes("post", "b", [1]);
    other.breaks("I7", "of another stream");
    let unasked = Story::call().stored("a", [1]).open_as("get", "a", None, |open| open.stream = None);
    unasked.prime("get", "p").comes("get", "a", [1]).breaks("I7", "did not ask for");
    let probed = Story::call().stored("a", [1]).probe("get", Probe::Foreign, "x", 200).prime("get", "p");
    probed.comes("get", "a", [1]).breaks("I7", "did not ask for");
}

#[test]
fn i7_probes_are_answered_alike() {
    let body = "id: z1\ndata: {\"error\":{},\"id\":1}\n\n";
    let probes = Story::call().probe("f", Probe::Foreign, "x", 200).text("f", body).closed("f");
    probes.probe("u", Probe::Unknown, "y", 200).text("u", &body.replace("z1", "z2")).closed("u").is_good();
    let own = Story::new().stream("standalone").stored("standalone", [1]).probe("f", Probe::Foreign, "x", 200);
    let own = own.prime("f", "x").comes("f", "standalone", [1]).probe("u", Probe::Unknown, "y", 200);
    own.prime("u", "y").comes("u", "standalone", [1]).closed("f").closed("u").is_good();
    let broke = Story::call().probe("f", Probe::Foreign, "x", 400).text("f", "{}").closed("f");
    broke.probe("u", Probe::Unknown, "y", 400).lost("u").is_good();
}

#[test]
fn i7_is_broken_by_an_answer_that_tells() {
    let status = Story::call().probe("f", Probe::Foreign, "x", 403).probe("u", Probe::Unknown, "y", 400);
    let status = status.closed("f").closed("u");
    status.breaks("I7", "status Some(400) instead of Some(403)");
    let body = Story::call().probe("f", Probe::Foreign, "x", 400).text("f", "{\"message\":\"not yours\"}");
    body.probe("u", Probe::Unknown, "y", 400)
        .text("u", "{\"message\":\"unknown\"}")
        .closed("f")
        .closed("u")
        .breaks("I7", "another body");
    let headers = Story::call().probe("f", Probe::Foreign, "x", 400).probe("u", Probe::Unknown, "y", 400);
    headers
        .closed("f")
        .closed("u")
        .tell(Fact::Head { connection: "u".into(), status: 400, headers: [("x-owner".into(), "t".into())].into() })
        .breaks("I7", "headers");
}

#[test]
fn a_gone_stream_still_carries_nothing_foreign() {
    let foreign = other_session(Story::call().gone("a", Why::Expired), "a");
    foreign.text("post", "id: x\ndata: [[t/a/1]]\n\n").breaks("I7", "of another session");
    Story::call().gone("a", Why::Expired).comes("post", "a", [END]).closed("post").breaks("I1", "never emitted");
}
