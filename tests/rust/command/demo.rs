//! `tailrope demo`: a call over connections that keep ending, which comes exactly once.

use super::running::run;

#[test]
fn the_demo_shows_closes_a_cut_and_resumes_and_that_nothing_is_lost() {
    let (status, out, err) = run(&["demo"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let count = |text| out.lines().filter(|line| line.contains(text)).count();
    let shown =
        ["closes the connection, and works on", "x the network cuts", "comes back for the rest", "has the result"];
    assert_eq!(shown.map(count), [3, 1, 4, 1], "{out}");
    let end = "\n200 events and 1 result over 5 connections: 0 lost, 0 repeated\nthe server closed 3 of them, the network 1\n";
    assert!(out.ends_with(end), "{out}");
}

#[test]
fn the_demo_takes_no_words() {
    let (status, _, err) = run(&["demo", "now"]);
    assert_eq!((status, err.lines().next()), (2, Some("tailrope: it takes no now")));
}
