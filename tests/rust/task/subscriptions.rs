//! Runs `tests/vectors/task_subscriptions.json`: what a subscriber to tasks is sent, byte by byte; and random schedules of the same.

use serde::Deserialize;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::protocol::{Decoder, Item};
use tailrope_core::task::{
    Born, CallHeaders, Change, End, MAX_SUBSCRIBED_TASKS, Subscription, TASK_ID_BYTES, Task, TaskId, What,
};

use super::views::{WhatSpec, what};
use crate::kit::dice::{Dice, depth};
use crate::kit::vectors::vectors;

const UNIX_MS: u64 = 1_795_832_278_000;
const RETENTION_MS: u64 = 60_000;
const MAX_EVENT_BYTES: usize = 1_000;
const ACKNOWLEDGEMENT: &str = "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\
    \"params\":{\"notifications\":{\"toolsListChanged\":true}}}\r\n\r\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    #[serde(default = "names_one")]
    listen: String,
    /// The tasks that are looked for, with their numbers; null: the request is no subscription to tasks.
    #[serde(default, deserialize_with = "said")]
    sought: Option<Option<Vec<(usize, String)>>>,
    #[serde(default = "max_event_bytes")]
    max_event_bytes: usize,
    #[serde(default)]
    steps: Vec<Step>,
}

fn names_one() -> String {
    String::from_utf8(listen(&["$1".to_owned()])).unwrap()
}

fn max_event_bytes() -> usize {
    MAX_EVENT_BYTES
}

fn said<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(input: D) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    at: u64,
    #[serde(rename = "in")]
    input: Input,
    /// What the client is given; none where it takes nothing.
    out: Option<Vec<Given>>,
    /// Whether the host is woken.
    wakes: Option<bool>,
    takes: Option<bool>,
    over: Option<bool>,
    /// The tasks of which something may follow.
    open: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "said")]
    deadline: Option<Option<u64>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Input {
    Begins(String),
    Sdk(String),
    SdkEnds,
    Stands(usize, Option<Vec<WhatSpec>>),
    Drain,
    Look,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Given {
    Text(String),
    Tells { tells: (String, String, Option<String>) },
}

/// The text with the ids of the tasks in it.
fn filled(text: &str) -> String {
    (1..=9).fold(text.to_owned(), |text, number| text.replace(&format!("${number}"), &id(number)))
}

/// What follows this in the text; none where the text begins otherwise.
fn after<'a>(text: &'a str, given: &Given) -> Option<&'a str> {
    let Given::Tells { tells: (task, status, message) } = given else {
        let Given::Text(literal) = given else { return None };
        return text.strip_prefix(&filled(literal));
    };
    let (told, rest) = text.strip_prefix("data: ")?.split_once("\n\n")?;
    let told: Value = serde_json::from_str(told).ok()?;
    let params = &told["params"];
    let is_said = told["method"] == "notifications/tasks"
        && params["taskId"] == filled(task)
        && params["status"] == *status
        && params["statusMessage"].as_str() == message.as_deref()
        && params["_meta"] == json!({"io.modelcontextprotocol/subscriptionId": "s"});
    is_said.then_some(rest)
}

