//! Seeds out of `tests/vectors`: what the rules are shown with is where mutations begin.

use serde_json::Value;

const SSE: &str = include_str!("../../vectors/sse.json");
const EVENT_ID: &str = include_str!("../../vectors/event_id.json");
const JSONRPC: &str = include_str!("../../vectors/jsonrpc.json");
const ADMISSION: &str = include_str!("../../vectors/admission.json");
const TASK_DECLARATION: &str = include_str!("../../vectors/task_declaration.json");
const TASK_REQUESTS: &str = include_str!("../../vectors/task_requests.json");
const TASK_VIEWS: &str = include_str!("../../vectors/task_views.json");
const CLIENT: &str = include_str!("../../vectors/client.json");

/// The seeds of a target. Schedules have none in the vectors: they begin with made choices.
pub fn of_vectors(target: &str) -> Vec<Vec<u8>> {
    match target {
        "sse" => sse(),
        "event_id" => event_id(),
        "jsonrpc" => jsonrpc(),
        "admission" => admission(),
        "records" => records(),
        "client" => client(),
        "task" => task(),
        _ => choices(),
    }
}

fn vectors(file: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(file).expect("the vectors are JSON");
    file["vectors"].as_array().expect("a list of vectors").clone()
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16));
    digits.collect::<Result<_, _>>().expect("two digits a byte")
}

/// A length before bytes, as targets read them.
fn counted(bytes: &[u8]) -> Vec<u8> {
    let count = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    [&[count], &bytes[..usize::from(count)]].concat()
}

/// Choices that are neither all the same nor in step with anything.
fn choices() -> Vec<Vec<u8>> {
    let one = |seed: u32, length: usize| {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    };
    (0..48).map(|seed| one(seed, 20 + 20 * (seed as usize % 24))).collect()
}

fn sse() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for vector in vectors(SSE) {
        let given = &vector["given"];
        if let Some(chunks) = given["read"]["chunks"].as_array() {
            let bytes: Vec<u8> = chunks
                .iter()
                .flat_map(|chunk| match chunk {
                    Value::String(text) => text.clone().into_bytes(),
                    chunk => unhex(text(chunk, "hex").unwrap_or_default()),
                })
                .collect();
            seeds.push([&[0, 1, 0, 5], &bytes[..]].concat());
            seeds.push([&[1, 0, 16], &bytes[..]].concat());
        } else if let Some(written) = text(&vector["want"], "text") {
            seeds.push([&[0, 2, 0, 3, 0, 9], written.as_bytes()].concat());
        }
        for (kind, name) in [(0, "message"), (1, "anonymous")] {
            if let Some(payload) = text(&given["write"][name], "payload") {
                let id = text(&given["write"][name], "id").unwrap_or("a");
                let parts =
                    [&[2, 0, kind], &counted(id.as_bytes())[..], &[0, 0, 11, 184], &counted(payload.as_bytes()), &[1]];
                seeds.push(parts.concat());
            }
        }
    }
    seeds
}

fn event_id() -> Vec<Vec<u8>> {
    let texts = vectors(EVENT_ID);
    let texts =
        texts.iter().filter_map(|vector| text(&vector["want"], "text").or_else(|| text(&vector["given"], "text")));
    let mut seeds: Vec<Vec<u8>> = texts.map(|text| [b"\0", text.as_bytes()].concat()).collect();
    for kind in 0..16 {
        seeds.push(
            [&[1][..], &[7; 12], &[kind], &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, 1, 2, 3, 4, 20, b'A'], b"42"].concat(),
        );
    }
    seeds
}

fn jsonrpc() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for vector in vectors(JSONRPC) {
        let given = &vector["given"];
        for name in ["body", "initialize_result"] {
            if let Some(body) = text(given, name) {
                seeds.push([b"\0", body.as_bytes()].concat());
            }
        }
        if let Some(hex) = text(given, "body_hex") {
            seeds.push([&[0][..], &unhex(hex)].concat());
        }
        if let Some(message) = text(&given["write_error"], "message") {
            seeds.push([&[3, 1, 255, 255, 128, 100, 1, b'7'][..], &counted(message.as_bytes())].concat());
        }
    }
    for token in ["1", "-0", "-7", "\"a\\u00e9\"", "123456789012345678901234567890", "[1,\"1\"]"] {
        seeds.push([b"\x02", token.as_bytes()].concat());
    }
    seeds
}

