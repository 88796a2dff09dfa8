//! No command prints a password, whatever is wrong with the address that it is in.

use super::running::run;

const NAME: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn no_password_is_printed() {
    let redis = std::env::var("TAILROPE_TEST_REDIS").expect("tests/services/with redis postgres -- sets it");
    let postgres = std::env::var("TAILROPE_TEST_POSTGRES").expect("tests/services/with redis postgres -- sets it");
    let place = |address: &str| {
        let (_, rest) = address.split_once("://").expect("a place");
        rest.rsplit_once('@').map_or(rest, |(_, place)| place).to_owned()
    };
    let addresses = [
        format!("redis://me:hunter2@{}", place(&redis)),
        format!("redis://me:hunter2@{}?timeout_ms=hunter2", place(&redis)),
        format!("postgres://me:hunter2@{}", place(&postgres)),
        format!("postgres://me@{}?password=hunter2", place(&postgres)),
        "redis://me:hunter2@127.0.0.1:1".to_owned(),
        "redis+cluster://me:hunter2@127.0.0.1:1".to_owned(),
        "postgres://me:hunter2@127.0.0.1:1/events?connect_timeout_ms=100".to_owned(),
        "postgres://me:hunter2@127.0.0.1:1/events?nothing=hunter2".to_owned(),
        "postgres://me:hun?ter2hunter2@127.0.0.1/events".to_owned(),
        "rediss://me:hunter2@127.0.0.1:1?ca=/hunter2".to_owned(),
        "sqlite:/nowhere/events.db?key=hunter2".to_owned(),
        "mysql://me:hunter2@127.0.0.1".to_owned(),
        "me:hunter2@127.0.0.1".to_owned(),
    ];
    for address in &addresses {
        for words in [
            &["doctor", address][..],
            &["doctor", address, "--json"],
            &["sessions", address],
            &["tasks", address],
            &["show", address, NAME],
            &["end", address, NAME, "--yes"],
        ] {
            let (status, out, err) = run(words);
            assert_ne!(status, 0, "{words:?}");
            assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{words:?}: {out}{err}");
        }
    }
}