fn check(vector: Vector) -> Result<(), String> {
    let body = filled(&vector.listen);
    let read = Subscription::read(body.as_bytes(), Ms(0), vector.max_event_bytes).map(Result::unwrap);
    if let Some(want) = vector.sought {
        let want = want.map(|tasks| tasks.into_iter().map(|(number, task)| (number, filled(&task))).collect());
        let sought: Option<Vec<(usize, String)>> = read
            .as_ref()
            .map(|subscription| subscription.sought().map(|(number, id)| (number, id.as_str().to_owned())).collect());
        if sought != want {
            return Err(format!("it looks for {sought:?}"));
        }
    }
    let Some(mut subscription) = read else { return Ok(()) };
    for (at, step) in vector.steps.into_iter().enumerate() {
        let mut wakes = false;
        match step.input {
            Input::Begins(content_type) => {
                subscription.begin(Some(&content_type));
            }
            Input::Sdk(text) => subscription.push(text.as_bytes()),
            Input::SdkEnds => subscription.end(),
            Input::Stands(number, changes) => {
                let born = Born { created_at: UNIX_MS, retention_ms: RETENTION_MS };
                let changes = changes.map(|changes| changes.into_iter().map(|spec| what(spec, born)));
                let task = changes.map(|changes| task(&changes.collect::<Vec<_>>()));
                wakes = subscription.update(number, task.as_ref());
            }
            Input::Drain => subscription.drain(),
            Input::Look => {}
        }
        let differs = |what: &str, said: String| Err(format!("step {at}: {what}: {said}"));
        if let Some(want) = step.out {
            let given = text(&mut subscription, step.at);
            let rest = want.iter().try_fold(&*given, after);
            if rest != Some("") {
                return differs("it gives", given);
            }
        }
        if step.wakes.is_some_and(|want| want != wakes) {
            return differs("it wakes", wakes.to_string());
        }
        if step.takes.is_some_and(|want| want != subscription.takes()) {
            return differs("it takes", subscription.takes().to_string());
        }
        if step.over.is_some_and(|want| want != subscription.is_over()) {
            return differs("it is over", subscription.is_over().to_string());
        }
        let open: Vec<usize> = (0..9).filter(|number| !subscription.is_done(*number)).collect();
        if step.open.is_some_and(|want| want != open) {
            return differs("they are open", format!("{open:?}"));
        }
        let deadline = Some(subscription.deadline()).filter(|deadline| *deadline != Ms::NEVER).map(|at| at.0);
        if step.deadline.is_some_and(|want| want != deadline) {
            return differs("its deadline is", format!("{deadline:?}"));
        }
    }
    Ok(())
}

