//! A process that may have few descriptors.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::routing::get;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::kit::{Settings, Site, eventually, read_until};

/// Set in the process of a site.
const ALONE: &str = "TAILROPE_TEST_FRONT_ALONE";
/// So many descriptors it may have.
const FEW: usize = 256;
const ASK: &[u8] = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";

/// Does nothing but in a process of its own, which ends with its input.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_site_alone() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let site = Site::with(Settings {
        front: Box::new(|options| options.head_timeout_ms = 600_000),
        routes: Router::new().route("/hello", get(|| async { "hello" })),
        ..Settings::default()
    });
    // Behind what the test's runner has written into the line.
    writeln!(std::io::stdout(), "\nREADY {}", site.front.addresses()[0]).unwrap();
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
}

/// A site in a process of its own, and its address.
fn start() -> (Child, String) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {FEW}; exec \"$0\" \"$@\"")]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "descriptors::a_site_alone", "--nocapture"]);
    let mut child = command.env(ALONE, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("READY ").map(str::to_owned)).expect("it starts");
    // It has more to say, and to somebody.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i11_connections_leave_descriptors_for_the_application() {
    let (mut child, address) = start();
    let mut first = TcpStream::connect(&address).await.unwrap();
    first.write_all(ASK).await.unwrap();
    read_until(&mut first, "hello").await;
    let mut others = Vec::new();
    for _ in 0..FEW {
        others.push(TcpStream::connect(&address).await.unwrap());
    }
    let folder = format!("/proc/{}/fd", child.id());
    let open = || std::fs::read_dir(&folder).unwrap().count();
    let (mut seen, mut looks) = (0, 0);
    let is_at_rest = || {
        let now = open();
        looks = if now == seen { looks + 1 } else { 0 };
        seen = now;
        now > FEW * 3 / 4 && looks > 20
    };
    eventually("as many of the others as are accepted", is_at_rest).await;
    for _ in 0..20 {
        first.write_all(ASK).await.unwrap();
        let answer = read_until(&mut first, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}, with {} of {FEW} descriptors", open());
    }
    // The others leave, so there is room for one that has waited.
    let mut last = others.pop().unwrap();
    drop(others);
    last.write_all(ASK).await.unwrap();
    read_until(&mut last, "hello").await;
    drop(child.stdin.take());
    child.wait().unwrap();
}
