//! A store of your own to start from: logs in a folder, for the processes of one machine (Unix).
//! docs/stores/own-in-rust.md explains it.
//!
//! A session is one file. A batch reads the file, changes the session in memory, writes a new file beside the old one
//! and renames it. So a batch is done completely or not at all. One lock of the folder keeps writers apart. That is
//! simple, but slow for long logs: a store for many events would append to its files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Ask, Attach, Attached, AttachedLog, Backend, BlockingBackend, Fault, Kind, Limits, LogPage, Op, Outcome, Owner,
    ReadLimit, Seq, Sightings, StoreError, Usage, Watcher, Watchers, beat_ms, session_name,
};

mod session;

use session::{Raw, Session, cost, now, owned};

/// How often watched sessions are looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How many sessions are kept in memory.
const KNOWN: usize = 64;

/// What the last look at a session found: the first line of its file, and its logs.
type Seen = (Option<String>, BTreeSet<StreamNonce>);

pub(crate) struct Folder {
    path: PathBuf,
    limits: Limits,
    owner_lost_ms: u64,
    /// The name of this store object. No other store object has it, in any process and at any time.
    name: String,
    opened: Instant,
    sightings: Mutex<Sightings>,
    watchers: Watchers,
    /// Sessions as they were read or written last, with the first line of their files.
    known: Mutex<HashMap<PathBuf, (String, Session)>>,
    usage: Mutex<Usage>,
    trimmed: AtomicU64,
    saved: AtomicU64,
}

impl BlockingBackend for Folder {
    fn run(&self, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Fault> {
        self.attempt(batch).map_err(|error| {
            // A file with wrong content concerns only its session. Any other error concerns the folder, and may pass.
            let kind = if error.kind() == ErrorKind::InvalidData { Kind::OfOne } else { Kind::Passes };
            // The rename is the last step that can fail, and nothing is done before it.
            Fault { what: format!("the folder of events: {}", error.kind()), kind, was_sent: false }
        })
    }
}

/// The operations that the store is asked for.
impl Folder {
    fn attempt(&self, batch: &[Op]) -> io::Result<Vec<Option<Outcome>>> {
        let Some(Op { session: name, .. }) = batch.first() else { return Ok(Vec::new()) };
        let changes = batch.iter().any(|op| !op.ask.is_question());
        // A reader needs no lock: it finds the file as it was before a change, or as it is after it.
        let _lock = changes.then(|| self.lock()).transpose()?;
        let wanted = batch.iter().map(|op| match &op.ask {
            Ask::Append { append, .. } => cost(append),
            Ask::Attach(Attach { message: Some(message), .. }) => message.bytes(),
            _ => 0,
        });
        let mut room = self.room(wanted.sum())?;
        let file = self.file_of(name);
        let mut session = self.load(&file)?;
        let outcomes = batch.iter().map(|op| self.apply(&file, &mut session, &op.ask, &mut room).map(Some));
        let outcomes = outcomes.collect::<io::Result<_>>()?;
        if changes {
            self.save(&file, session.as_mut())?;
        }
        Ok(outcomes)
    }

    fn apply(&self, file: &Path, session: &mut Option<Session>, ask: &Ask, room: &mut usize) -> io::Result<Outcome> {
        Ok(Outcome::Done(match ask {
            Ask::Hold(_) if session.is_none() && self.ended(file).exists() => {
                return Ok(Outcome::Held(Err(StoreError::Gone)));
            }
            Ask::Hold(hold) => return Ok(Outcome::Held(Session::hold(session, hold, &self.name))),
            Ask::Attach(attach) => return Ok(Outcome::Attached(self.attach(session.as_mut(), attach, room))),
            Ask::Take { epoch, after } => {
                let taken = owned(session, *epoch).map(|session| session.take(*after));
                return Ok(Outcome::Taken(taken));
            }
            Ask::Withdraw { nonce, end } => {
                let session = session.as_mut().ok_or(StoreError::Gone);
                return Ok(Outcome::Withdrawn(session.and_then(|session| session.withdraw(*nonce, end))));
            }
            Ask::Read { nonce, after, limit } => {
                let page = session.as_ref().and_then(|session| self.page(session, &nonce.hex(), *after, *limit));
                return Ok(Outcome::Page(page.ok_or(StoreError::Gone)));
            }
            Ask::Append { nonce, epoch, append } => owned(session, *epoch)
                .and_then(|session| session.append(*nonce, append, &self.limits, room))
                .map(|trimmed| {
                    self.trimmed.fetch_add(trimmed, Ordering::Relaxed);
                }),
            Ask::Release { epoch } => owned(session, *epoch).map(|session| session.owner = None),
            Ask::Settle { nonce, epoch, seq } => owned(session, *epoch).map(|session| {
                let events = session.logs.get_mut(&nonce.hex()).map(|log| &mut log.events);
                events.into_iter().flatten().filter(|event| event.seq == *seq).for_each(|one| one.is_settled = true);
            }),
            Ask::DropStream { nonce, epoch } => {
                owned(session, *epoch).map(|session| drop(session.logs.remove(&nonce.hex())))
            }
            Ask::DropSession { epoch } => {
                let ended = owned(session, *epoch).map(drop);
                if ended.is_ok() {
                    // Written before the session is removed: while the session is there, this file means nothing.
                    if epoch.number > 1 {
                        fs::write(self.ended(file), [])?;
                    }
                    *session = None;
                }
                ended
            }
            _ => Err(StoreError::Failed("the store does not know this operation".to_owned())),
        }))
    }