#[test]
fn t_24_t_25_o17_subscriptions() {
    let vectors = vectors::<Vector>(include_str!("../../vectors/task_subscriptions.json"));
    let checked = vectors.into_iter().map(|(name, vector)| (name, check(vector)));
    let failed: Vec<String> = checked.filter_map(|(name, is)| Some(format!("{name}: {}", is.err()?))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn id(number: u8) -> String {
    TaskId::new(&[number; TASK_ID_BYTES]).as_str().to_owned()
}

fn listen(tasks: &[String]) -> Vec<u8> {
    let params = json!({"notifications": {"toolsListChanged": true, "taskIds": tasks}});
    json!({"jsonrpc": "2.0", "id": "s", "method": "subscriptions/listen", "params": params}).to_string().into()
}

fn subscribed(tasks: &[String]) -> Subscription {
    Subscription::read(&listen(tasks), Ms(0), MAX_EVENT_BYTES).unwrap().unwrap()
}

/// A task, so many changes after it was made.
fn task(changes: &[What]) -> Task {
    let created = What::Created {
        limit_ms: None,
        retention_ms: RETENTION_MS,
        call: "{}".into(),
        headers: CallHeaders::default(),
    };
    let changes = std::iter::once(created).chain(changes.iter().cloned());
    let changes: Vec<Change> = (0..).zip(changes).map(|(at, what)| Change { at: UNIX_MS + at, what }).collect();
    Task::fold(&changes).unwrap().unwrap()
}

fn message(text: &str) -> What {
    What::Message(text.into())
}

/// A task that has its end behind these changes.
fn completed(changes: &[What]) -> Task {
    let mut task = task(changes);
    let end = End::Completed(r#"{ "content" : [ ] }"#.into());
    let change = task.ended(UNIX_MS + changes.len() as u64 + 1, end);
    task.apply(&change).unwrap();
    task
}

fn text(subscription: &mut Subscription, now: u64) -> String {
    let given = std::iter::from_fn(|| subscription.next(Ms(now), UNIX_MS));
    given.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
}

#[test]
fn i11_a_subscription_names_so_many_tasks_and_no_more() {
    let ids: Vec<String> = (0..=MAX_SUBSCRIBED_TASKS).map(|number| id(u8::try_from(number).unwrap())).collect();
    let refusal = Subscription::read(&listen(&ids), Ms(0), MAX_EVENT_BYTES).unwrap().unwrap_err();
    assert_eq!((refusal.status, refusal.code), (400, -32602));
    assert_eq!(refusal.request.unwrap().to_json(), "\"s\"");
    assert!(refusal.message.contains(" 64 "), "{}", refusal.message);
    subscribed(&ids[1..]);
}

/// The messages of a stream.
fn messages(stream: &str) -> Vec<Value> {
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(stream.as_bytes());
    let items = std::iter::from_fn(|| decoder.next().unwrap());
    items
        .filter_map(|item| if let Item::Event(event) = item { serde_json::from_str(&event.data).ok() } else { None })
        .collect()
}

#[test]
fn t_24_t_25_hold_however_streams_are_cut_and_tasks_change() {
    for seed in 0..1_000 * depth() {
        let mut dice = Dice::Seed(seed);
        // What the SDK sends, with the ends of lines that it may have.
        let line_end = ["\n", "\r\n", "\r"][dice.place(3)];
        let mut stream = ": ping\n\n".to_owned() + &ACKNOWLEDGEMENT.replace("\r\n", "\n");
        for number in 0..dice.below(6) {
            let size = if dice.one_in(5) { 2 * MAX_EVENT_BYTES } else { 10 };
            let params = json!({"number": number, "x": "x".repeat(size)});
            stream +=
                &format!("id: {number}\ndata: {}\n\n", json!({"jsonrpc": "2.0", "method": "m", "params": params}));
        }
        let stream = stream.replace('\n', line_end);
        let (mut rest, mut subscription) = (stream.as_bytes(), subscribed(&[id(1), id(2), id(3)]));
        // How often each task has changed; the third is not there.
        let (mut changes, mut sent) = ([0, 0], String::new());
        let ends = [1 + dice.place(8), 1 + dice.place(8)];
        let is_sought_late = dice.one_in(2);
        let look = |subscription: &mut Subscription, at: usize, changes: &mut [usize; 2]| {
            let steps = vec![message("at work"); changes[at].min(ends[at] - 1)];
            let stands = if changes[at] == ends[at] { completed(&steps) } else { task(&steps) };
            subscription.update(at, Some(&stands));
            changes[at] = (changes[at] + 1).min(ends[at]);
        };
        if !is_sought_late {
            for at in [0, 1] {
                look(&mut subscription, at, &mut changes);
            }
            subscription.update(2, None);
        }
        while !rest.is_empty() {
            match dice.place(4) {
                0 => look(&mut subscription, dice.place(2), &mut changes),
                1 => sent += &text(&mut subscription, 0),
                _ if subscription.takes() => {
                    let (chunk, left) = rest.split_at((1 + dice.place(40)).min(rest.len()));
                    subscription.push(chunk);
                    rest = left;
                }
                _ => {
                    for at in [0, 1] {
                        look(&mut subscription, at, &mut changes);
                    }
                    subscription.update(2, None);
                }
            }
            sent += &text(&mut subscription, 0);
        }
        subscription.update(2, None);
        for at in [0, 1].repeat(10) {
            look(&mut subscription, at, &mut changes);
        }
        sent += &text(&mut subscription, 0);
        let mut said = messages(&sent);
        let mut wanted = messages(&stream);
        wanted[0]["params"]["notifications"]["taskIds"] = json!([id(1), id(2)]);
        assert_eq!(said[0], wanted[0], "seed {seed}: {sent}");
        let told: Vec<Value> = said.extract_if(.., |message| message["method"] == "notifications/tasks").collect();
        assert_eq!(said, wanted, "seed {seed}: {sent}");
        for (at, end) in ends.into_iter().enumerate() {
            let of_task =
                told.iter().filter(|message| message["params"]["taskId"] == id(1 + u8::try_from(at).unwrap()));
            let times: Vec<String> =
                of_task.clone().map(|message| message["params"]["lastUpdatedAt"].to_string()).collect();
            assert!(times.is_sorted_by(|before, after| before < after), "seed {seed}: {times:?}");
            let statuses: Vec<&Value> = of_task.map(|message| &message["params"]["status"]).collect();
            let (last, before) = statuses.split_last().unwrap_or_else(|| panic!("seed {seed}: {end} {sent}"));
            assert!(
                *last == "completed" && before.iter().all(|status| *status == "working"),
                "seed {seed}: {statuses:?}"
            );
        }
    }
}
