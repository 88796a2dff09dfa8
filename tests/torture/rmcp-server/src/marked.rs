//! The tool `marked` as tests/python/servers/marked.py describes it, without what this SDK has no word for: a tool
//! cannot close its connection. Nothing kills this process, either.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::{RequestContext, ServiceError};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
pub struct Plan {
    session: String,
    stream: String,
    facts: String,
    seed: u64,
    count: u64,
    until: Option<String>,
    #[serde(default)]
    pause_ms: (f64, f64),
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    standalone: u64,
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
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The file of facts. A line is one write.
struct Facts {
    file: File,
    session: String,
}

impl Facts {
    fn tell(&mut self, fact: &str, stream: &str, n: impl serde::Serialize, why: Option<String>) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let t = now.tv_sec * 1_000_000_000 + now.tv_nsec;
        let mut line = json!({"t": t, "fact": fact, "session": self.session, "stream": stream, "n": n});
        if let Some(why) = why {
            line["why"] = why.into();
        }
        self.file.write_all(format!("{line}\n").as_bytes())
    }

    fn outcome(&mut self, stream: &str, n: u64, sent: Result<(), ServiceError>) -> io::Result<()> {
        match sent {
            Ok(()) => self.tell("taken", stream, n, None),
            Err(fault) => self.tell("refused", stream, n, Some(fault.to_string())),
        }
    }
}

/// One call, as the plan says. Gives the text of the response.
pub async fn run(plan: &Plan, context: &RequestContext<RoleServer>) -> io::Result<String> {
    let file = OpenOptions::new().append(true).create(true).open(&plan.facts)?;
    let mut facts = Facts { file, session: plan.session.clone() };
    let mut random = Random(plan.seed);
    let token = context.meta.get_progress_token();
    let token = token.ok_or_else(|| io::Error::other("a call without a progress token"))?;
    let (mut n, mut said) = (0, 0);
    while goes_on(plan, n) {
        n += 1;
        facts.tell("emit", &plan.stream, n, None)?;
        let text = text(plan, &mut random, &n.to_string());
        let sent = progress(context, token.clone(), n, text).await;
        facts.outcome(&plan.stream, n, sent)?;
        while said < standalone(plan, n) {
            said += 1;
            facts.tell("emit", "standalone", said, None)?;
            let data = json!(format!("[[{}/standalone/{said}]]", plan.session));
            let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, data);
            facts.outcome("standalone", said, context.peer.notify_logging_message(message).await)?;
        }
        pause(plan, &mut random).await;
    }
    facts.tell("emit", &plan.stream, "end", None)?;
    Ok(text(plan, &mut random, "end"))
}

fn goes_on(plan: &Plan, n: u64) -> bool {
    plan.until.as_ref().map_or(n < plan.count, |until| !Path::new(until).exists())
}

/// How much has to be said on the standalone stream by now.
fn standalone(plan: &Plan, n: u64) -> u64 {
    (plan.standalone * n).checked_div(plan.count).unwrap_or(0)
}

async fn progress(
    context: &RequestContext<RoleServer>,
    token: ProgressToken,
    n: u64,
    text: String,
) -> Result<(), ServiceError> {
    context.peer.notify_progress(ProgressNotificationParam::new(token, n as f64).with_message(text)).await
}

fn text(plan: &Plan, random: &mut Random, n: &str) -> String {
    let padding = "x".repeat((random.next() % (plan.bytes + 1)) as usize);
    format!("[[{}/{}/{n}]]{padding}", plan.session, plan.stream)
}

async fn pause(plan: &Plan, random: &mut Random) {
    let (low, high) = plan.pause_ms;
    if random.next() % 2 == 0 {
        // Others get their turn all the same.
        tokio::task::yield_now().await;
    } else {
        let pause_ms = low + random.fraction() * (high - low);
        tokio::time::sleep(Duration::from_secs_f64(pause_ms / 1000.0)).await;
    }
}
