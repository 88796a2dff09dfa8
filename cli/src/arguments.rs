//! The words behind a command: options with and without values, and the rest.

use crate::words::nearest;

/// What a command takes.
pub(crate) struct Takes<'a> {
    pub(crate) flags: &'a [&'a str],
    pub(crate) values: &'a [&'a str],
}

/// What it was given.
#[derive(Debug, Default)]
pub(crate) struct Given<'a> {
    pub(crate) rest: Vec<&'a str>,
    flags: Vec<&'a str>,
    values: Vec<(&'a str, &'a str)>,
}

impl<'a> Given<'a> {
    /// Reads the words.
    ///
    /// # Errors
    /// One is no option, or lacks its value.
    pub(crate) fn read(words: &'a [String], takes: &Takes<'_>) -> Result<Self, String> {
        let mut given = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if !word.starts_with("--") {
                given.rest.push(word);
            } else if takes.flags.contains(&word) {
                given.flags.push(word);
            } else if takes.values.contains(&name) {
                let value = value.or_else(|| words.next());
                given.values.push((name, value.ok_or_else(|| format!("{name} needs a value"))?));
            } else {
                let known: Vec<&str> = takes.flags.iter().chain(takes.values).copied().collect();
                let meant = nearest(name, &known).map(|known| format!(": {known} is probably meant"));
                return Err(format!("no option {name}{}", meant.unwrap_or_default()));
            }
        }
        Ok(given)
    }

    /// The one word that is no option.
    pub(crate) fn one(&self, otherwise: &str) -> Result<&'a str, String> {
        if let [word] = self.rest[..] { Ok(word) } else { Err(otherwise.to_owned()) }
    }

    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// In the order in which they were given.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        self.values.iter().copied()
    }
}