fn admission() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for vector in vectors(ADMISSION) {
        let given = &vector["given"];
        let is_python = given["dialects"][0].as_str().is_some_and(|name| name.contains("python"));
        let mut how = if is_python { 0 } else { 2 | 16 };
        how |= if given["opened"] == false { 4 } else { 0 } | if given["json_response"] == true { 8 } else { 0 };
        let names = ["method", "accept", "content_type", "protocol_version", "session_id", "last_event_id"];
        let (mut present, mut lines) = (0, String::new());
        for (at, name) in names.into_iter().enumerate() {
            if let Some(line) = text(given, name) {
                present |= 1 << at;
                lines.push_str(&line.replace('\n', " "));
            }
            lines.push('\n');
        }
        let body = text(given, "body").map_or_else(|| unhex(text(given, "body_hex").unwrap_or_default()), Into::into);
        seeds.push([&[how, present], lines.as_bytes(), &body].concat());
    }
    seeds
}

fn records() -> Vec<Vec<u8>> {
    let nonce = "0".repeat(24);
    let page = "*6\r\n:0\r\n:2\r\n:1\r\n$8\r\n0000000a\r\n*4\r\n:1\r\n$30\r\n00000000aid: a\ndata: {}\n\n12345678\r\n:2\r\n$9\r\n30000000b\r\n";
    let record =
        "*11\r\n:0\r\n:2\r\n:1\r\n$16\r\n00000000000000ff\r\n$1\r\no\r\n:1\r\n$-1\r\n$3\r\n[1]\r\n:1\r\n:50\r\n";
    let session =
        format!("*8\r\n:0\r\n:5\r\n$10\r\n2025-11-25\r\n$3\r\n=me\r\n:3000\r\n:7\r\n$24\r\n{nonce}\r\n$1\r\no\r\n");
    let replies = [
        format!("*4\r\n:0\r\n*3\r\n$24\r\n{nonce}\r\n:1\r\n:2\r\n*2\r\n{page}{session}$-1\r\n"),
        format!("*4\r\n:1\r\n*0\r\n*1\r\n{record}$-1\r\n"),
        "*4\r\n:1\r\n*0\r\n*3\r\n*1\r\n:1\r\n*2\r\n:2\r\n$1\r\no\r\n*2\r\n:9\r\n$3\r\nOOM\r\n$1\r\nx\r\n".to_owned(),
        "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\n?\r\n:6379\r\n".to_owned(),
    ];
    let mut seeds: Vec<Vec<u8>> = replies.iter().map(|reply| [b"\0", reply.as_bytes()].concat()).collect();
    for damage in [&[0][..], &[1, 0, 30, 1], &[2, 60], &[3, 0], &[4, 2, b'a', b'b']] {
        let parts: Vec<Vec<u8>> =
            ["[1]", "{}", "me", "s", "one", "two"].iter().map(|part| counted(part.as_bytes())).collect();
        seeds.push([&[1], damage, &[9; 12], &parts.concat()].concat());
    }
    let tokens = [
        r#"{"tailrope":1,"lastEventId":"t","requests":[]}"#,
        r#"{"tailrope":1,"lastEventId":"t","requests":[],"standalone":true}"#,
        r#"{"tailrope":1,"lastEventId":"t","retryMs":40,"requests":[3,"a"],"sessionId":"s","protocolVersion":"2025-11-25"}"#,
    ];
    seeds.extend(tokens.map(|token| [b"\x02", token.as_bytes()].concat()));
    let addresses = [
        "redis://me:p%40ss@host:1/3?namespace=a:b&timeout_ms=70",
        "redis+cluster://:pw@a,[::1]:7,c:8",
        "rediss+sentinel://s1,s2:5/main/2?sentinel_password=x",
        "postgres://me:p%40ss@host:5433/db?namespace=logs&connections=2&listen=postgres://me@direct/db?sslmode=disable",
        "sqlite:///a/b.db",
    ];
    seeds.extend(addresses.map(|address| [b"\x03", address.as_bytes()].concat()));
    for (at, part) in
        [":6379/0?namespace=a", "/main", "?secret=1", "#", "%4", "/db?listen=postgres://h/"].into_iter().enumerate()
    {
        for kind in 0..7 {
            seeds.push([&[4, kind, u8::try_from(at & 3).unwrap_or(0)], part.as_bytes()].concat());
        }
    }
    let told = [
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"a"}}"#,
    ];
    let told = told.iter().flat_map(|text| [&[0, 0, 0, text.len() as u8], text.as_bytes()].concat());
    seeds.push([5, 1].into_iter().chain(told).collect());
    seeds
}

