//! Subscriptions that name tasks, behind our own service: rmcp serves them, and what becomes of the tasks comes between its events.

use std::sync::{Arc, Mutex};

use http::Response;
use http_body_util::BodyExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ServerCapabilities, ServerConfig, SubscriptionFilter};
use rmcp::service::{RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tailrope_core::protocol::{Decoder, Item};
use tailrope_server::store::EventStore;
use tailrope_server::{Drain, Engine, Options, ResponseBody, RmcpServer, ServiceConfig, TailropeService};
use tokio::time::timeout;

use crate::lab::{Gates, PATIENCE, Steps};
use crate::shared::Place;
use crate::tasks::{options, post, rest, steps};

/// A server that says when its tools change.
#[derive(Clone)]
struct Telling {
    steps: Steps,
    sinks: Arc<Mutex<Vec<SubscriptionSink>>>,
}

impl ServerHandler for Telling {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.steps.call_tool(request, context).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.sinks.lock().unwrap().push(context.sink().clone());
        context.cancelled().await;
        Ok(())
    }
}

struct Served {
    service: TailropeService<RmcpServer<Telling>>,
    gates: Gates,
    sinks: Arc<Mutex<Vec<SubscriptionSink>>>,
}

impl Served {
    fn new(options: Options) -> Self {
        let (gates, sinks) = (Gates::default(), Arc::default());
        let telling = Telling { steps: Steps::new(&gates), sinks: Arc::clone(&sinks) };
        let service = TailropeService::new(move || Ok(telling.clone()), Engine::new(options), ServiceConfig::default());
        Self { service, gates, sinks }
    }

    async fn task(&self, user: &str, of: &[&str]) -> String {
        let answer: Value =
            serde_json::from_str(&rest(post(&self.service, user, steps(of), true).await).await).unwrap();
        answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    async fn listen(&self, tasks: &[&str]) -> Stream {
        let params = json!({"notifications": {"toolsListChanged": true, "taskIds": tasks}});
        let answer = post(&self.service, "alice", ("subscriptions/listen", params), true).await;
        assert_eq!(answer.status(), 200);
        Stream { answer, decoder: Decoder::new(usize::MAX) }
    }

    async fn tools_change(&self) {
        let sink = self.sinks.lock().unwrap()[0].clone();
        sink.notify_tool_list_changed().await.unwrap();
    }
}

struct Stream {
    answer: Response<ResponseBody>,
    decoder: Decoder,
}

impl Stream {
    /// The next message; none at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.decoder.next().unwrap() {
                Some(Item::Event(event)) if !event.data.is_empty() => {
                    return Some(serde_json::from_str(&event.data).unwrap());
                }
                Some(_) => {}
                None => {
                    let frame = timeout(PATIENCE, self.answer.body_mut().frame()).await.expect("something comes")?;
                    self.decoder.push(&frame.unwrap().into_data().unwrap());
                }
            }
        }
    }

    /// What the next message says of a task.
    async fn told(&mut self) -> Value {
        let message = self.next().await.unwrap();
        assert_eq!(message["method"], "notifications/tasks", "{message}");
        assert_eq!(message["params"]["_meta"], json!({"io.modelcontextprotocol/subscriptionId": 7}));
        message["params"].clone()
    }

    async fn agreed(&mut self) -> Value {
        let first = self.next().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        first["params"]["notifications"].clone()
    }
}

#[tokio::test]
async fn t_24_what_becomes_of_tasks_comes_between_the_events_of_rmcp() {
    let served = Served::new(options());
    let task = served.task("alice", &["gate go"]).await;
    let asking = served.task("alice", &["ask"]).await;
    let foreign = served.task("bob", &["gate never"]).await;
    let mut stream = served.listen(&[&foreign, &task, "none", &asking]).await;
    assert_eq!(stream.agreed().await, json!({"toolsListChanged": true, "taskIds": [task, asking]}));
    let asked = stream.told().await;
    assert_eq!((&asked["taskId"], &asked["status"]), (&json!(asking), &json!("input_required")));
    served.tools_change().await;
    assert_eq!(stream.next().await.unwrap()["method"], "notifications/tools/list_changed");
    served.gates.open("go");
    let done = stream.told().await;
    assert_eq!((&done["taskId"], &done["result"]["content"][0]["text"]), (&json!(task), &json!("done")));
    served.tools_change().await;
    assert_eq!(stream.next().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn o17_a_drain_ends_subscriptions_to_tasks() {
    let served = Served::new(options());
    let task = served.task("alice", &["gate go"]).await;
    let mut stream = served.listen(&[&task]).await;
    assert_eq!(stream.agreed().await["taskIds"], json!([task]));
    let drain = served.service.drain(Drain::default().within_ms(60_000));
    let reading = async {
        assert_eq!(stream.next().await.unwrap()["result"]["resultType"], "complete");
        assert_eq!(stream.next().await, None);
        drop(stream);
        served.gates.open("go");
    };
    let (is_drained, ()) = tokio::join!(drain, reading);
    assert!(is_drained);
}

#[tokio::test]
async fn what_rmcp_refuses_is_refused_as_it_says() {
    let (service, _) = crate::tasks::service(options(), ServiceConfig::default());
    for (count, status, code) in [(1, 404, -32601), (65, 400, -32602)] {
        let tasks: Vec<String> = (0..count).map(|number| format!("t{number}")).collect();
        let request = ("subscriptions/listen", json!({"notifications": {"taskIds": tasks}}));
        let answer = post(&service, "alice", request, true).await;
        let found = answer.status().as_u16();
        let body = rest(answer).await;
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        assert_eq!((found, &answer["error"]["code"]), (status, &json!(code)), "{answer}");
    }
    let request = ("subscriptions/listen", json!({"notifications": {"taskIds": ["t"]}}));
    let answer: Value = serde_json::from_str(&rest(post(&service, "alice", request, false).await).await).unwrap();
    assert_eq!(answer["error"]["code"], -32021, "T-05");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_24_any_process_tells_what_becomes_of_a_task() {
    let place = Place::new("subscribed");
    let [owner, other] = [(); 2].map(|()| {
        let store: Arc<dyn EventStore> = place.store();
        Served::new(Options { store: Some(store), ..options() })
    });
    let task = owner.task("alice", &["gate go"]).await;
    let mut stream = other.listen(&[&task]).await;
    assert_eq!(stream.agreed().await["taskIds"], json!([task]));
    owner.gates.open("go");
    assert_eq!(stream.told().await["status"], "completed");
}
