//! A call that is cut and resumed while it runs.

use std::collections::HashSet;
use std::rc::Rc;

use tokio::time::sleep;

use crate::facts::{CutCall, Evidence, Facts, Found, Outcome, fault, not_checked, ok, settled, warn};
use crate::session::Run;
use crate::wire::{Block, Exchange};

const RESUMES: u32 = 5;

pub(super) async fn early_close(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    facts.resumable().await?;
    let polled = facts.polled().await?;
    let first = polled.run.first();
    if first.has_response() || !first.is_over() {
        return not_checked("the server closed no connection of the call before its response");
    }
    seen.note("POST tools/call", &first);
    if first.first_id().is_none() {
        return fault("the server closed the connection before the client had an id");
    }
    if let Err(problem) = &polled.problem {
        return fault(problem);
    }
    if first.events().iter().all(|event| event.retry_ms.is_none()) {
        return warn("closed without a retry: clients do not know how long to wait");
    }
    ok("closed after an id and a retry; polling brings the response")
}

/// A call that runs, and has an id to come back with.
pub(super) async fn begun(facts: &Facts) -> Found<Run> {
    let run = facts.call(&facts.first().await?, facts.next_id()).await?;
    if run.has_id().await { Ok(run) } else { not_checked("no event has an id") }
}

async fn cut_call(facts: &Facts) -> Found<Rc<CutCall>> {
    let find = || async {
        let long = facts.long().await?;
        let run = begun(facts).await?;
        run.last().cut();
        // So that there is something to be sent again, and something that is yet to come.
        sleep(long.duration / 3).await;
        let resumed = run.resume().await?;
        let ended = run.finish(facts.patience()).await;
        Ok(Rc::new(CutCall { run, resumed, ended }))
    };
    facts.cut_call.get_or_init(find).await.clone()
}

/// What came on all connections against what the server has, which a last resume from the first id tells.
async fn compared(facts: &Facts, run: &Run) -> Found<Outcome> {
    let log = run.session.get(run.first_id().as_deref(), run.stream()).await?;
    log.answered(facts.timeout()).await;
    log.cut();
    if !log.has_response() {
        return fault("a last resume from the first id brings no response, so nothing shows what was lost");
    }
    let name = |event: &Rc<Block>| format!("{:?} {}", event.id, event.content());
    let got: Vec<String> = run.messages().iter().map(name).collect();
    let wanted: Vec<String> = log.events().iter().filter(|event| event.has_data()).map(name).collect();
    let once: HashSet<&String> = got.iter().collect();
    let lost = wanted.iter().filter(|name| !once.contains(name)).count();
    if lost > 0 {
        return fault(format!("{} of {} never came", counted(lost), wanted.len()));
    }
    if once.len() < got.len() {
        return fault(format!("{} came more than once", counted(got.len() - once.len())));
    }
    if got != wanted {
        return fault("messages came in another order than that of their ids");
    }
    let undisturbed = facts.long().await?.run.messages();
    let again = repeated(&run.messages());
    if again > repeated(&undisturbed) {
        return fault(format!("{} came again under another id", counted(again)));
    }
    if undisturbed.len() > wanted.len() {
        return warn(format!("a call without cuts had {}, this one {}", counted(undisturbed.len()), wanted.len()));
    }
    ok(format!("{}, each once, in order", counted(wanted.len())))
}

/// How many say what another one has said.
fn repeated(messages: &[Rc<Block>]) -> usize {
    let contents: HashSet<String> = messages.iter().map(|message| message.content()).collect();
    messages.len() - contents.len()
}

fn counted(number: usize) -> String {
    format!("{number} message{}", if number == 1 { "" } else { "s" })
}

pub(super) async fn resume_live(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let call = cut_call(facts).await?;
    seen.note("GET from the first id, while the call runs", &call.resumed);
    settled(&call.resumed).await;
    match &call.ended {
        Err(problem) => fault(problem),
        Ok(()) => compared(facts, &call.run).await,
    }
}

pub(super) async fn resume_live_ends(facts: &Facts) -> Found<Outcome> {
    let call = cut_call(facts).await?;
    if call.ended.is_err() {
        return not_checked("no resume brings the response");
    }
    let last = call.run.last();
    last.over(facts.timeout()).await;
    last.cut();
    super::ends::judged_end(&last)
}

pub(super) async fn resume_often(facts: &Facts, seen: &Evidence) -> Found<Outcome> {
    let long = facts.long().await?;
    let run = begun(facts).await?;
    for _ in 0..RESUMES {
        let exchange = run.last();
        // After a message, because that is when most happens; after a while where there is none.
        let has_message = |exchange: &Exchange| exchange.blocks().iter().any(|block| block.has_data());
        exchange.until(|exchange| exchange.is_over() || has_message(exchange), long.duration / (RESUMES - 1)).await;
        if run.response().is_some() {
            break;
        }
        exchange.cut();
        run.resume().await?;
    }
    let ended = run.finish(facts.patience()).await;
    run.last().cut();
    match ended {
        Err(problem) => {
            seen.note(format!("POST tools/call and {RESUMES} resumes, the last"), &run.last());
            fault(problem)
        }
        Ok(()) => {
            seen.say(format!("POST tools/call and up to {RESUMES} resumes while it runs"));
            compared(facts, &run).await
        }
    }
}
