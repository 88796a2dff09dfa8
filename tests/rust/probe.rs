//! `tailrope probe`: what it finds in a correct server and in one for each fault, what it says of them, and its exit
//! status. tests/vectors/probe.json has what that is; tests/wire/test_probe.py asks the servers of the SDKs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use tailrope_probe::{Check, Options, Report, probe, words};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

const AT_ONCE: usize = 12;
/// What a probe sees of a server that lasts half a second depends on when it is there. A fault that it misses each time,
/// and alone, is missed.
const TRIES: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    options: Waits,
    servers: Vec<Server>,
    text: Vec<String>,
    verdicts: Vec<Judged>,
    misuse: Vec<Misuse>,
    // What tests/wire asks.
    #[serde(rename = "call")]
    _call: Value,
    #[serde(rename = "ours")]
    _ours: Value,
    #[serde(rename = "stock")]
    _stock: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Waits {
    timeout_ms: u64,
    idle_ms: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    name: String,
    faults: String,
    findings: BTreeMap<String, Found>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Found {
    outcome: String,
    reason: String,
    evidence: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Judged {
    name: String,
    faults: String,
    only: Vec<String>,
    said: Vec<String>,
    exit: i32,
    required: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Misuse {
    words: Vec<String>,
    told: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn vectors() -> Vectors {
    let text = std::fs::read_to_string(root().join("tests/vectors/probe.json")).expect("the vectors");
    serde_json::from_str(&text).expect("vectors of a probe")
}

/// The process with all the faulty servers; it needs nothing but Python. It ends with its input.
struct Faulty {
    process: Child,
    port: String,
}

fn python() -> Command {
    let own = root().join(".venv/mcp2/bin/python");
    let mut command = Command::new(if own.exists() { own } else { "python3".into() });
    command.current_dir(root().join("tests/client"));
    command
}

impl Faulty {
    fn start(certificate: Option<&Path>) -> Self {
        let mut command = python();
        command.args(["-m", "raw_server.faulty"]).args(certificate).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("Python runs the faulty servers");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut line).expect("its port");
        let port = line.split_whitespace().nth(1).expect("READY PORT").to_owned();
        Self { process, port }
    }

    /// The server with these faults that is the named test's own.
    fn url(&self, faults: &str, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}/{faults}", self.port)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn found(report: &Report) -> BTreeMap<String, Found> {
    let finding = |finding: &tailrope_probe::Finding| {
        let tailrope_probe::Finding { check, outcome, reason, evidence } = finding;
        let found = Found { outcome: outcome.name().to_owned(), reason: reason.clone(), evidence: evidence.clone() };
        (check.name.clone(), found)
    };
    report.checks.iter().map(finding).collect()
}

async fn findings(faulty: &Faulty, server: &Server, waits: &Waits, name: &str) -> BTreeMap<String, Found> {
    let mut options = Options::new(&faulty.url(&server.faults, name)).expect("an address");
    let only: Vec<&str> = server.findings.keys().map(String::as_str).collect();
    let given = [
        ("--only", only.join(",")),
        ("--timeout-ms", waits.timeout_ms.to_string()),
        ("--idle-ms", waits.idle_ms.to_string()),
    ];
    for (name, value) in given {
        options.set(name, &value).expect("an option");
    }
    found(&probe(&options, |_| ()).await.expect("an MCP server"))
}

#[test]
fn each_faulty_server_is_found_out() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let Vectors { servers, options: waits, .. } = vectors();
    let (faulty, waits) = (Rc::new(Faulty::start(None)), Rc::new(waits));
    LocalSet::new().block_on(&runtime, async {
        let places = Rc::new(Semaphore::new(AT_ONCE));
        let (mut runs, mut again) = (JoinSet::new(), Vec::new());
        for server in servers {
            let (faulty, waits, places) = (Rc::clone(&faulty), Rc::clone(&waits), Rc::clone(&places));
            runs.spawn_local(async move {
                let _place = places.acquire().await.expect("it is not closed");
                let seen = findings(&faulty, &server, &waits, "rust").await;
                (server, seen)
            });
        }
        while let Some(done) = runs.join_next().await {
            let (server, seen) = done.expect("no check panics");
            if seen != server.findings {
                again.push((server, seen));
            }
        }
        for (server, mut seen) in again {
            for number in 1..TRIES {
                if seen != server.findings {
                    seen = findings(&faulty, &server, &waits, &format!("rust-{number}")).await;
                }
            }
            assert_eq!(seen, server.findings, "{}", server.name);
        }
    });
}

#[test]
fn the_vectors_have_every_fault_and_a_failure_of_every_check() {
    let servers = vectors().servers;
    let used: BTreeSet<&str> =
        servers.iter().flat_map(|server| server.faults.split('+')).filter(|fault| !fault.is_empty()).collect();
    let printed =
        python().args(["-c", "from raw_server.faulty import names; print(*names())"]).output().expect("Python");
    let known = String::from_utf8(printed.stdout).expect("names");
    assert_eq!(used, known.split_whitespace().filter(|name| !["guarded", "no-mcp"].contains(name)).collect());
    let is_judged = |found: &Found| ["fault", "warn"].contains(&found.outcome.as_str());
    let judged: BTreeSet<&str> = servers
        .iter()
        .flat_map(|server| &server.findings)
        .filter(|(_, found)| is_judged(found))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(judged, words().checks.iter().map(|check| check.name.as_str()).collect());
}

#[test]
fn the_documentation_lists_the_checks() {
    let text = std::fs::read_to_string(root().join("docs/testing/probe.md")).expect("the documentation");
    let row = |check: &Check| {
        let Check { name, title, requirement, link, rules, .. } = check;
        format!("| `{name}` | {title} | [{requirement}]({link}) | {} |", rules.join(", "))
    };
    let rows: Vec<String> = words().checks.iter().map(row).collect();
    assert!(text.contains(&rows.join("\n")), "the checks are\n{}", rows.join("\n"));
}

/// Runs the command: its exit status, and what it prints.
fn run(words: &[&str]) -> (i32, String, String) {
    said(Command::new(env!("CARGO_BIN_EXE_tailrope")).args(words).output().expect("the command runs"))
}

fn said(done: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code().expect("it ends by itself"), text(done.stdout), text(done.stderr))
}

#[test]
fn json_says_all_and_the_exit_status_is_1_where_there_are_faults() {
    let faulty = Faulty::start(None);
    let (status, out, err) =
        run(&["probe", &faulty.url("unknown-404", "json"), "--json", "--only", "ping,made-up-cursor"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((status, err.as_str(), &report["exit"]), (1, "", &Value::from(1)));
    let places: Vec<usize> = ["url", "server", "revision", "checks", "sessions", "calls", "counts", "verdict", "exit"]
        .map(|key| out.find(&format!("\n  \"{key}\"")).expect(key))
        .to_vec();
    assert!(places.is_sorted());
    assert_eq!(report["counts"], serde_json::json!({"ok": 1, "warn": 0, "fault": 1, "skipped": 0}));
    for check in report["checks"].as_array().expect("checks") {
        let keys: Vec<&String> = check.as_object().expect("a check").keys().collect();
        assert_eq!(keys, ["evidence", "link", "name", "outcome", "reason", "requirement", "title"]);
    }
}

#[test]
fn text_shows_faults_with_what_was_seen() {
    let faulty = Faulty::start(None);
    let words = ["probe", &faulty.url("unknown-404", "text"), "--only=ping", "--only=made-up-cursor"];
    let (status, out, _) = run(&words);
    assert_eq!(status, 1);
    assert_eq!(out.lines().skip(1).collect::<Vec<_>>(), vectors().text);
}

#[test]
fn the_verdict_is_in_words_and_can_be_required() {
    let faulty = Faulty::start(None);
    for Judged { name, faults, only, said, exit, required } in vectors().verdicts {
        let url = faulty.url(&faults, "verdict");
        let mut given = vec!["probe", url.as_str(), "--idle-ms", "1000"];
        let only = only.join(",");
        given.extend(["--only", only.as_str()].iter().filter(|_| !only.is_empty()));
        let (status, out, _) = run(&given);
        assert_eq!(status, exit, "{name}\n{out}");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            lines[lines.len() - said.len() - 1..],
            [&[""], &said.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat(),
            "{name}"
        );
        given.extend(["--require", "resumable"]);
        assert_eq!(run(&given).0, required, "{name}");
    }
}

#[test]
fn headers_are_sent_but_never_printed() {
    let faulty = Faulty::start(None);
    // Without the header this server answers 401.
    let url = faulty.url("guarded", "headers") + "?key=hunter2";
    for more in [&[][..], &["--json"]] {
        let words = ["probe", &url, "--header", "Authorization: Bearer hunter2", "--only", "initialize,ping"];
        let (status, out, err) = run(&[&words, more].concat());
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(!out.contains("hunter2"));
    }
    let (status, out, err) = run(&["probe", &url]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("answered 401") && !err.contains("hunter2"), "{err}");
}

#[test]
fn wrong_usage_is_told_with_exit_status_2() {
    let usage = include_str!("../../cli/words/probe.txt");
    for Misuse { words, told } in vectors().misuse {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(run(&words), (2, String::new(), format!("tailrope: {told}\n\n{usage}")));
    }
    assert_eq!(run(&["probe", "--help"]), (0, usage.to_owned(), String::new()));
}

#[test]
fn what_is_no_mcp_server_is_told_with_exit_status_2() {
    let faulty = Faulty::start(None);
    let (status, out, err) = run(&["probe", "http://127.0.0.1:1/mcp"]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("not reachable"), "{err}");
    let told = "tailrope: no MCP server for us: initialize is answered 404 application/json, error -32000\n";
    assert_eq!(run(&["probe", &faulty.url("no-mcp", "other")]), (2, String::new(), told.to_owned()));
}

#[test]
fn a_tool_that_the_server_does_not_have_is_told_with_exit_status_2() {
    let faulty = Faulty::start(None);
    let words = ["probe", &faulty.url("", "no-tool"), "--only", "ping", "--tool", "nope"];
    let told = "tailrope: the server has no tool nope: it has eager, slow\n";
    assert_eq!(run(&words), (2, String::new(), told.to_owned()));
    assert_eq!(run(&[&words[..], &["--require", "resumable", "--json"]].concat()), (2, String::new(), told.to_owned()));
}

#[test]
fn tls_is_trusted_by_the_systems_certificates() {
    let folder = std::env::temp_dir().join(format!("tailrope-probe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (key, certificate, both) = (folder.join("key.pem"), folder.join("cert.pem"), folder.join("both.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .args([&key, Path::new("-out"), &certificate].map(|path: &Path| path.to_owned()))
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    let pem = [&key, &certificate].map(|path| std::fs::read_to_string(path).expect("a file")).concat();
    std::fs::write(&both, pem).expect("a file");
    let faulty = Faulty::start(Some(&both));
    let url = faulty.url("", "tls").replace("http:", "https:");
    let words = ["probe", &url, "--only", "priming,resume-finished,takeover-standalone"];
    let mut trusting = Command::new(env!("CARGO_BIN_EXE_tailrope"));
    let (status, out, err) = said(trusting.args(words).env("SSL_CERT_FILE", &certificate).output().expect("it runs"));
    assert_eq!(status, 0, "{out}{err}");
    let (status, _, err) = run(&words);
    assert!(status == 2 && err.contains("not reachable"), "{err}");
    std::fs::remove_dir_all(&folder).expect("nobody else is in there");
}

#[test]
fn findings_are_printed_while_the_probe_goes_on() {
    let faulty = Faulty::start(None);
    let url = faulty.url("silent", "steps");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailrope"));
    // The second check waits for longer than any test.
    command.args(["probe", &url, "--only", "initialize,keep-alive", "--idle-ms", "600000"]).stdout(Stdio::piped());
    let mut process = command.spawn().expect("the command runs");
    let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let is_told = lines.map_while(Result::ok).any(|line| line.starts_with("ok       initialize"));
    assert!(is_told && process.try_wait().expect("its state").is_none());
    process.kill().expect("it runs");
    process.wait().expect("it ends");
}
