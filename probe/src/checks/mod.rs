//! The checks. Each says what a correct client would make of what it saw; probe.json has their names and words.

mod cursors;
mod ends;
mod live;
mod missed;
mod opening;
mod standalone;
mod takeover;
mod tasks;

use crate::facts::{Evidence, Facts, Found, Outcome, not_checked};

/// Makes the check of this name.
pub(crate) async fn make(name: &str, facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    match name {
        "initialize" => opening::initialize(facts, seen).await,
        "newer-revision" => opening::newer_revision(facts, seen).await,
        "ping" => opening::ping(facts, seen).await,
        "priming" => opening::priming(facts, seen).await,
        "answer-ends" => opening::answer_ends(facts, seen).await,
        "priming-older" => opening::priming_older(facts, seen).await,
        "resume-finished" => missed::resume_finished(facts, seen).await,
        "resume-ends" => missed::resume_ends(facts, seen).await,
        "resume-again" => missed::resume_again(facts, seen).await,
        "resume-at-end" => missed::resume_at_end(facts, seen).await,
        "standalone" => standalone::standalone(facts, seen).await,
        "takeover-standalone" => standalone::takeover_standalone(facts, seen).await,
        "resume-empty" => standalone::resume_empty(facts, seen).await,
        "keep-alive" => standalone::keep_alive(facts, seen).await,
        "made-up-cursor" => cursors::made_up_cursor(facts, seen).await,
        "lost-cursor" => cursors::lost_cursor(facts, seen).await,
        "isolation" => cursors::isolation(facts, seen).await,
        "foreign-cursor" => cursors::foreign_cursor(facts, seen).await,
        "foreign-standalone" => cursors::foreign_standalone(facts, seen).await,
        "foreign-running" => cursors::foreign_running(facts, seen).await,
        "early-close" => live::early_close(facts, seen).await,
        "resume-live" => live::resume_live(facts, seen).await,
        "resume-live-ends" => live::resume_live_ends(facts).await,
        "resume-often" => live::resume_often(facts, seen).await,
        "takeover-call" => takeover::takeover_call(facts, seen).await,
        "takeover-resumed" => takeover::takeover_resumed(facts, seen).await,
        "tasks" => tasks::tasks(facts, seen).await,
        "tasks-refused" => tasks::tasks_refused(facts, seen).await,
        "task-created" => tasks::task_created(facts, seen).await,
        "task-polled" => tasks::task_polled(facts, seen).await,
        "task-cancelled" => tasks::task_cancelled(facts, seen).await,
        "unique-ids" => ends::unique_ids(facts).await,
        "unknown-session" => ends::unknown_session(facts, seen).await,
        "session-end" => ends::session_end(facts, seen).await,
        _ => not_checked("this build has no such check"),
    }
}
