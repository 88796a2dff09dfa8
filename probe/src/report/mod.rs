//! Makes the checks one after the other, and says what came of them.

mod verdict;

use std::fmt;
use std::rc::Rc;

use serde::Serialize;
use tokio::task::{AbortHandle, JoinHandle, spawn_local};

use crate::checks;
use crate::facts::{Evidence, Facts, Kind, Outcome, Server, Stop};
use crate::options::Options;
use crate::words::{Check, words};
pub use verdict::{Resumable, Verdict};

/// It waits longest and disturbs nothing, so it runs beside the others.
const BESIDE: &str = "keep-alive";

/// What came of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which check.
    #[serde(flatten)]
    pub check: &'static Check,
    /// How it ended.
    pub outcome: Kind,
    /// Why it ended so.
    pub reason: String,
    /// What was sent and got.
    pub evidence: Vec<String>,
}

/// How many checks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "named like the outcomes")]
pub struct Counts {
    pub ok: usize,
    pub warn: usize,
    pub fault: usize,
    pub skipped: usize,
}

/// What came of all.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The address, without what may be secret in it.
    pub url: String,
    /// What the server says that it is.
    pub server: Server,
    /// The revision that was negotiated.
    pub revision: Option<String>,
    /// In the order in which they were made.
    pub checks: Vec<Finding>,
    /// How many sessions were opened.
    pub sessions: usize,
    /// How often a tool was called.
    pub calls: u32,
    /// The checks, counted.
    pub counts: Counts,
    /// Whether the server is resumable.
    pub verdict: Verdict,
    /// The exit status of the command.
    pub exit: u8,
}

/// Nothing can be checked at all: not reachable, or no MCP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// What a probe is at.
#[derive(Debug)]
pub enum Step<'a> {
    /// The server was asked for a session.
    Opened(&'a Report),
    /// A check is made now.
    Begins {
        /// Which.
        check: &'static Check,
        /// From 1.
        number: usize,
        /// How many there are to make.
        of: usize,
    },
    /// A check was made.
    Found(&'a Finding),
}

impl Kind {
    /// As it is said in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fault => "fault",
            Self::Skipped => "skipped",
        }
    }
}

/// Checks a server. Has to run in a [`tokio::task::LocalSet`].
///
/// # Errors
/// There is none.
pub async fn probe(options: &Options, mut watch: impl FnMut(Step<'_>)) -> Result<Report, Unusable> {
    let facts = Rc::new(Facts::new(options.clone()));
    let done = checked(&facts, &mut watch).await;
    leave(&facts).await;
    done
}

async fn checked(facts: &Rc<Facts>, watch: &mut impl FnMut(Step<'_>)) -> Result<Report, Unusable> {
    let options = &facts.options;
    let revision = match facts.opening().await {
        Ok(opening) => opening.session.revision(),
        // The first check says so.
        Err(Stop::NotChecked(_)) => None,
        Err(Stop::NoAnswer(fault)) => return Err(Unusable(format!("not reachable: {fault}"))),
        Err(Stop::Unusable(why)) => return Err(Unusable(why)),
    };
    // Of anything else that went wrong the checks say it that need a tool.
    if let Err(Stop::Unusable(why)) = facts.has_named_tool().await {
        return Err(Unusable(why));
    }
    let mut report = Report {
        url: options.shown_url(),
        server: facts.server(),
        revision,
        checks: Vec::new(),
        sessions: 0,
        calls: 0,
        counts: Counts::default(),
        verdict: Verdict::of(&[]),
        exit: 0,
    };
    watch(Step::Opened(&report));
    let wanted: Vec<&'static Check> = words().checks.iter().filter(|check| options.wants(&check.name)).collect();
    let mut beside = wanted.iter().find(|check| check.name == BESIDE).map(|check| Beside::begin(facts, check));
    for (index, check) in wanted.iter().enumerate() {
        watch(Step::Begins { check, number: index + 1, of: wanted.len() });
        let finding = match beside.take_if(|_| check.name == BESIDE) {
            Some(mut beside) => (&mut beside.0).await.map_err(|fault| Unusable(fault.to_string()))?,
            None => made(facts, check).await,
        };
        watch(Step::Found(&finding));
        report.checks.push(finding);
    }
    report.sessions = facts.sessions().iter().filter(|session| session.revision().is_some()).count();
    report.calls = facts.calls();
    report.counts = counted(&report.checks);
    report.verdict = Verdict::of(&report.checks);
    let is_missed = options.requires_resumable && !report.verdict.is_shown();
    report.exit = u8::from(report.counts.fault > 0 || is_missed);
    Ok(report)
}

/// A check that ends with the probe.
struct Beside(JoinHandle<Finding>, AbortHandle);

impl Beside {
    fn begin(facts: &Rc<Facts>, check: &'static Check) -> Self {
        let facts = Rc::clone(facts);
        let made = spawn_local(async move { made(&facts, check).await });
        let abort = made.abort_handle();
        Self(made, abort)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.1.abort();
    }
}

/// One check: it ends in an outcome, whatever the server does.
async fn made(facts: &Facts, check: &'static Check) -> Finding {
    let seen = Evidence::default();
    let Outcome { kind: outcome, reason } = match checks::make(&check.name, facts, &seen).await {
        Ok(outcome) => outcome,
        Err(Stop::NotChecked(reason)) => Outcome { kind: Kind::Skipped, reason },
        Err(Stop::NoAnswer(why)) => Outcome { kind: Kind::Fault, reason: why.to_string() },
        Err(Stop::Unusable(reason)) => Outcome { kind: Kind::Fault, reason },
    };
    Finding { check, outcome, reason, evidence: seen.lines() }
}

fn counted(checks: &[Finding]) -> Counts {
    let of = |kind| checks.iter().filter(|finding| finding.outcome == kind).count();
    Counts { ok: of(Kind::Ok), warn: of(Kind::Warn), fault: of(Kind::Fault), skipped: of(Kind::Skipped) }
}

/// Ends what was opened, as far as the server lets us.
async fn leave(facts: &Facts) {
    for session in facts.sessions() {
        session.cut();
        if session.id().is_some() {
            // A server that does not answer is left as it is.
            if let Ok(answer) = session.delete().await {
                answer.cut();
            }
        }
    }
}
