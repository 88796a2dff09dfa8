//! A network that can fail: stands between a store and its server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Faults {
    /// New connections are closed at once.
    refuses: AtomicBool,
    /// Nothing is forwarded, and nothing is closed.
    is_silent: AtomicBool,
    /// What the server says to the next connection that says something is lost, and the connection with it.
    loses_answer: AtomicBool,
    /// How long each byte takes that the server says, in microseconds.
    pace_us: AtomicU64,
    /// Requests that still pass; what follows waits.
    passes: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

impl Faults {
    fn lets_pass(&self) -> bool {
        let one_less = |passes: u64| if passes == u64::MAX { Some(passes) } else { passes.checked_sub(1) };
        self.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

pub(crate) struct Proxy {
    faults: Arc<Faults>,
    pub(crate) port: u16,
}

impl Proxy {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let faults = Arc::new(Faults { passes: AtomicU64::new(u64::MAX), ..Faults::default() });
        let of_thread = Arc::clone(&faults);
        // Ends with the process: it is blocked in accept.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if of_thread.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let twin = |stream: &TcpStream| stream.try_clone().expect("a socket can be shared");
                of_thread.connections.lock().unwrap().extend([twin(&client), twin(&server)]);
                let armed = Arc::new(AtomicBool::new(false));
                copy(twin(&client), twin(&server), Arc::clone(&of_thread), Arc::clone(&armed), true);
                copy(server, client, Arc::clone(&of_thread), armed, false);
            }
        });
        Self { faults, port }
    }

    pub(crate) fn set_refuses(&self, refuses: bool) {
        self.faults.refuses.store(refuses, Ordering::SeqCst);
    }

    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.faults.is_silent.store(is_silent, Ordering::SeqCst);
    }

    /// So many requests pass from now on, each with its answer, and what follows waits. `u64::MAX` are all there are.
    pub(crate) fn let_pass(&self, requests: u64) {
        self.faults.passes.store(requests, Ordering::SeqCst);
    }

    /// What the server says arrives, but slowly.
    pub(crate) fn set_pace(&self, of_a_byte: Duration) {
        self.faults.pace_us.store(of_a_byte.as_micros().try_into().unwrap(), Ordering::SeqCst);
    }

    /// The next request reaches the server, its answer reaches nobody.
    pub(crate) fn lose_answer(&self) {
        self.faults.loses_answer.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_lost_answer(&self) -> bool {
        !self.faults.loses_answer.load(Ordering::SeqCst)
    }

    pub(crate) fn cut(&self) {
        for connection in self.faults.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, faults: Arc<Faults>, armed: Arc<AtomicBool>, is_request: bool) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            while faults.is_silent.load(Ordering::SeqCst) || is_request && !faults.lets_pass() {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Only what is large is an append of the test.
            if is_request && count > 4_000 && faults.loses_answer.swap(false, Ordering::SeqCst) {
                armed.store(true, Ordering::SeqCst);
            }
            if !is_request && armed.load(Ordering::SeqCst) {
                break;
            }
            let pace = Duration::from_micros(if is_request { 0 } else { faults.pace_us.load(Ordering::SeqCst) });
            let at_once = if pace.is_zero() { count } else { 1 };
            let begun = Instant::now();
            let is_over = buffer[..count].chunks(at_once).zip(1..).any(|(part, number)| {
                std::thread::sleep((pace * number).saturating_sub(begun.elapsed()));
                to.write_all(part).is_err()
            });
            if is_over {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}
