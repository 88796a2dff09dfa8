//! rmcp's handlers behind our own service.

use std::io;
use std::mem::take;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body_util::Full;
use rmcp::ServerHandler;
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tailrope_core::engine::{Engine, Guest, SessionHandle};
use tailrope_core::exchange::Admission;
use tailrope_core::protocol::Envelope;

use crate::rmcp::catch_panic::CatchPanic;
use crate::rmcp::messages::read;
use crate::rmcp::served::Served;
use crate::rmcp::transport::serve;
use crate::service::{self, Application, Begun, Handlers, Posts, ResponseBody, ServiceConfig, TailropeService};

/// A server of rmcp: a handler for each session.
pub struct RmcpServer<S> {
    factory: Arc<dyn Fn() -> io::Result<S> + Send + Sync>,
    /// rmcp's own service, for requests that have no session.
    modern: Mutex<StreamableHttpService<CatchPanic<S>, NeverSessionManager>>,
}

impl<S: ServerHandler + Send + 'static> TailropeService<RmcpServer<S>> {
    /// A service that replaces rmcp's `StreamableHttpService`. `factory` makes the handler of each session.
    ///
    /// ```no_run
    /// # use rmcp::ServerHandler;
    /// # #[derive(Clone)] struct Tools;
    /// # impl ServerHandler for Tools {}
    /// use tailrope_server::{Engine, Options, ServiceConfig, TailropeService};
    ///
    /// let engine = Engine::new(Options::default());
    /// let service = TailropeService::new(|| Ok(Tools), engine, ServiceConfig::default());
    /// # let _ = service;
    /// ```
    pub fn new(
        factory: impl Fn() -> io::Result<S> + Send + Sync + 'static,
        engine: Engine,
        config: ServiceConfig,
    ) -> Self {
        let factory: Arc<dyn Fn() -> io::Result<S> + Send + Sync> = Arc::new(factory);
        // Our own service has checked `Host` before.
        let modern = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_legacy_session_mode(false)
            .with_json_response(config.json_response)
            .with_max_request_body_bytes(config.max_body_bytes);
        let make = Arc::clone(&factory);
        let modern = StreamableHttpService::new(
            move || make().map(CatchPanic),
            Arc::new(NeverSessionManager::default()),
            modern,
        );
        Self::of(RmcpServer { factory, modern: Mutex::new(modern) }, engine, config)
    }
}

impl<S> RmcpServer<S> {
    fn modern(&self) -> MutexGuard<'_, StreamableHttpService<CatchPanic<S>, NeverSessionManager>> {
        self.modern.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: ServerHandler + Send + 'static> Application for RmcpServer<S> {
    type Session = Served;

    fn begin(&self, begun: &Begun<'_, Served>) -> io::Result<Arc<Served>> {
        let handler = (self.factory)()?;
        let served = Served::new(begun, None);
        tokio::spawn(serve(handler, &served));
        Ok(served)
    }

    fn serve_modern(&self, request: Request<Full<Bytes>>, guest: Guest) -> Option<service::Served> {
        let modern = self.modern().clone();
        Some(Box::pin(async move { modern.handle(request).await.map(|body| ResponseBody::other(body, guest)) }))
    }

    fn end_modern(&self) {
        // Requests that come from now on have another token.
        take(&mut self.modern().config.cancellation_token).cancel();
    }
}

impl Handlers for Served {
    type Message = ClientJsonRpcMessage;

    fn session(&self) -> &SessionHandle {
        &self.session
    }

    fn posts(&self) -> &Posts {
        &self.posts
    }

    fn read(&self, parts: Parts, envelope: &Envelope, body: &[u8]) -> Result<ClientJsonRpcMessage, String> {
        read(parts, envelope, body)
    }

    fn has_room(&self) -> bool {
        self.inbox.has_room()
    }

    fn room(&self) -> impl Future<Output = ()> + Send {
        self.inbox.room()
    }

    fn call(&self, message: ClientJsonRpcMessage) -> bool {
        self.begin(message)
    }

    fn replay(&self, message: ClientJsonRpcMessage) {
        // If its answer is an error, the session is left to other processes.
        self.has_answered.store(true, Ordering::SeqCst);
        self.inbox.put(message);
    }

    fn take(&self, admission: &Admission, message: ClientJsonRpcMessage) -> bool {
        self.pass_on(admission, message)
    }
}
