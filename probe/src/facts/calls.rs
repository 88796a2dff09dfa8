//! The requests that are cut: a short one, which is a ping or else the tool, and a long call of the tool.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Facts, Found, Stop, not_checked, settled, shown_type};
use crate::session::{Run, Session};
use crate::wire::Exchange;

/// A live check cuts a call while it runs, several times.
const SHORTEST_CALL: Duration = Duration::from_millis(500);
const LONGEST_CALL: Duration = Duration::from_secs(120);

/// What is called.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// The undisturbed call, whatever came of it: how long it takes, what it sends, and what is wrong with it.
pub(crate) struct Polled {
    pub(crate) duration: Duration,
    pub(crate) run: Rc<Run>,
    pub(crate) problem: Result<(), String>,
}

/// Names, or the first of them.
fn few(names: &[&str]) -> String {
    const MOST: usize = 8;
    match names {
        [] => "none".to_owned(),
        _ if names.len() > MOST => format!("{} and {} more", names[..MOST].join(", "), names.len() - MOST),
        _ => names.join(", "),
    }
}

impl Facts {
    /// What the short stream answers.
    pub(crate) async fn source(&self) -> Found<String> {
        let find = || async {
            if self.ping().await?.is_stream() {
                return Ok("ping".to_owned());
            }
            Ok(format!("tools/call {}", self.tool().await?.name))
        };
        self.source.get_or_init(find).await.clone()
    }

    pub(crate) async fn ping(&self) -> Found<Rc<Exchange>> {
        let find = || async {
            let exchange = self.first().await?.request(self.next_id(), "ping").await?;
            exchange.answered(self.timeout()).await;
            settled(&exchange).await;
            Ok(exchange)
        };
        self.ping.get_or_init(find).await.clone()
    }

    /// A short request, just sent.
    pub(crate) async fn begin(&self, session: &Rc<Session>, id: u64) -> Found<Run> {
        if self.source().await? == "ping" {
            return Ok(Run::new(Rc::clone(session), id, session.request(id, "ping").await?));
        }
        self.call(session, id).await
    }

    /// The answer to a short request, read to its end.
    pub(crate) async fn short(&self) -> Found<Rc<Run>> {
        self.short.get_or_init(|| self.find_short()).await.clone()
    }

    async fn find_short(&self) -> Found<Rc<Run>> {
        let session = self.first().await?;
        let source = self.source().await?;
        let started = Instant::now();
        let run = self.begin(&session, self.next_id()).await?;
        let exchange = run.last();
        if !exchange.is_stream() {
            return not_checked(format!("{source} is answered {}", shown_type(&exchange)));
        }
        let is_call = source != "ping";
        exchange.answered(if is_call { LONGEST_CALL } else { self.timeout() }).await;
        self.known.set(if is_call { started.elapsed() } else { Duration::ZERO });
        exchange.over(self.timeout()).await;
        Ok(Rc::new(run))
    }

    /// The same, of a server that gives ids at all.
    pub(crate) async fn resumable(&self) -> Found<Rc<Run>> {
        let run = self.short().await?;
        if run.first_id().is_none() {
            return not_checked("no event has an id");
        }
        Ok(run)
    }

    /// A short request whose connection is cut after its first event with an id.
    pub(crate) async fn missed(&self, session: &Rc<Session>, id: u64) -> Found<Rc<Run>> {
        let run = self.begin(session, id).await?;
        if !run.has_id().await {
            return not_checked("no event has an id");
        }
        let exchange = run.last();
        exchange.cut();
        let first = exchange.blocks().iter().position(|block| block.id.is_some()).unwrap_or(0);
        if exchange.blocks()[first].is_response() {
            return not_checked("the first id comes with the response: nothing can be missed after it");
        }
        exchange.forget_after(first);
        Ok(Rc::new(run))
    }

    /// A request that was cut, after a resume from its first id: the last connection is that of the resume.
    pub(crate) async fn finished(&self) -> Found<Rc<Run>> {
        let find = || async {
            self.resumable().await?;
            let run = self.missed(&self.first().await?, self.next_id()).await?;
            run.resume().await?.answered(self.patience()).await;
            Ok(run)
        };
        self.finished.get_or_init(find).await.clone()
    }

