//! A small HTTP/1.1 client connection: one request at a time, keep-alive, bodies by length or in chunks.
//!
//! Hand-written because the client shares two cores with the server it measures: decoding is one copy from the
//! read buffer into the caller's, without allocation per chunk.

use memchr::memchr;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Fault>;

const READ_BYTES: usize = 256 * 1024;

/// Where the reader is in the body of the current answer.
enum Body {
    Finished,
    Length(usize),
    ChunkHead,
    Chunk(usize),
    ChunkEnd,
    Trailer,
}

pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) session_id: Option<String>,
    pub(crate) event_stream: bool,
}

pub(crate) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    taken: usize,
    body: Body,
    reusable: bool,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new(), taken: 0, body: Body::Finished, reusable: true })
    }

    /// Whether the last answer was read to its end and the server keeps the connection.
    pub(crate) fn is_reusable(&self) -> bool {
        self.reusable && matches!(self.body, Body::Finished) && self.taken == self.input.len()
    }

    /// Send a complete request and read the head of its answer.
    pub(crate) async fn request(&mut self, bytes: &[u8]) -> Result<Head> {
        self.stream.write_all(bytes).await?;
        let end = loop {
            if let Some(at) = memmem::find(&self.input[self.taken..], b"\r\n\r\n") {
                break self.taken + at;
            }
            if !self.fill().await? {
                return Err("the server closed the connection before its answer".into());
            }
        };
        let head = self.read_head(end)?;
        self.taken = end + 4;
        Ok(head)
    }

    fn read_head(&mut self, end: usize) -> Result<Head> {
        let text = std::str::from_utf8(&self.input[self.taken..end])?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.split(' ').nth(1).unwrap_or_default().parse()?;
        let mut head = Head { status, session_id: None, event_stream: false };
        // A 204 has no body; other answers of the servers under test always say how theirs ends.
        let mut body = (status == 204).then_some(Body::Finished);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let length = value.parse()?;
                body = Some(if length == 0 { Body::Finished } else { Body::Length(length) });
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                body = Some(Body::ChunkHead);
            } else if name.eq_ignore_ascii_case("mcp-session-id") {
                head.session_id = Some(value.to_owned());
            } else if name.eq_ignore_ascii_case("content-type") {
                head.event_stream = value.starts_with("text/event-stream");
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                self.reusable = false;
            }
        }
        self.body = body.ok_or("answer without Content-Length or chunks")?;
        Ok(head)
    }

    /// Append what is there of the body to `out`, waiting for more if nothing is; false once the body has ended.
    pub(crate) async fn read_body(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            let before = out.len();
            self.decode(out)?;
            if matches!(self.body, Body::Finished) {
                return Ok(false);
            }
            if out.len() > before {
                return Ok(true);
            }
            if !self.fill().await? {
                return Err("the server closed the connection within a body".into());
            }
        }
    }

    fn decode(&mut self, out: &mut Vec<u8>) -> Result<()> {
        loop {
            let rest = &self.input[self.taken..];
            match self.body {
                Body::Finished => return Ok(()),
                Body::Length(left) | Body::Chunk(left) => {
                    let n = left.min(rest.len());
                    if n == 0 {
                        return Ok(());
                    }
                    out.extend_from_slice(&rest[..n]);
                    self.taken += n;
                    self.body = match (&self.body, left - n) {
                        (Body::Length(_), 0) => Body::Finished,
                        (Body::Length(_), left) => Body::Length(left),
                        (_, 0) => Body::ChunkEnd,
                        (_, left) => Body::Chunk(left),
                    };
                }
                Body::ChunkHead => {
                    let Some(at) = memchr(b'\n', rest) else {
                        return Ok(());
                    };
                    let digits = std::str::from_utf8(&rest[..at])?.trim_end();
                    let size = usize::from_str_radix(digits, 16)?;
                    self.taken += at + 1;
                    self.body = if size == 0 { Body::Trailer } else { Body::Chunk(size) };
                }
                Body::ChunkEnd | Body::Trailer => {
                    if rest.len() < 2 {
                        return Ok(());
                    }
                    if &rest[..2] != b"\r\n" {
                        return Err("a chunk does not end where its size says".into());
                    }
                    self.taken += 2;
                    self.body = if matches!(self.body, Body::Trailer) { Body::Finished } else { Body::ChunkHead };
                }
            }
        }
    }

    async fn fill(&mut self) -> Result<bool> {
        if self.taken == self.input.len() {
            self.input.clear();
        } else if self.taken > 0 {
            self.input.drain(..self.taken);
        }
        self.taken = 0;
        self.input.reserve(READ_BYTES);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }
}
