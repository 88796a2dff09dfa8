//! What a fleet costs its store: `fleet_bench [--processes N,N...] [--sessions N] [--idle N]`
//!
//! Each process of the fleet is a store object and an engine of its own, with connections and threads of its own, here all
//! in one program. They grow step by step, and at each step tables are printed: what they ask of the server while nothing
//! happens, and what one event costs. The servers are those that `tests/services/with redis postgres --` names in the
//! environment. At the end stand the idle sessions of one engine over the memory store.

mod idle;
mod meter;
mod process;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use meter::{Counts, Meter};
use process::Process;

/// How long an idle fleet is watched. Each process gives several signs of life meanwhile.
const WATCHED: Duration = Duration::from_secs(10);
/// What still comes of the work before is over by then.
const QUIET: Duration = Duration::from_secs(3);
/// Calls of the next process that each process reads.
const FOLLOWED: usize = 10;
/// Events that are sent one by one.
const EVENTS: u64 = 300;

/// What a server was asked for, in a time or for an event.
struct Span {
    seconds: f64,
    /// By each process.
    requests: Vec<f64>,
    messages: f64,
    commands: f64,
}

impl Span {
    /// What all processes asked for.
    fn requests(&self) -> f64 {
        self.requests.iter().sum()
    }
}

/// A server, and what stands before it: a proxy for each process.
struct Server {
    name: &'static str,
    meters: Vec<Meter>,
    place: SocketAddr,
    is_redis: bool,
    address: String,
}

impl Server {
    /// The server that the environment names, if it does.
    fn new(name: &'static str, variable: &str) -> Option<Self> {
        let address = std::env::var(variable).ok()?;
        let host = address.rsplit(['@', '/']).find(|part| part.starts_with("127.0.0.1:"));
        let place: SocketAddr = host.and_then(|host| host.parse().ok()).expect("the server is at 127.0.0.1");
        Some(Self { name, meters: Vec::new(), place, is_redis: address.starts_with("redis"), address })
    }

    /// The server's address for one more process.
    fn address(&mut self) -> String {
        let meter = Meter::new(self.place, self.is_redis);
        let through = self.address.replace(&self.place.to_string(), &format!("127.0.0.1:{}", meter.port));
        self.meters.push(meter);
        // Who asks for encryption gets an answer that is no frame.
        through + if self.is_redis { "" } else { "?sslmode=disable" }
    }

    fn read(&self) -> Vec<Counts> {
        self.meters.iter().map(Meter::read).collect()
    }

    /// Commands that Redis ran, those inside of scripts included. None that anybody counts in PostgreSQL.
    fn commands(&self) -> u64 {
        if !self.is_redis {
            return 0;
        }
        let mut stream = TcpStream::connect(self.place).expect("the server is there");
        stream.write_all(b"INFO stats\r\nQUIT\r\n").expect("it listens");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it answers");
        let (_, count) = said.split_once("total_commands_processed:").expect("it counts");
        count.lines().next().and_then(|line| line.parse().ok()).expect("a number")
    }

    fn during(&self, run: impl FnOnce()) -> Span {
        let (begun, commands, before) = (Instant::now(), self.commands(), self.read());
        run();
        let (seconds, now) = (begun.elapsed().as_secs_f64(), self.read());
        let grown = |count: fn(&Counts) -> u64| {
            now.iter().zip(&before).map(move |(now, before)| (count(now) - count(before)) as f64)
        };
        Span {
            seconds,
            requests: grown(|counts| counts.requests).collect(),
            messages: grown(|counts| counts.messages).sum(),
            commands: (self.commands() - commands) as f64,
        }
    }

    /// What a second takes while nothing happens.
    fn idle(&self) -> Span {
        std::thread::sleep(QUIET);
        let span = self.during(|| std::thread::sleep(WATCHED));
        let per_s = |count: f64| count / span.seconds;
        Span {
            seconds: 1.0,
            requests: span.requests.iter().map(|count| per_s(*count)).collect(),
            messages: per_s(span.messages),
            commands: per_s(span.commands),
        }
    }