    pub(crate) async fn tool(&self) -> Found<Rc<Tool>> {
        self.tool.get_or_init(|| self.find_tool()).await.clone()
    }

    /// The first page of the server's tools, and whether there are no others.
    async fn listed(&self) -> Found<(Vec<Value>, bool)> {
        let exchange = match self.first().await {
            Ok(session) => session.request(self.next_id(), "tools/list").await?,
            // There may be tasks.
            Err(_) => self.ask("tools/list", json!({}), true).await?,
        };
        exchange.answered(self.timeout()).await;
        let message = exchange.json();
        let Some(result) = message.get("result") else { return Ok((Vec::new(), false)) };
        let tools = result["tools"].as_array();
        Ok((tools.cloned().unwrap_or_default(), tools.is_some() && result.get("nextCursor").is_none()))
    }

    /// Whether the server has the tool that was named, as far as it says which it has.
    pub(crate) async fn has_named_tool(&self) -> Found<()> {
        let Some(name) = &self.options.tool else { return Ok(()) };
        let (tools, are_all) = self.listed().await?;
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        if !are_all || names.contains(&name.as_str()) {
            return Ok(());
        }
        Err(Stop::Unusable(format!("the server has no tool {name}: it has {}", few(&names))))
    }

    async fn find_tool(&self) -> Found<Rc<Tool>> {
        if let Some(name) = self.options.tool.clone() {
            return Ok(Rc::new(Tool { name, arguments: self.options.arguments.clone().unwrap_or_default() }));
        }
        for tool in self.listed().await?.0 {
            let required = tool["inputSchema"]["required"].as_array();
            let is_safe = tool["annotations"]["readOnlyHint"] == true && required.is_none_or(Vec::is_empty);
            if let (true, Some(name)) = (is_safe, tool["name"].as_str()) {
                return Ok(Rc::new(Tool { name: name.to_owned(), arguments: Map::new() }));
            }
        }
        not_checked("no tool is read-only by its annotations and needs no argument: name one with --tool")
    }

    pub(crate) async fn call(&self, session: &Rc<Session>, id: u64) -> Found<Run> {
        let tool = self.tool().await?;
        self.calls.set(self.calls.get() + 1);
        let params = json!({
            "name": tool.name,
            "arguments": tool.arguments,
            "_meta": {"progressToken": format!("probe-{}-{id}", session.name)},
        });
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        // It may be answered with JSON, once it is over.
        let within = if self.known.get().is_zero() { LONGEST_CALL } else { self.patience() };
        Ok(Run::new(Rc::clone(session), id, session.post(message, within).await?))
    }

    pub(crate) async fn polled(&self) -> Found<Rc<Polled>> {
        self.polled.get_or_init(|| self.find_polled()).await.clone()
    }

    async fn find_polled(&self) -> Found<Rc<Polled>> {
        self.resumable().await?;
        let session = self.first().await?;
        let started = Instant::now();
        let run = Rc::new(self.call(&session, self.next_id()).await?);
        let name = &self.tool().await?.name;
        if !run.last().is_stream() {
            return not_checked(format!("tools/call {name} is answered {}", shown_type(&run.last())));
        }
        let ended = run.finish(LONGEST_CALL).await;
        let duration = started.elapsed();
        self.known.set(duration);
        let message = run.response().and_then(|response| response.message.clone()).unwrap_or_default();
        let is_error = message.contains_key("error") || message.get("result").is_some_and(|it| it["isError"] == true);
        let problem = match ended {
            Err(why) => Err(format!("the call of {name} does not end: {why}")),
            Ok(()) if is_error => Err(format!(
                "the call of {name} fails: name a tool that runs long with --tool, and what it takes with --arguments"
            )),
            Ok(()) => Ok(()),
        };
        Ok(Rc::new(Polled { duration, run, problem }))
    }

    /// The undisturbed call, if it is long enough to be disturbed.
    pub(crate) async fn long(&self) -> Found<Rc<Polled>> {
        let polled = self.polled().await?;
        if let Err(problem) = &polled.problem {
            return not_checked(problem);
        }
        if polled.duration < SHORTEST_CALL {
            let (name, ms) = (&self.tool().await?.name, SHORTEST_CALL.as_millis());
            return not_checked(format!(
                "the call of {name} takes less than {ms} ms: name a tool that runs long with --tool"
            ));
        }
        Ok(polled)
    }
}
