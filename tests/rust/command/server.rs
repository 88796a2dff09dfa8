//! A Redis server of a test's own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A server of the test's own.
pub(super) struct Server {
    process: Child,
    pub(super) port: u16,
}

impl Server {
    pub(super) fn start(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).args(arguments);
        let process = command.stdout(Stdio::null()).spawn().expect("redis-server runs");
        let server = Self { process, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        server
    }

    pub(super) fn say(&self, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.write_all(format!("{line}\r\n").as_bytes()).expect("it takes it");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("it answers");
        answer.trim_end().to_owned()
    }

    pub(super) fn address(&self, user: &str) -> String {
        format!("redis://{user}127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
