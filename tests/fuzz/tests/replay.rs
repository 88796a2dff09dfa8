//! Every target over its seeds: the ones of the vectors, what fuzzing has found, and seeded mutations of both.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use tailrope_fuzz::{Mutator, TARGETS, Target, of_vectors, target};

/// What was found, and what is worth keeping: one file each.
fn kept(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let Ok(files) = fs::read_dir(&folder) else { return Vec::new() };
    let mut kept: Vec<_> = files
        .map(|file| {
            let path = file.expect("the folder is readable").path();
            (path.display().to_string(), fs::read(&path).expect("a seed is readable"))
        })
        .collect();
    kept.sort();
    kept
}

fn replay(name: &str) {
    let target = target(name);
    let mut seeds = of_vectors(name);
    assert!(!seeds.is_empty(), "the vectors have something for {name}");
    for seed in &seeds {
        (target.run)(seed);
    }
    for (path, seed) in kept(&target) {
        assert!(catch_unwind(|| (target.run)(&seed)).is_ok(), "{path}");
        seeds.push(seed);
    }
    // TAILROPE_FUZZ_MUTATIONS tries so many of each, TAILROPE_DEPTH so many times as many.
    let depth: u64 = std::env::var("TAILROPE_DEPTH").map_or(1, |depth| depth.parse().expect("a number"));
    let mutations = std::env::var("TAILROPE_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok());
    let mut mutator = Mutator::new(1, 4 << 10);
    for _ in 0..mutations.unwrap_or(target.mutations * depth) {
        let input = mutator.mutate(&seeds);
        let ran = catch_unwind(|| (target.run)(&input));
        assert!(ran.is_ok(), "keep this as a seed of {name}: {}", hex(&input));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_target_is_replayed_below() {
    let replayed =
        ["sse", "event_id", "jsonrpc", "admission", "records", "stream", "client", "engine", "elsewhere", "task"];
    assert_eq!(TARGETS.map(|target| target.name), replayed);
}

#[test]
fn server_sent_events() {
    replay("sse");
}

#[test]
fn event_ids() {
    replay("event_id");
}

#[test]
fn json_rpc_envelopes() {
    replay("jsonrpc");
}

#[test]
fn admission_of_requests() {
    replay("admission");
}

#[test]
fn records_of_stores() {
    replay("records");
}

#[test]
fn i2_i3_i6_i13_the_stream_machine() {
    replay("stream");
}

#[test]
fn i3_the_client() {
    replay("client");
}

#[test]
fn i1_i2_i3_i13_the_engine() {
    replay("engine");
}

#[test]
fn the_engine_with_a_store_that_says_anything() {
    replay("elsewhere");
}

#[test]
fn t_16_t_20_calls_that_may_become_tasks() {
    replay("task");
}
