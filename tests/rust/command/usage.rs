//! What every command has.

use super::running::run;

const GENERAL: &str = include_str!("../../../cli/words/tailrope.txt");

#[test]
fn help_and_the_version_are_told() {
    let version = format!("tailrope {}\n", env!("CARGO_PKG_VERSION"));
    for (word, told) in [("--help", GENERAL), ("-h", GENERAL), ("--version", &version), ("-V", &version)] {
        assert_eq!(run(&[word]), (0, told.to_owned(), String::new()), "{word}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_the_name_that_was_probably_meant() {
    for (words, told) in [
        (&[][..], "give a command"),
        (&["prob"], "there is no command prob: probe is probably meant"),
        (&["--verison"], "there is no option --verison: --version is probably meant"),
    ] {
        assert_eq!(run(words), (2, String::new(), format!("tailrope: {told}\n\n{GENERAL}")), "{words:?}");
    }
    let (status, out, err) = run(&["frobnicate"]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.starts_with("tailrope: there is no command frobnicate: there are probe"), "{err}");
    let (status, _, err) = run(&["probe", "http://127.0.0.1:1/mcp", "--jsno"]);
    assert!(status == 2 && err.starts_with("tailrope: no option --jsno: --json is probably meant\n"), "{err}");
}
