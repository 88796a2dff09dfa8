//! What a subscriber to tasks is sent, byte by byte.

use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::protocol::{Decoder, Item};
use tailrope_core::task::{
    CallHeaders, Change, End, MAX_SUBSCRIBED_TASKS, Subscription, TASK_ID_BYTES, Task, TaskId, What,
};

use crate::kit::dice::{Dice, depth};

const UNIX_MS: u64 = 1_795_832_278_000;
const MAX_EVENT_BYTES: usize = 1_000;
const ACKNOWLEDGEMENT: &str = "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\
    \"params\":{\"notifications\":{\"toolsListChanged\":true}}}\r\n\r\n";
const BARE: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{}}}\n\n";
const LAST: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":\"s\",\"result\":{}}\n\n";
const EVENT: &str = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";

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
    let created =
        What::Created { limit_ms: None, retention_ms: 60_000, call: "{}".into(), headers: CallHeaders::default() };
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

/// What is given, as the messages in it.
fn given(subscription: &mut Subscription) -> Vec<Value> {
    let text = text(subscription, 0);
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn opened() -> Subscription {
    let mut subscription = subscribed(&[id(1)]);
    subscription.push(ACKNOWLEDGEMENT.as_bytes());
    subscription.found(0, Some(&task(&[])));
    assert_eq!(
        given(&mut subscription)[0]["params"]["notifications"],
        json!({"taskIds": [id(1)], "toolsListChanged": true})
    );
    subscription
}

#[test]
fn t_25_the_acknowledgement_comes_first_and_names_the_tasks_that_are_there() {
    let mut subscription = subscribed(&[id(1), "unknown".into(), id(2), id(1), id(3)]);
    assert_eq!(
        subscription.sought().map(|(number, id)| (number, id.as_str().to_owned())).collect::<Vec<_>>(),
        [(0, id(1)), (2, id(2)), (3, id(3))]
    );
    subscription.found(0, Some(&completed(&[])));
    subscription.found(2, None);
    assert_eq!(text(&mut subscription, 0), "");
    // A comment is no message.
    subscription.push(b": ping\r\n\r\n");
    assert_eq!(text(&mut subscription, 0), ": ping\r\n\r\n");
    assert!(subscription.takes());
    subscription.push(&ACKNOWLEDGEMENT.as_bytes()[..30]);
    subscription.push([&ACKNOWLEDGEMENT[30..], EVENT].concat().as_bytes());
    assert_eq!(text(&mut subscription, 0), "");
    assert!(!subscription.takes(), "it waits for a task, and holds no more than it has");
    subscription.found(3, Some(&task(&[])));
    let written = text(&mut subscription, 0);
    let expected = ACKNOWLEDGEMENT
        .replace("\"toolsL", &format!("\"taskIds\":[\"{}\",\"{}\"],\"toolsL", id(1), id(3)))
        .replace("\r\n", "\n");
    assert!(written.starts_with(&(expected + EVENT + "data: {")), "{written}");
    assert!(subscription.takes());
}

#[test]
fn t_24_a_task_that_has_its_end_or_waits_is_told_at_once_and_a_call_that_runs_is_not() {
    let mut subscription = subscribed(&[id(1), id(2), id(3)]);
    subscription.push(ACKNOWLEDGEMENT.as_bytes());
    subscription.found(0, Some(&task(&[message("at work")])));
    subscription.found(1, Some(&completed(&[])));
    subscription.found(2, Some(&task(&[What::Asked { ask: 1, request: r#"{"method":"a"}"#.into() }])));
    let told = given(&mut subscription);
    assert_eq!(told.len(), 3);
    let params = &told[1]["params"];
    assert_eq!(told[1]["method"], "notifications/tasks");
    assert_eq!((&params["taskId"], &params["status"]), (&json!(id(2)), &json!("completed")));
    assert_eq!((&params["result"], params.get("resultType")), (&json!({"content": []}), None));
    assert_eq!(params["_meta"], json!({"io.modelcontextprotocol/subscriptionId": "s"}));
    assert_eq!(told[2]["params"]["status"], "input_required");
    assert_eq!(given(&mut subscription), Vec::<Value>::new());
}

#[test]
fn t_24_a_result_is_sent_as_it_was_stored() {
    let mut subscription = opened();
    subscription.found(0, Some(&completed(&[])));
    assert!(text(&mut subscription, 0).contains(r#""result":{ "content" : [ ] },"_meta":"#));
}

#[test]
fn t_24_each_change_is_told_until_the_end_and_only_the_newest_waits() {
    let mut subscription = opened();
    assert!(subscription.found(0, Some(&task(&[message("one")]))));
    assert_eq!(given(&mut subscription)[0]["params"]["statusMessage"], "one");
    assert!(!subscription.found(0, Some(&task(&[message("one")]))), "it is known");
    assert!(subscription.found(0, Some(&task(&[message("one"), message("two"), message("three")]))));
    assert!(!subscription.found(0, Some(&task(&[message("one"), message("two")]))), "it is older than what waits");
    let told = given(&mut subscription);
    assert_eq!((told.len(), &told[0]["params"]["statusMessage"]), (1, &json!("three")));
    assert!(subscription.found(0, Some(&completed(&[message("one"), message("two"), message("three")]))));
    assert!(!subscription.is_done(0));
    assert_eq!(given(&mut subscription)[0]["params"]["status"], "completed");
    assert!(subscription.is_done(0));
    assert!(!subscription.found(0, Some(&completed(&[message("a"), message("b"), message("c"), message("d")]))));
    assert_eq!(given(&mut subscription), Vec::<Value>::new());
}

#[test]
fn t_24_nothing_is_sent_inside_an_event_of_the_sdk() {
    let mut subscription = opened();
    for cut in 1..EVENT.len() {
        subscription.push(&EVENT.as_bytes()[..cut]);
        let step = message(&format!("step {cut}"));
        let changes: Vec<What> = vec![step; cut];
        subscription.found(0, Some(&task(&changes)));
        let before = text(&mut subscription, 0);
        assert!(before.starts_with("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks\""), "{before}");
        subscription.push(&EVENT.as_bytes()[cut..]);
        assert_eq!(text(&mut subscription, 0), EVENT);
    }
    // One that is longer than events may be is passed on as it comes.
    let long = format!("data: {}\n\n", "x".repeat(3 * MAX_EVENT_BYTES));
    let (first, rest) = long.split_at(2 * MAX_EVENT_BYTES);
    subscription.push(first.as_bytes());
    subscription.found(0, Some(&task(&vec![message("last"); 1_000])));
    assert_eq!(text(&mut subscription, 0), first);
    subscription.push(rest.as_bytes());
    let written = text(&mut subscription, 0);
    assert!(written.starts_with(&format!("{rest}data: {{")), "{written}");
}

#[test]
fn t_24_what_the_sdk_answers_that_is_no_acknowledgement_is_passed_on() {
    let refusal = "data: {\"jsonrpc\":\"2.0\",\"id\":\"s\",\"error\":{\"code\":-32603,\"message\":\"full\"}}\r\n\r\n";
    for answer in [refusal, "data: {}\n\ndata: {}\n\n", "data: {\"params\"", ""] {
        let mut subscription = subscribed(&[id(1)]);
        subscription.found(0, Some(&completed(&[])));
        subscription.push(answer.as_bytes());
        subscription.end();
        assert_eq!(text(&mut subscription, 0), answer);
        assert!(subscription.is_over(), "{answer}");
    }
}

#[test]
fn an_sdk_that_has_nothing_to_tell_does_not_end_the_subscription_to_tasks() {
    let mut subscription = subscribed(&[id(1)]);
    subscription.found(0, Some(&task(&[])));
    subscription.push([BARE, LAST].concat().as_bytes());
    subscription.end();
    assert_eq!(given(&mut subscription)[0]["params"]["notifications"], json!({"taskIds": [id(1)]}));
    assert!(!subscription.is_over());
    // Nobody else keeps it alive.
    assert_eq!(subscription.deadline(), Ms(15_000));
    assert_eq!(text(&mut subscription, 14_999), "");
    assert_eq!(text(&mut subscription, 15_000), ": keep-alive\n\n");
    assert_eq!(subscription.deadline(), Ms(30_000));
    subscription.found(0, Some(&completed(&[])));
    let end = text(&mut subscription, 20_000);
    assert!(end.contains("\"completed\"") && end.ends_with(LAST), "{end}");
    assert!(subscription.is_over());
}

#[test]
fn a_subscription_ends_with_the_stream_of_the_sdk() {
    let mut subscription = opened();
    subscription.push(LAST.as_bytes());
    subscription.found(0, Some(&task(&[message("one")])));
    subscription.end();
    let end = text(&mut subscription, 0);
    assert!(end.starts_with("data: {") && end.ends_with(LAST), "{end}");
    assert!(subscription.is_over());
    // And there is one end, also where both stop.
    for drains_first in [true, false] {
        let mut subscription = opened();
        if drains_first {
            subscription.drain();
        }
        subscription.push(LAST.as_bytes());
        subscription.drain();
        assert_eq!(text(&mut subscription, 0), LAST);
        assert!(subscription.is_over());
    }
    // One that agreed to nothing, and to no task.
    let mut subscription = subscribed(&[id(1)]);
    subscription.found(0, None);
    subscription.push([BARE, LAST].concat().as_bytes());
    subscription.end();
    assert!(text(&mut subscription, 0).ends_with(LAST));
    assert!(subscription.is_over());
}

#[test]
fn o17_a_drain_ends_a_subscription_once_it_is_acknowledged() {
    let mut subscription = subscribed(&[id(1)]);
    subscription.drain();
    assert_eq!(text(&mut subscription, 0), "");
    subscription.push(ACKNOWLEDGEMENT.as_bytes());
    subscription.found(0, Some(&completed(&[])));
    let told = given(&mut subscription);
    assert_eq!(told[1]["params"]["status"], "completed");
    let meta = json!({"io.modelcontextprotocol/subscriptionId": "s"});
    assert_eq!(told[2], json!({"jsonrpc": "2.0", "id": "s", "result": {"resultType": "complete", "_meta": meta}}));
    assert!(subscription.is_over());
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
            subscription.found(at, Some(&stands));
            changes[at] = (changes[at] + 1).min(ends[at]);
        };
        if !is_sought_late {
            for at in [0, 1] {
                look(&mut subscription, at, &mut changes);
            }
            subscription.found(2, None);
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
                    subscription.found(2, None);
                }
            }
            sent += &text(&mut subscription, 0);
        }
        subscription.found(2, None);
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
