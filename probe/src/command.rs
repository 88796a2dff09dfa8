//! `tailrope probe URL`: words on the command line, an exit status.

use std::fmt;

use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::options::Options;
use crate::report::probe;
use crate::terminal::Terminal;
use crate::words::words;

const FLAGS: [&str; 2] = ["--json", "--help"];
const VALUES: [&str; 8] =
    ["--tool", "--arguments", "--header", "--timeout-ms", "--idle-ms", "--only", "--skip", "--require"];
const MISUSE: u8 = 2;

/// The command was given what it does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// What the command is asked to do.
#[derive(Debug)]
pub struct Command {
    /// What is probed.
    pub options: Options,
    /// The report is wanted as JSON.
    pub is_json: bool,
}

impl Command {
    /// Reads the words behind `tailrope`.
    ///
    /// # Errors
    /// They ask for nothing that there is.
    pub fn parse(given: &[String]) -> Result<Self, UsageError> {
        let rest = match given.split_first() {
            Some((first, rest)) if first == "probe" => rest,
            Some((first, _)) => return Err(UsageError::new(format!("there is no command {first}, but probe"))),
            None => return Err(UsageError::new("give a command: probe")),
        };
        let (mut urls, mut values, mut is_json) = (Vec::new(), Vec::new(), false);
        let mut rest = rest.iter().map(String::as_str);
        while let Some(word) = rest.next() {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if !word.starts_with("--") {
                urls.push(word);
            } else if FLAGS.contains(&word) {
                is_json |= word == "--json";
            } else if VALUES.contains(&name) {
                let value = value.or_else(|| rest.next());
                values.push((name, value.ok_or_else(|| UsageError::new(format!("{name} needs a value")))?));
            } else {
                return Err(UsageError::new(format!("no option {name}")));
            }
        }
        let url = if let [url] = urls[..] { url } else { "" };
        let mut options = Options::new(url)?;
        for (name, value) in values {
            options.set(name, value)?;
        }
        if options.tool.is_none() && options.arguments.is_some() {
            return Err(UsageError::new("--arguments needs --tool"));
        }
        Ok(Self { options, is_json })
    }
}

/// Runs the command `tailrope` with the words behind it, and prints what it has to say. Its exit status.
pub fn run(given: &[String]) -> u8 {
    let mut terminal = Terminal::new();
    let usage = words().usage.join("\n");
    if given.iter().any(|word| word == "--help" || word == "-h") {
        terminal.print(&usage);
        return 0;
    }
    match Command::parse(given) {
        Ok(command) => probed(&command, terminal),
        Err(fault) => {
            terminal.complain(&format!("tailrope: {fault}\n\n{usage}"));
            MISUSE
        }
    }
}

fn probed(command: &Command, mut terminal: Terminal) -> u8 {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.complain(&format!("tailrope: the system refuses what connections need: {error}"));
            return MISUSE;
        }
    };
    let is_json = command.is_json;
    let done = LocalSet::new().block_on(&runtime, probe(&command.options, |step| terminal.follow(&step, is_json)));
    // A name that is being looked up holds nobody.
    runtime.shutdown_background();
    match done {
        Ok(report) => {
            terminal.end(&report, is_json);
            report.exit
        }
        Err(unusable) => {
            terminal.complain(&format!("tailrope: {unusable}"));
            MISUSE
        }
    }
}