    /// What one event takes of these processes, without what they would have asked for anyhow.
    fn event(&self, idle: &Span, processes: &[usize], send: impl FnOnce()) -> Span {
        std::thread::sleep(Duration::from_millis(500));
        let span = self.during(send);
        let per_event = |count: f64, idle: f64| (count - idle * span.seconds).max(0.0) / EVENTS as f64;
        Span {
            seconds: span.seconds / EVENTS as f64,
            requests: processes.iter().map(|at| per_event(span.requests[*at], idle.requests[*at])).collect(),
            messages: per_event(span.messages, idle.messages),
            commands: per_event(span.commands, idle.commands),
        }
    }
}

/// The head of the table, as docs/stores/README.md has it.
const HEAD: &str = "\
| | processes | connections | requests/s, idle | requests/s, with readers | messages/s, with readers \
| requests of an event | messages of an event | requests, read elsewhere | messages, read elsewhere |
|---|---|---|---|---|---|---|---|---|---|";

fn fleet(server: &mut Server, steps: &[usize], sessions: usize, out: &mut impl Write) {
    let mut processes: Vec<Process> = Vec::new();
    for step in steps {
        let begun = Instant::now();
        let first = processes.len();
        for number in first..*step {
            processes.push(Process::new(&server.address()));
            processes[number].fill(&format!("process {number}"), sessions);
            processes[number].settle();
        }
        let filled = begun.elapsed();
        let alone = server.idle();
        let after = |number: usize| &processes[(number + 1) % *step];
        let readers: Vec<_> =
            processes.iter().enumerate().map(|(at, process)| process.follow(after(at), 0..FOLLOWED)).collect();
        let reading = server.idle();
        let (last, next) = (&processes[*step - 1], &processes[0]);
        let at_home = server.event(&reading, &[0], || {
            next.send(FOLLOWED, EVENTS, (next, next.reader_of(FOLLOWED)));
        });
        let elsewhere = server.event(&reading, &[0, *step - 1], || {
            next.send(0, EVENTS, (last, readers[*step - 1][0]));
        });
        processes.iter().for_each(|process| process.leave(FOLLOWED));
        processes.iter().for_each(Process::check);
        let connections: u64 = server.read().iter().map(|counts| counts.connections).sum();
        writeln!(
            out,
            "| {} | {step} | {connections} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} |",
            server.name,
            alone.requests(),
            reading.requests(),
            reading.messages,
            at_home.requests(),
            at_home.messages,
            elsewhere.requests(),
            elsewhere.messages,
        )
        .expect("there is an output");
        eprintln!(
            "{}, {step} processes: begun in {:.1} s; an event {:.2} ms, read elsewhere {:.2} ms; \
             messages/s idle {:.1}; commands/s idle {:.0}, with readers {:.0}, of an event {:.1}, read elsewhere {:.1}",
            server.name,
            filled.as_secs_f64(),
            at_home.seconds * 1_000.0,
            elsewhere.seconds * 1_000.0,
            alone.messages,
            alone.commands,
            reading.commands,
            at_home.commands,
            elsewhere.commands,
        );
    }
}

fn main() {
    let (mut steps, mut sessions, mut idle) = (vec![10, 30, 100], 1_000, 1_000_000);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{option} takes a number"));
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} is no number"));
        match option.as_str() {
            "--processes" => steps = value.split(',').map(number).collect(),
            "--sessions" => sessions = number(&value),
            "--idle" => idle = number(&value),
            other => panic!("{other} is no option: --processes N,N..., --sessions N and --idle N are"),
        }
    }
    assert!(sessions > 10 * FOLLOWED, "some calls are read elsewhere, and one is not: --sessions is too small");
    let mut out = std::io::stdout();
    writeln!(out, "{HEAD}").expect("there is an output");
    for (name, variable) in [("Redis", "TAILROPE_TEST_REDIS"), ("PostgreSQL", "TAILROPE_TEST_POSTGRES")] {
        if let Some(mut server) = Server::new(name, variable) {
            fleet(&mut server, &steps, sessions, &mut out);
        }
    }
    for idle in idle::measure(idle) {
        writeln!(
            out,
            "{}: {} bytes; {:.2} ticks/s, each {:.1} us, the longest {:.1} us; {:.0} connections woken in a second",
            idle.what,
            idle.bytes_each,
            idle.ticks_per_s,
            idle.tick.as_secs_f64() * 1e6,
            idle.longest_tick.as_secs_f64() * 1e6,
            idle.woken_per_s,
        )
        .expect("there is an output");
    }
}
