//! Hyper with nothing behind it, and with the bound that a front has for heads: the peer of fronts under abuse.

#[path = "../../../../benches/rust/src/bare.rs"]
mod bare;

use std::io;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        // Otherwise each small event would wait for the acknowledgement of the one before.
        let _ = socket.set_nodelay(true);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        let connection = http.serve_connection(TokioIo::new(socket), service_fn(bare::answer));
        // One that breaks off is its client's affair.
        tokio::spawn(async move { drop(connection.await) });
    }
}
