//! What tests ask of a server beside its MCP endpoint: below `/ctl/`.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tailrope_server::Engine;

use crate::serving::Serving;
use crate::tools::Lab;

const PAGE_BYTES: u64 = 4096;

pub(crate) struct Ctl {
    pub(crate) lab: Arc<Lab>,
    pub(crate) engine: Option<Engine>,
    pub(crate) serving: Serving,
}

/// The value of a character that a percent sign names.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let pair = |rest: &mut std::str::Bytes<'_>| [rest.next(), rest.next()].into_iter().collect::<Option<Vec<u8>>>();
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => pair(&mut rest)
                .and_then(|pair| u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok())
                .unwrap_or(b'?'),
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn state(ctl: &Ctl) -> Value {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let control = &ctl.lab.control;
    json!({
        "marks": control.marks(),
        "requests": control.requests(),
        "rss": pages * PAGE_BYTES,
        "descriptors": descriptors,
        "errors": [],
        "store": ctl.serving.plain_store().map(|store| json!({ "rows": store.count() })),
    })
}

pub(crate) async fn answer(State(ctl): State<Arc<Ctl>>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches("/ctl/").to_owned();
    let query = request.uri().query().unwrap_or_default();
    let query: HashMap<String, String> =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (decoded(k), decoded(v))).collect();
    let text = |name: &str| query.get(name).map_or("", |value| value);
    let control = &ctl.lab.control;
    let answer = match &*path {
        "open" => {
            text("gate").split(',').for_each(|gate| control.open(gate));
            json!({})
        }
        "mark" => {
            let (name, count) = (text("name"), text("count").parse().unwrap_or(1));
            match control.marked(name, count).await {
                true => json!({}),
                false => json!({ "missing": name, "marks": control.marks() }),
            }
        }
        "state" => state(&ctl),
        "held" => {
            control.forget();
            let mut held = state(&ctl);
            held["sessions"] = json!(ctl.engine.as_ref().map(|engine| engine.stats().sessions));
            held
        }
        "act" => ctl.lab.order(text("name"), text("step")).await,
        "stats" => match &ctl.engine {
            Some(engine) => engine.stats().entries().map(|(counter, count)| (counter.name, json!(count))).collect(),
            None => json!({}),
        },
        // Its only plan is to lose everything.
        "store" => {
            if let Some(store) = ctl.serving.plain_store() {
                store.forget();
            }
            json!({})
        }
        "drain" => {
            let body = to_bytes(request.into_body(), 1 << 16).await.unwrap_or_default();
            let options: Value = serde_json::from_slice(&body).unwrap_or_default();
            ctl.serving.drain(&options).await;
            json!({})
        }
        _ => return (StatusCode::NOT_FOUND, format!("the Rust servers have no control {path:?}")).into_response(),
    };
    ([("content-type", "application/json")], Body::from(answer.to_string())).into_response()
}
