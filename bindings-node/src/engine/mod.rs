//! The engine. What it does for requests is in `requests`.

mod requests;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use napi::bindgen_prelude::{ClassInstance, Either, Either4, Env, Function, FunctionRef, Object};
use napi_derive::napi;
use tailrope_core::engine::{
    self, AUTO_WORD, Health, NUMBER_OPTIONS, OnStoreFailure, Options, PACE_FLAGS, PACE_OPTIONS, Stats,
};
use tailrope_core::store::HostStore;

use crate::convert::{PacesByName, Result, camel_case, internal, invalid, number, number_option, paces};
use crate::hook_log::HookLog;
use crate::log::{LogArgs, Sink};
use crate::store::{Store, flush};
use crate::telemetry::{self, Observed, Telemetry};
use crate::waiters::Waiters;

/// What an engine knows of its health: see the core's `Health`.
#[napi(object)]
pub struct HealthParts {
    pub store_away_ms: Option<f64>,
    pub store_refused_ms: Option<f64>,
    pub is_refusing: bool,
    pub is_draining: bool,
    pub waiting_bytes: f64,
    pub is_behind: bool,
}

/// As JavaScript gives several.
type Engines<'env> = Vec<ClassInstance<'env, Engine>>;

fn all(engines: &[ClassInstance<'_, Engine>]) -> Stats {
    Stats::of_all(engines.iter().map(|engine| &engine.engine))
}

/// The answer to a request: see the core's `LiveAnswer`.
#[napi(object)]
pub struct JsLiveAnswer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

/// An engine with its event store.
#[napi]
pub struct Engine {
    engine: engine::Engine,
    waiters: Rc<Waiters>,
    signal: FunctionRef<(), ()>,
}

impl Engine {
    pub(crate) fn engine(&self) -> &engine::Engine {
        &self.engine
    }

    /// Its waiters, which other threads wake from now on.
    pub(crate) fn woken_elsewhere(&self, env: &Env) -> Result<&Rc<Waiters>> {
        let signal = self.signal.borrow_back(env).map_err(internal)?;
        self.waiters.open_signal(env, &self.engine, &signal)?;
        Ok(&self.waiters)
    }
}
#[napi]
impl Engine {
    /// An engine with these options; what is not named keeps its default. Options are whole numbers
    /// that are not negative, `onStoreFailure`, and `pace`; unknown names throw.
    ///
    /// The events go to `store`, whose bounds are its own; without one to a store of the host: see
    /// `Session.takeOperations`. `resolve` is called with woken keys, `log` with a level, a line and its fields, and
    /// `signal` when `flush` has to be called.
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        store: Option<&Store>,
        options: HashMap<String, Either4<f64, String, PacesByName, bool>>,
        resolve: Function<'_, Vec<u32>, ()>,
        log: Function<'_, LogArgs, ()>,
        signal: Function<'_, (), ()>,
    ) -> Result<Self> {
        let mut chosen = Options::default();
        for (name, value) in options {
            let value = match value {
                Either4::A(number) => Either::A(number),
                Either4::D(is_every) if name == "logCalls" => {
                    chosen.log_calls = is_every;
                    continue;
                }
                Either4::C(by_name) if name == "pace" => {
                    chosen.paces = paces(by_name)?;
                    continue;
                }
                Either4::B(policy) if name == "onStoreFailure" => {
                    let policy = OnStoreFailure::parse(&policy);
                    let wrong = || invalid("onStoreFailure must be 'raise' or 'drop_progress'".to_owned());
                    chosen.on_store_failure = policy.ok_or_else(wrong)?;
                    continue;
                }
                Either4::B(text) => Either::B(text),
                Either4::C(_) | Either4::D(_) => Either::A(f64::NAN),
            };
            let (option, number) = number_option(&name, &value)?;
            if store.is_some() && option.is_of_store {
                return Err(invalid(format!("unknown option {name}")));
            }
            option.set(&mut chosen, number);
        }
        chosen.store = Some(match store {
            None => Arc::new(HostStore::new(chosen.limits)),
            Some(store) => {
                chosen.limits = store.limits;
                chosen.owner_lost_ms = store.owner_lost_ms;
                Arc::clone(&store.store)
            }
        });
        chosen.observer = Some(Arc::new(Telemetry));
        let engine = engine::Engine::new(chosen);
        let waiters = Waiters::new(resolve, Sink::new(log)?)?;
        let me = Self { engine, waiters, signal: signal.create_ref().map_err(internal)? };
        if me.engine.answers_elsewhere() {
            me.woken_elsewhere(env)?;
        }
        Ok(me)
    }

    /// The engines of this process are observed from now on, and `observer` is told on this thread. Gives the bounds of the
    /// histograms, in seconds.
    #[napi]
    pub fn observe(observer: Function<'_, Observed, ()>) -> Result<Vec<f64>> {
        telemetry::observe(observer)
    }

    /// The version of this package.
    #[napi]
    pub fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Whether messages may be stored later: see `Session.takeOutcomes`.
    #[napi]
    pub fn answers_elsewhere(&self) -> bool {
        self.engine.answers_elsewhere()
    }

    /// Whether sessions may live in other processes: see `lookUpSession`.
    #[napi]
    pub fn outlives_process(&self) -> bool {
        self.engine.outlives_process()
    }

    /// Tells what other threads have woken.
    #[napi(catch_unwind)]
    pub fn flush(&self, env: &Env) {
        self.waiters.flush_signalled(env);
    }

    /// A log for an SDK's own transport, in the engine's store.
    #[napi(catch_unwind)]
    pub fn hook_log(&self) -> HookLog {
        HookLog::new(self.engine.hook_log(), &self.waiters)
    }

    /// The names of the options that are numbers: those of a store, or the others.
    #[napi]
    pub fn number_options(of_store: bool) -> Vec<String> {
        let options = NUMBER_OPTIONS.iter().filter(|option| option.is_of_store == of_store);
        options.map(|option| camel_case(option.name)).collect()
    }

    /// The names of what a pace can say.
    #[napi]
    pub fn pace_options() -> Vec<String> {
        let flags = PACE_FLAGS.iter().map(|flag| flag.name);
        PACE_OPTIONS.iter().map(|option| option.name).chain(flags).map(camel_case).collect()
    }

    /// Sets what is logged on this thread: `error`, `warn`, `info` or `debug`, and what is worse.
    #[napi]
    pub fn set_log_level(level: String) -> Result<()> {
        crate::log::set_level(&level)
    }

    /// Does what time asks for. Returns the names of the sessions that are idle, for the host to close them, and of those that
    /// have ended by themselves: for newer ones, or because another process took them over. None where there is no such session, and
    /// nothing is held that time would have to free: then there is nothing to tick for.
    #[napi(catch_unwind)]
    pub fn tick(&self, env: &Env) -> Option<Vec<String>> {
        let idle = self.engine.tick();
        self.waiters.flush(env);
        let is_over = idle.is_empty() && self.engine.is_idle();
        (!is_over).then(|| idle.iter().map(|session| session.name().to_owned()).collect())
    }

    /// Milliseconds until `tick` is due.
    #[napi]
    pub fn due_in_ms(&self) -> f64 {
        number(self.engine.due_in_ms())
    }

    /// Closes every connection, now and from now on, and leaves sessions to other processes as nothing runs in them.
    #[napi(catch_unwind)]
    pub fn drain(&self, env: &Env, retry_ms: Option<u32>, spread_ms: Option<u32>) {
        self.engine.drain(self.engine.drain_of(retry_ms, spread_ms));
        self.waiters.flush(env);
    }

    /// Whether a drain left nothing, once it is over.
    #[napi(catch_unwind)]
    pub fn drained(&self, env: &Env, within_ms: Option<u32>) -> Option<bool> {
        let drained = self.engine.drained(within_ms.map(u64::from));
        self.waiters.flush(env);
        drained
    }

    /// The process ends, and every session with it; nothing is taken afterwards. What a store that outlives
    /// the process has of them stays there for their clients, and what it was given is written.
    #[napi(catch_unwind)]
    pub fn leave(&self, env: &Env) {
        self.engine.close();
        if let Some(store) = self.engine.options().store.as_ref().filter(|_| self.engine.outlives_process()) {
            flush(&**store);
        }
        self.waiters.flush(env);
    }

    /// What the engines of the thread did and hold: counts by name.
    #[napi]
    pub fn stats_of<'env>(env: &'env Env, engines: Engines<'_>) -> Result<Object<'env>> {
        let mut counts = Object::new(env).map_err(internal)?;
        for (counter, value) in all(&engines).entries() {
            counts.set(camel_case(counter.name), number(value)).map_err(internal)?;
        }
        Ok(counts)
    }

    /// The same for Prometheus. `process` is how it tells this thread from other threads and processes.
    #[napi]
    pub fn exposition(engines: Engines<'_>, process: String) -> String {
        all(&engines).exposition(&process)
    }

    /// The content type of that.
    #[napi]
    pub fn exposition_type() -> &'static str {
        engine::EXPOSITION_TYPE
    }

    /// After what time, in milliseconds, a reader that takes nothing is cut off.
    #[napi]
    pub fn patience_ms(&self) -> Option<f64> {
        self.engine.options().patience_ms().map(number)
    }

    /// Whether the engine can serve: for `healthJson`.
    #[napi]
    pub fn health(&self) -> HealthParts {
        let Health { store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind } =
            self.engine.health();
        let (store_away_ms, store_refused_ms) = (store_away_ms.map(number), store_refused_ms.map(number));
        let waiting_bytes = number(waiting_bytes);
        HealthParts { store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind }
    }

    /// What a load balancer is told, as JSON, of the engines of the thread. Its status is 503 if it is `unavailable`.
    #[napi]
    pub fn health_json(engines: Vec<HealthParts>) -> String {
        let whole = |number: f64| number as u64;
        let of_one = |of: HealthParts| Health {
            store_away_ms: of.store_away_ms.map(whole),
            store_refused_ms: of.store_refused_ms.map(whole),
            is_refusing: of.is_refusing,
            is_draining: of.is_draining,
            waiting_bytes: whole(of.waiting_bytes),
            is_behind: of.is_behind,
        };
        Health::of_all(engines.into_iter().map(of_one)).to_json()
    }

    /// The answer to a request for the live page of these engines. See the core's `live_answer`.
    #[napi]
    pub fn live_answer(method: String, query: Option<String>, engines: Engines<'_>) -> JsLiveAnswer {
        let snapshots = || engines.iter().filter_map(|one| one.engine.live_snapshot()).collect();
        let engine::LiveAnswer { status, headers, body } = engine::live_answer(&method, query.as_deref(), snapshots);
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        JsLiveAnswer { status, headers, body }
    }

    /// The options in force, by name.
    #[napi]
    pub fn options<'env>(&self, env: &'env Env) -> Result<Object<'env>> {
        let options = self.engine.options();
        let mut object = Object::new(env).map_err(internal)?;
        for option in NUMBER_OPTIONS {
            let name = camel_case(option.name);
            match option.get(options) {
                Some(value) => object.set(name, number(value)),
                None => object.set(name, AUTO_WORD),
            }
            .map_err(internal)?;
        }
        Ok(object)
    }
}
