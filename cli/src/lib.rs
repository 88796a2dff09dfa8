//! The command `tailrope` of every package: what it is asked, what it prints, and its exit status.
//!
//! What it knows of servers is `tailrope-probe`'s, and what it knows of stores `tailrope-stores`'. Neither prints anything.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod demo;
mod doctor;
mod living;
mod probe;
mod sessions;
mod show;
mod store;
mod table;
mod terminal;
mod words;

use terminal::Terminal;
use words::{COMMANDS, Command, GENERAL, nearest};

/// The exit status where nothing is wrong.
const FINE: u8 = 0;
/// Something is wrong, or is not there.
const AMISS: u8 = 1;
/// Wrong usage, or there was nothing to look at.
const MISUSE: u8 = 2;

/// Runs the command with the words behind its name, and prints what it has to say. Its exit status.
pub fn run(given: &[String]) -> u8 {
    let mut terminal = Terminal::new();
    let asks_for_help = given.iter().any(|word| word == "--help" || word == "-h");
    let Some((first, rest)) = given.split_first() else { return misuse(&mut terminal, "give a command", GENERAL) };
    match COMMANDS.iter().find(|command| command.name == first) {
        Some(Command { usage, .. }) if asks_for_help => {
            terminal.print(usage.trim_end());
            FINE
        }
        Some(Command { run, usage, .. }) => match run(rest, &mut terminal) {
            Ok(status) => status,
            Err(what) => misuse(&mut terminal, &what, usage),
        },
        None if asks_for_help => {
            terminal.print(GENERAL.trim_end());
            FINE
        }
        None if first == "--version" || first == "-V" => {
            terminal.print(concat!("tailrope ", env!("CARGO_PKG_VERSION")));
            FINE
        }
        None => misuse(&mut terminal, &unknown(first), GENERAL),
    }
}

fn unknown(word: &str) -> String {
    let (kind, names): (_, Vec<&str>) = match word.starts_with('-') {
        true => ("option", vec!["--help", "--version"]),
        false => ("command", COMMANDS.iter().map(|command| command.name).collect()),
    };
    match nearest(word, &names) {
        Some(name) => format!("there is no {kind} {word}: {name} is probably meant"),
        None => format!("there is no {kind} {word}: there are {}", names.join(", ")),
    }
}

fn misuse(terminal: &mut Terminal, what: &str, usage: &str) -> u8 {
    terminal.complain(&format!("tailrope: {what}\n\n{}", usage.trim_end()));
    MISUSE
}