    fn attach(&self, session: Option<&mut Session>, attach: &Attach, room: &mut usize) -> Result<Attached, StoreError> {
        let Some(session) = session else { return Ok(Attached::default()) };
        let record = session.record();
        if !attach.finds(record.principal.as_deref()) {
            return Ok(Attached { is_foreign: true, ..Attached::default() });
        }
        if let (Some(nonce), Some(message)) = (attach.stream, &attach.message) {
            session.post(nonce, message, &self.limits, room)?;
        }
        let log = attach.stream.and_then(|nonce| {
            let name = nonce.hex();
            let log = session.logs.get_mut(&name)?;
            log.readers += u64::from(attach.counts && attach.fits(log.head, log.tag_at(attach.after)));
            let about = log.about.bytes();
            Some(AttachedLog { about, page: self.page(session, &name, attach.after, attach.limit)? })
        });
        Ok(Attached { session: Some(record), is_foreign: false, log })
    }

    fn page(&self, session: &Session, name: &str, after: Seq, limit: ReadLimit) -> Option<LogPage> {
        let log = session.logs.get(name)?;
        let is_other = session.owner.as_ref() != Some(&self.name);
        Some(LogPage {
            paced: log.paced(),
            page: log.page(after, limit),
            chain: log.chain,
            is_finished: log.ended.is_some(),
            tail: log.tail.as_ref().map(Raw::bytes),
            readers: log.readers,
            owner: is_other.then(|| Owner { epoch: session.epoch(), unseen_ms: self.unseen_ms(session) }),
        })
    }
}

impl Backend for Folder {
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watchers.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watchers.unwatch(session, watcher);
    }

    fn usage(&self) -> Usage {
        let usage = *self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        Usage { trimmed: self.trimmed.load(Ordering::Relaxed), ..usage }
    }
}

