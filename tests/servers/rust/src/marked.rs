//! The tool `marked` as tests/servers/python/marked.py describes it: every event says whose it is, and a file that outlives the
//! process is told of it.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::process;
use std::time::Duration;

use futures_util::poll;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::ServiceError;
use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_server::Close;

use crate::facts::Facts;
use crate::script::{Context, Failed};
use crate::stock;

/// In the words for an event that is stored, and behind one that is not.
const FAILED: &str = "an event that was sent before";
/// Events right before a kill that follow at once: the store has not answered for them.
const LAST: u64 = 10;

#[derive(Deserialize)]
pub(crate) struct Plan {
    session: String,
    stream: String,
    facts: String,
    seed: u64,
    #[serde(default)]
    count: u64,
    until: Option<String>,
    #[serde(default)]
    pause_ms: (f64, f64),
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    close: f64,
    #[serde(default)]
    standalone: u64,
    unsure: Option<String>,
    kill: Option<Kill>,
}

#[derive(Deserialize)]
struct Kill {
    n: u64,
    at: String,
}

/// Numbers by a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Marked<'a> {
    plan: &'a Plan,
    context: &'a Context,
    token: ProgressToken,
    facts: Facts,
    random: Random,
    said: u64,
}

fn die() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// One call, as the plan says. Gives the text of the response.
pub(crate) async fn run(plan: Value, context: &Context) -> Result<String, Failed> {
    let plan: Plan = serde_json::from_value(plan).map_err(|error| error.to_string())?;
    let facts = Facts::open(&plan.facts).map_err(|error| error.to_string())?;
    let token = context.meta.get_progress_token().ok_or("a call without a progress token")?;
    let random = Random(plan.seed);
    let marked = Marked { plan: &plan, context, token, facts, random, said: 0 };
    marked.run().await.map_err(|error| error.to_string())
}

impl Marked<'_> {
    async fn run(mut self) -> io::Result<String> {
        self.tell("note", None, json!({ "process": process::id() }))?;
        let mut n = 0;
        while self.goes_on(n) {
            n += 1;
            self.event(n).await?;
            self.standalone(n).await?;
            if self.random.fraction() < self.plan.close {
                stock::close(self.context, Close::default()).await;
            }
            self.pause(n).await;
        }
        self.tell("emit", Some((&self.plan.stream, json!("end"))), json!({}))?;
        Ok(self.text("end"))
    }

    fn tell(&self, fact: &str, event: Option<(&str, Value)>, mut more: Value) -> io::Result<()> {
        if let Some((stream, n)) = event {
            (more["session"], more["stream"], more["n"]) = (json!(self.plan.session), json!(stream), n);
        }
        self.facts.tell(fact, more)
    }

    fn outcome(&self, stream: &str, n: u64, sent: Result<(), ServiceError>) -> io::Result<()> {
        let Err(error) = sent else { return self.tell("taken", Some((stream, json!(n))), json!({})) };
        let why: String = error.to_string().chars().take(200).collect();
        let fact = match &self.plan.unsure {
            _ if why.contains(FAILED) => "failed",
            Some(unsure) if why.contains(unsure) => "unsure",
            _ => "refused",
        };
        self.tell(fact, Some((stream, json!(n))), json!({ "why": why }))
    }

    fn goes_on(&self, n: u64) -> bool {
        self.plan.until.as_ref().map_or(n < self.plan.count, |until| !Path::new(until).exists())
    }

    async fn event(&mut self, n: u64) -> io::Result<()> {
        let kill = self.plan.kill.as_ref().filter(|kill| kill.n == n).map_or("", |kill| &kill.at);
        self.tell("emit", Some((&self.plan.stream, json!(n))), json!({}))?;
        if kill == "before" {
            die();
        }
        let text = self.text(&n.to_string());
        #[allow(clippy::cast_precision_loss, reason = "no call counts so far")]
        let progress = ProgressNotificationParam::new(self.token.clone(), n as f64).with_message(text);
        let sent = {
            let mut sending = pin!(self.context.peer.notify_progress(progress));
            if kill == "sent" {
                let _ = poll!(sending.as_mut());
                tokio::task::yield_now().await;
                die();
            }
            sending.await
        };
        self.outcome(&self.plan.stream, n, sent)?;
        if kill == "later" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if matches!(kill, "taken" | "later") {
            die();
        }
        Ok(())
    }

    async fn standalone(&mut self, n: u64) -> io::Result<()> {
        while self.said < (self.plan.standalone * n).checked_div(self.plan.count).unwrap_or_default() {
            self.said += 1;
            self.tell("emit", Some(("standalone", json!(self.said))), json!({}))?;
            let data = json!(format!("[[{}/standalone/{}]]", self.plan.session, self.said));
            let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, data);
            let sent = self.context.peer.notify_logging_message(message).await;
            self.outcome("standalone", self.said, sent)?;
        }
        Ok(())
    }

    async fn pause(&mut self, n: u64) {
        let (low, high) = self.plan.pause_ms;
        let is_last = self.plan.kill.as_ref().is_some_and(|kill| n + LAST >= kill.n);
        if self.random.fraction() < 0.5 || is_last {
            // Others get their turn all the same.
            tokio::task::yield_now().await;
        } else {
            let pause_ms = low + self.random.fraction() * (high - low);
            tokio::time::sleep(Duration::from_secs_f64(pause_ms / 1_000.0)).await;
        }
    }

    fn text(&mut self, n: &str) -> String {
        let padding = usize::try_from(self.random.next() % (self.plan.bytes + 1)).unwrap_or_default();
        format!("[[{}/{}/{n}]]{}", self.plan.session, self.plan.stream, "x".repeat(padding))
    }
}
