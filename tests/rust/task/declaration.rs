//! Runs `tests/vectors/task_declaration.json` and `tests/vectors/task_routes.json`: who takes part in tasks.

use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_core::protocol::{Kind, Revision};
use tailrope_core::task::{
    Announcement, Declared, Policy, Posted, RequestMeta, announce, route, subscribed_tasks, with_subscribed_tasks,
};

use crate::kit::vectors::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    given: Given,
    want: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Given {
    /// The parameters of a request.
    Params(String),
    /// The version header, and the body.
    Post(Option<String>, String),
    /// The answer to `server/discover`.
    Discover(String),
    /// The parameters of `subscriptions/listen`.
    Listen(String),
    /// An acknowledgement, and the tasks that were agreed to.
    Acknowledgement(String, Vec<String>),
}

fn declared(declared: Declared) -> &'static str {
    match declared {
        Declared::Yes => "yes",
        Declared::No => "no",
        Declared::Malformed => "malformed",
    }
}

fn said(given: &Given) -> Value {
    match given {
        Given::Params(params) => RequestMeta::of(params).map(|meta| declared(meta.declared)).into(),
        Given::Post(version, body) => Posted::read(version.as_deref(), body.as_bytes())
            .map(|posted| {
                let Posted { revision, kind, method, tool, declared: said, names_tasks } = posted;
                let revision = revision.map(Revision::as_str);
                let is_request = kind == Kind::Request;
                json!([revision, is_request, method, tool, declared(said), names_tasks])
            })
            .into(),
        Given::Discover(answer) => match announce(answer.as_bytes()) {
            Announcement::Added(answer) => String::from_utf8(answer.into()).unwrap().into(),
            Announcement::ByHost => Value::from(true),
            Announcement::Unchanged => Value::Null,
        },
        Given::Listen(params) => subscribed_tasks(params).into(),
        Given::Acknowledgement(text, tasks) => {
            let tasks: Vec<&str> = tasks.iter().map(|task| &**task).collect();
            with_subscribed_tasks(text, &tasks).into()
        }
    }
}

#[test]
fn t_01_t_02_declarations() {
    for (name, Vector { given, want }) in vectors::<Vector>(include_str!("../../vectors/task_declaration.json")) {
        assert_eq!(said(&given), want, "{name}");
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default = "newest")]
    revision: Option<String>,
    methods: Vec<String>,
    #[serde(default)]
    notification: bool,
    #[serde(default)]
    names_tasks: bool,
    #[serde(default = "yes")]
    offers: bool,
    #[serde(default)]
    requires: bool,
    #[serde(default)]
    stands_aside: bool,
    /// Where clients are steered, and where they are not.
    steers: Routes,
    serves: Routes,
}

#[allow(clippy::unnecessary_wraps, reason = "the default of a field that may be null")]
fn newest() -> Option<String> {
    Some("2026-07-28".to_owned())
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Routes {
    yes: String,
    no: String,
    malformed: String,
}

#[test]
fn t_03_to_t_08_routes() {
    for (name, row) in vectors::<Row>(include_str!("../../vectors/task_routes.json")) {
        let Row { notification, names_tasks, offers, requires, stands_aside, .. } = row;
        let revision = row.revision.map(|revision| Revision::parse(&revision).unwrap());
        let kind = if notification { Kind::Notification } else { Kind::Request };
        for (steers, routes) in [(true, &row.steers), (false, &row.serves)] {
            for (declared, want) in
                [(Declared::Yes, &routes.yes), (Declared::No, &routes.no), (Declared::Malformed, &routes.malformed)]
            {
                for method in &row.methods {
                    let method = method.clone();
                    let posted = Posted { revision, kind, method, tool: None, declared, names_tasks };
                    let policy = Policy { offers, requires, steers, stands_aside };
                    assert_eq!(
                        route(&posted, policy).as_str(),
                        want,
                        "{name}: {}, {declared:?}, steers {steers}",
                        posted.method
                    );
                }
            }
        }
    }
}