/// What the store does without being asked: beats, hints and retention, on threads of their own.
impl Folder {
    /// Opens the store. An owner that gave no sign of life for `owner_lost_ms` milliseconds counts as gone.
    pub(crate) fn open(path: &Path, limits: Limits, owner_lost_ms: u64) -> io::Result<Arc<Self>> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        for folder in ["sessions", "ended", "beats"] {
            fs::create_dir_all(path.join(folder))?;
        }
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let folder = Arc::new(Self {
            path: path.to_owned(),
            limits,
            owner_lost_ms,
            name: format!("{}-{}-{number}", now(), std::process::id()),
            opened: Instant::now(),
            sightings: Mutex::new(Sightings::new(owner_lost_ms)),
            watchers: Watchers::default(),
            known: Mutex::default(),
            usage: Mutex::default(),
            trimmed: AtomicU64::new(0),
            saved: AtomicU64::new(0),
        });
        // Before this store object owns anything: an owner without a count is never known to be gone.
        folder.beat(0)?;
        let pause = Duration::from_millis(beat_ms(owner_lost_ms));
        let (mut count, mut seen) = (0, HashMap::new());
        // If a beat fails, the next one makes up for it.
        every(&folder, pause, move |folder| {
            count += 1;
            let _ = folder.beat(count);
        })?;
        every(&folder, LOOK, move |folder| folder.look(&mut seen))?;
        // Not on the thread of the beats, because it waits for the lock.
        every(&folder, pause, |folder| drop(folder.clean()))?;
        Ok(folder)
    }

    fn beat(&self, count: u64) -> io::Result<()> {
        // All counts have one length, and each is written over the last one. So another process finds a count at any
        // time.
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(self.path.join("beats").join(&self.name));
        file?.write_all(format!("{count:020}").as_bytes())
    }

    /// For how many milliseconds the owner is known to have given no sign of life.
    fn unseen_ms(&self, session: &Session) -> u64 {
        let Some(owner) = &session.owner else { return u64::MAX };
        let count = fs::read_to_string(self.path.join("beats").join(owner)).ok();
        let now = Ms(self.opened.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        let mut sightings = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
        sightings.saw(owner, count.and_then(|text| text.parse().ok()), now)
    }

    /// Looks at which sessions were written since the last look, and tells their watchers: of every log, also of logs
    /// that are gone, and of messages that wait for this store object. The first watcher of a session is told, too.
    fn look(&self, seen: &mut HashMap<Arc<str>, Seen>) {
        let mut before = std::mem::take(seen);
        for name in self.watchers.sessions() {
            let file = self.file_of(&name);
            let (last, mut logs) = before.remove(&name).unwrap_or_default();
            let stamp = stamp(&file).ok().flatten();
            if stamp != last {
                let session = self.load(&file).ok().flatten().unwrap_or_default();
                let found: BTreeSet<StreamNonce> = session.nonces().collect();
                logs.union(&found).for_each(|nonce| self.watchers.changed(&name, *nonce));
                if session.owner.as_ref() == Some(&self.name) && session.has_mail() {
                    self.watchers.posted(&name);
                }
                logs = found;
            }
            seen.insert(name, (stamp, logs));
        }
    }

    /// Applies retention, and counts what there is.
    fn clean(&self) -> io::Result<()> {
        let (mut usage, mut owners) = (Usage::default(), HashSet::new());
        for file in self.files()? {
            let _lock = self.lock()?;
            // A file that cannot be read must not be in the way of the others.
            let Ok(Some(session)) = self.forget(&file, self.limits.retention_ms) else { continue };
            usage.sessions += 1;
            usage.streams += session.logs.len() as u64;
            usage.events += session.logs.values().map(|log| log.events.len() as u64).sum::<u64>();
            usage.bytes += session.bytes() as u64;
            owners.extend(session.owner.map(OsString::from));
        }
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
        let Limits { max_age_ms, .. } = self.limits;
        // The count of an owner is kept: without it, the owner is never known to be gone.
        let age_ms = self.owner_lost_ms.saturating_add(max_age_ms).saturating_mul(4);
        self.remove_older("beats", age_ms, |name| !owners.contains(name))?;
        self.remove_older("ended", max_age_ms, |_| true)
    }

    /// Removes files that were written more than `age_ms` milliseconds ago, if `may_go` says so of their names.
    fn remove_older(&self, folder: &str, age_ms: u64, may_go: impl Fn(&OsStr) -> bool) -> io::Result<()> {
        for file in fs::read_dir(self.path.join(folder))? {
            let file = file?;
            if !may_go(&file.file_name()) {
                continue;
            }
            if file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > Duration::from_millis(age_ms)) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// Forgets logs that ended at least `retention_ms` milliseconds ago, unless their pace names another time. Forgets
    /// the whole session if its owner is gone and nobody has written to it for `max_age_ms`. Keep the lock meanwhile.
    fn forget(&self, file: &Path, retention_ms: u64) -> io::Result<Option<Session>> {
        let Some(mut session) = self.load(file)? else { return Ok(None) };
        let (now, before) = (now(), session.logs.len());
        let is_left = now.saturating_sub(session.written) >= self.limits.max_age_ms
            && session.owner.as_ref() != Some(&self.name)
            && self.unseen_ms(&session) >= self.owner_lost_ms;
        if is_left {
            self.save(file, None)?;
            return Ok(None);
        }
        session.logs.retain(|_, log| {
            let retention_ms = log.paced().retention_ms.unwrap_or(retention_ms);
            log.ended.is_none_or(|ended| now.saturating_sub(ended) < retention_ms)
        });
        if session.logs.len() < before {
            self.save(file, Some(&mut session))?;
        }
        Ok(Some(session))
    }
}

/// Does this again and again, on a thread of its own, until the store is gone. While operations are left to do, the
/// store is still there.
fn every(folder: &Arc<Folder>, pause: Duration, mut work: impl FnMut(&Folder) + Send + 'static) -> io::Result<()> {
    let folder = Arc::downgrade(folder);
    let run = move || {
        while let Some(folder) = folder.upgrade() {
            work(&folder);
            drop(folder);
            thread::sleep(pause);
        }
    };
    thread::Builder::new().name("folder".to_owned()).spawn(run).map(drop)
}

/// Files.
impl Folder {
    /// The folder belongs to one writer as long as the returned file is open. The system closes the file when the
    /// process ends, for whatever reason.
    fn lock(&self) -> io::Result<File> {
        const EXCLUSIVE: i32 = 2;
        // SAFETY: `flock` is declared as on POSIX systems, and takes no pointer. From Rust 1.89 on, `File::lock` calls
        // it.
        unsafe extern "C" {
            safe fn flock(file: i32, operation: i32) -> i32;
        }
        let file = File::options().write(true).create(true).truncate(false).open(self.path.join("lock"))?;
        while flock(file.as_raw_fd(), EXCLUSIVE) != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(file)
    }

    /// The name is hashed, because a session may have any name.
    fn file_of(&self, session: &str) -> PathBuf {
        self.path.join("sessions").join(&*session_name(session))
    }

    /// The file that exists as long as the name of a session that has ended stays taken.
    fn ended(&self, file: &Path) -> PathBuf {
        self.path.join("ended").join(file.file_name().unwrap_or_default())
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(self.path.join("sessions"))?.map(|entry| Ok(entry?.path())).collect()
    }

    /// How many more bytes the folder may hold. If these are fewer than `wanted`, logs that have ended go early. A
    /// store for many sessions would keep a count.
    fn room(&self, wanted: usize) -> io::Result<usize> {
        if wanted == 0 {
            return Ok(0);
        }
        let length = |file: &PathBuf| fs::metadata(file).map_or(0, |file| file.len());
        let files = self.files()?;
        let room = |held: u64| self.limits.max_bytes.saturating_sub(held.try_into().unwrap_or(usize::MAX));
        let mut held: u64 = files.iter().map(length).sum();
        for file in files {
            if room(held) >= wanted {
                break;
            }
            let before = length(&file);
            let _ = self.forget(&file, 0);
            held -= before - length(&file);
        }
        Ok(room(held))
    }

    /// Writes the file of a session, or removes it. Keep the lock meanwhile.
    fn save(&self, file: &Path, session: Option<&mut Session>) -> io::Result<()> {
        let Some(session) = session else {
            return if file.exists() { fs::remove_file(file) } else { Ok(()) };
        };
        session.written = now();
        // A new stamp each time: it is all that `look` reads to see a change.
        let stamp = format!("{}-{}\n", self.name, self.saved.fetch_add(1, Ordering::Relaxed));
        let mut text = stamp.clone().into_bytes();
        serde_json::to_writer(&mut text, session)?;
        let draft = self.path.join("draft");
        fs::write(&draft, text)?;
        fs::rename(draft, file)?;
        self.know(file, stamp, session);
        Ok(())
    }

    fn load(&self, file: &Path) -> io::Result<Option<Session>> {
        let Some(stamp) = stamp(file)? else { return Ok(None) };
        if let Some((_, session)) = self.known().get(file).filter(|(known, _)| *known == stamp) {
            return Ok(Some(session.clone()));
        }
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let (stamp, session) = text.split_once('\n').unwrap_or_default();
        let session = serde_json::from_str(session).map_err(|_| ErrorKind::InvalidData)?;
        self.know(file, format!("{stamp}\n"), &session);
        Ok(Some(session))
    }

    fn know(&self, file: &Path, stamp: String, session: &Session) {
        let mut known = self.known();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(file.to_owned(), (stamp, session.clone()));
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, (String, Session)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first line of a session's file; none if there is no file.
fn stamp(file: &Path) -> io::Result<Option<String>> {
    let file = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut line = String::new();
    BufReader::with_capacity(64, file).read_line(&mut line)?;
    Ok(Some(line))
}