/// The steps of a vector as the inputs of the target; and choices for the server that keeps a log.
fn client() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = choices().iter().map(|choices| [&[0], &choices[..]].concat()).collect();
    for vector in vectors(CLIENT) {
        let stream = &vector["stream"];
        let mut seed = match (stream.as_str(), text(stream, "saved"), text(stream, "cursor")) {
            (Some(_), ..) => vec![1, 1],
            (_, Some(saved), _) => [&[1, 3], &counted(saved.as_bytes())[..]].concat(),
            (_, _, Some(cursor)) => [&[1, 2], &counted(cursor.as_bytes())[..]].concat(),
            _ => vec![1, 0],
        };
        for step in vector["steps"].as_array().into_iter().flatten() {
            let input = &step["in"];
            let kind = match input.as_str() {
                Some("end") => 2,
                Some("broken") => 3,
                Some("tick") => 6,
                Some("abort") => 0x3F,
                _ if input.get("head").is_some() => 4,
                _ if input.get("cancelled").is_some() => 5,
                _ => 0,
            };
            seed.extend([1, kind, 0, 0, 0, 0]);
            if let Some(text) = text(input, "text") {
                seed.extend(counted(text.as_bytes()));
            } else if kind == 0 {
                seed.push(0);
            } else if kind == 4 {
                let status = input["head"]["status"].as_u64().unwrap_or(200);
                let known = [200, 0, 0, 0, 204, 400, 401, 403, 404, 405, 408, 409, 429, 500, 503];
                let at = known.iter().position(|known| *known == status).unwrap_or(0);
                seed.extend([u8::try_from(at).unwrap_or(0), 0]);
            } else if kind == 5 {
                seed.push(u8::try_from(input["cancelled"].as_u64().unwrap_or(1)).unwrap_or(1));
            }
        }
        seeds.push(seed);
    }
    seeds
}

fn task() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = choices().into_iter().map(|choices| [&[0][..], &choices].concat()).collect();
    for vector in vectors(TASK_REQUESTS) {
        let body = text(&vector["given"], "body").unwrap_or_default();
        let body = body.replace("$TASK", "tailrope-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").replace("$META", "{}");
        seeds.push([b"\x01tasks/get\n\n2026-07-28\n", body.as_bytes()].concat());
    }
    for vector in vectors(TASK_DECLARATION) {
        let texts = ["params", "discover", "listen"].map(|name| text(&vector["given"], name));
        seeds.extend(texts.into_iter().flatten().map(|text| [b"\x02", text.as_bytes()].concat()));
    }
    for vector in vectors(TASK_VIEWS) {
        let changes = vector["changes"].as_array().expect("a list of changes");
        let records = changes.iter().flat_map(|change| {
            let record = unhex(change[2].as_str().unwrap_or_default());
            counted(&[&record[..2], &[0; 8], &record[2..]].concat())
        });
        seeds.push([3].into_iter().chain(records).collect());
    }
    seeds
}
