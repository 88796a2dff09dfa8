//! The tables: how they are made and recognised.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};
use xxhash_rust::xxh3::xxh3_64;

use super::link::fault;

/// The version of the tables and functions.
const VERSION: i32 = 7;
/// The oldest version whose releases can use them. A change that these can use leaves it as it is, so that two releases may
/// serve one store.
const SERVES: i32 = 7;

const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = include_str!("functions.sql");
const INBOX: &str = include_str!("inbox.sql");
const APPLY: &str = include_str!("apply.sql");

/// What a store object says over and over.
pub(super) struct Statements {
    pub(super) apply: String,
    pub(super) look: String,
    pub(super) heads: String,
    pub(super) tell: String,
    pub(super) beat: String,
    pub(super) sweep: String,
    pub(super) empty_trash: String,
    pub(super) worn: String,
    pub(super) trim_all: String,
    pub(super) goodbye: String,
}

impl Statements {
    pub(super) fn new(namespace: &str) -> Self {
        let call = |function: &str, count: usize| {
            let parameters: Vec<String> = (1..=count).map(|at| format!("${at}")).collect();
            format!("SELECT * FROM \"{namespace}\".{function}({})", parameters.join(", "))
        };
        Self {
            apply: call("apply", 29),
            look: call("look", 9),
            heads: call("heads", 2),
            tell: call("tell", 2),
            beat: call("beat", 1),
            sweep: call("sweep", 7),
            empty_trash: call("empty_trash", 1),
            worn: call("worn", 1),
            trim_all: call("trim_all", 5),
            goodbye: call("goodbye", 2),
        }
    }
}

/// What lets new rows of a table take the room of dead ones. Nobody waits for it: where somebody else is at it
/// nothing is done, and what would keep others out, to give room back to the disk, is left to the server.
pub(super) fn vacuum(namespace: &str, table: &str) -> String {
    format!("VACUUM (SKIP_LOCKED, TRUNCATE false) \"{namespace}\".\"{table}\"")
}

/// Makes the tables where there are none, and becomes an owner of sessions. Many may do so at once.
pub(super) async fn prepare(client: &Client, namespace: &str) -> Result<i64, String> {
    if version(client, namespace).await?.is_none() {
        let created = create(client, namespace).await;
        let end = if created.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await.map_err(|error| say(&error));
        created.and(ended)?;
    }
    // Never one that was there before: a server that takes over for another one may not know the last.
    let mut owner = [0; 8];
    getrandom::fill(&mut owner).map_err(|error| format!("no random numbers: {error}"))?;
    let owner = i64::from_be_bytes(owner);
    let insert = format!("INSERT INTO \"{namespace}\".owner (id) VALUES ($1)");
    client.query_typed(&insert, &[(&owner, Type::INT8)]).await.map_err(|error| say(&error))?;
    Ok(owner)
}

fn say(error: &Error) -> String {
    fault(error).what
}

/// Whether the statement finds something of this name.
async fn exists(client: &Client, statement: &str, name: &str) -> Result<bool, String> {
    let rows = client.query_typed(statement, &[(&name, Type::TEXT)]).await.map_err(|error| say(&error))?;
    Ok(!rows.is_empty())
}

/// The version of the tables, if they are there. Others of the same names are refused, and those of a release that does not
/// serve this one.
pub(super) async fn version(client: &Client, namespace: &str) -> Result<Option<i32>, String> {
    let about = format!("\"{namespace}\".about");
    // Functions like to_regclass look into a cache, which in a transaction that waited for a lock is old.
    const FIND: &str =
        "SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = 'about'";
    if !exists(client, FIND, namespace).await? {
        return Ok(None);
    }
    // Columns that are not known may come with a later version.
    let rows = client.query_typed(&format!("SELECT * FROM {about}"), &[]).await.map_err(|error| say(&error))?;
    let number = |name: &str| rows.first().and_then(|row| row.try_get::<_, i32>(name).ok());
    let Some(version) = number("version") else {
        return Err(format!("the schema {namespace} is of something else"));
    };
    let serves = number("serves").unwrap_or(version);
    if (serves..=version).contains(&VERSION) {
        return Ok(Some(version));
    }
    Err(format!(
        "the schema {namespace} has version {version} of the tables, for releases that know version {serves} to {version}; \
         this release knows version {VERSION}"
    ))
}

/// In a transaction that the caller ends.
async fn create(client: &Client, namespace: &str) -> Result<(), String> {
    let lock = xxh3_64(format!("tailrope schema {namespace}").as_bytes()).cast_signed();
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = '20s'; SET LOCAL client_min_messages = warning;
         SELECT pg_advisory_xact_lock({lock})"
    );
    client.batch_execute(&begin).await.map_err(|error| say(&error))?;
    // Another process may have made them meanwhile.
    if version(client, namespace).await?.is_some() {
        return Ok(());
    }
    // A user who may not make schemas can be given one.
    if !exists(client, "SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1", namespace).await? {
        let create = format!("CREATE SCHEMA \"{namespace}\"");
        client.batch_execute(&create).await.map_err(|error| say(&error))?;
    }
    let ns = format!("\"{namespace}\"");
    for text in [TABLES, FUNCTIONS, INBOX, APPLY] {
        client.batch_execute(&text.replace("{ns}", &ns)).await.map_err(|error| match error.code() {
            Some(&SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_FUNCTION | &SqlState::DUPLICATE_OBJECT) => {
                format!("the schema {namespace} is of something else")
            }
            _ => say(&error),
        })?;
    }
    let version = format!("INSERT INTO {ns}.about VALUES ({VERSION}, {SERVES})");
    client.batch_execute(&version).await.map_err(|error| say(&error))
}
