//! The commands, and how each is used: the texts are in `words/`.

use crate::terminal::Terminal;
use crate::{demo, doctor, probe, sessions, show};

/// What is said of the command as a whole.
pub(crate) const GENERAL: &str = include_str!("../words/tailrope.txt");

pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    /// Its exit status, or what is wrong with the words that it was given.
    pub(crate) run: fn(&[String], &mut Terminal) -> Result<u8, String>,
}

pub(crate) const COMMANDS: &[Command] = &[
    Command { name: "probe", usage: include_str!("../words/probe.txt"), run: probe::run },
    Command { name: "doctor", usage: include_str!("../words/doctor.txt"), run: doctor::run },
    Command { name: "sessions", usage: include_str!("../words/sessions.txt"), run: sessions::sessions },
    Command { name: "show", usage: include_str!("../words/show.txt"), run: show::show },
    Command { name: "end", usage: include_str!("../words/end.txt"), run: show::end },
    Command { name: "demo", usage: include_str!("../words/demo.txt"), run: demo::run },
    Command { name: "tasks", usage: include_str!("../words/tasks.txt"), run: sessions::tasks },
];

/// The name that was probably meant, if one is near.
pub(crate) fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let (distance, name) = names.iter().map(|name| (distance(word, name), *name)).min()?;
    (distance <= 2.max(name.len() / 3)).then_some(name)
}

/// How many letters have to be put in, left out or changed.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.chars().enumerate() {
        let mut next = vec![row + 1];
        for (column, also) in other.iter().enumerate() {
            let changed = last[column] + usize::from(letter != *also);
            next.push(changed.min(last[column + 1] + 1).min(next[column] + 1));
        }
        last = next;
    }
    last.last().copied().unwrap_or_default()
}
