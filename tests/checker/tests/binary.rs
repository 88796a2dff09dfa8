//! The binary on the lines of a history.

use std::io::Write;
use std::process::{Command, Stdio};

fn check(input: &str) -> (i32, String, String) {
    check_with(&["-"], input)
}

fn check_with(arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tailrope-check"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

const GOOD: &str = r#"
{"fact":"stream","session":"s","stream":"a","request":1,"revision":"2025-11-25"}
{"fact":"open","connection":"c1","session":"s","stream":"a","cursor":null,"method":"POST"}
{"fact":"head","connection":"c1","status":200,"headers":{"content-type":"text/event-stream"}}
{"at":5,"fact":"emit","session":"s","stream":"a","n":"end"}
{"fact":"bytes","connection":"c1","data":"aWQ6IHAKcmV0cnk6IDMwMDAKZGF0YTogCgo="}
{"fact":"bytes","connection":"c1","text":"id: e\ndata: {\"id\":1,\"result\":\"[[s/a/end]]\"}\n"}
{"fact":"note","says":"a word"}
{"fact":"bytes","connection":"c1","text":"\n"}
{"fact":"closed","connection":"c1","by":"server","clean":true}
{"fact":"done","session":"s","stream":"a"}
"#;

#[test]
fn a_good_history_ends_with_0_and_a_summary() {
    let (code, out, _) = check(GOOD);
    assert_eq!(code, 0, "{out}");
    let summary: serde_json::Value = serde_json::from_str(out.trim()).expect("one line of JSON");
    let summary = &summary["summary"];
    assert_eq!((summary["streams"].as_u64(), summary["connections"].as_u64()), (Some(1), Some(1)));
    assert_eq!((summary["events"].as_u64(), summary["results"].as_u64()), (Some(1), Some(1)));
    assert_eq!(summary["violations"], serde_json::json!({}));
}

#[test]
fn a_violation_is_a_line_and_ends_with_1() {
    let (code, out, _) = check(&GOOD.replace(r#""n":"end""#, r#""n":1"#));
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(code, 1, "{out}");
    assert_eq!((&lines[0]["invariant"], &lines[0]["event"]), (&"I1".into(), &"[[s/a/end]]".into()));
    assert_eq!((&lines[0]["connection"], &lines[0]["stream"]), (&"c1".into(), &"a".into()));
    assert_eq!(lines[1]["summary"]["violations"]["I1"], 1);
}

#[test]
fn as_many_violations_are_told_as_asked_for_and_all_counted() {
    let hung = r#"{"fact":"hung","session":"s","says":"x"}"#.to_owned() + "\n";
    for (arguments, told) in [(&["-"][..], 1_000), (&["--tell", "1200", "-"], 1_200), (&["--tell", "0", "-"], 0)] {
        let (code, out, _) = check_with(arguments, &hung.repeat(1_500));
        assert_eq!((code, out.lines().count()), (1, told + 1));
        assert!(out.contains(r#""violations":{"I13":1500}"#));
    }
}

#[test]
fn what_cannot_be_read_ends_with_2_and_the_line() {
    for (bad, word) in [("{", "line 2: "), (r#"{"fact":"unheard"}"#, "unheard"), ("[1]", "line 2: ")] {
        let (code, out, error) = check(&format!("\n{bad}\n"));
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        assert!(error.contains(word), "{error}");
    }
    let (code, _, error) = check(&GOOD.replace("\"c1\",\"status\"", "\"c2\",\"status\""));
    assert!(code == 2 && error.contains("line 4: connection c2 was not opened"), "{error}");
}
