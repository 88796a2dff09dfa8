//! A look into the tables by an operator. See [`Inspect`].

use std::sync::Arc;
use std::time::Duration;

use tailrope_core::protocol::{StreamNonce, hex};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::address::{Address, Listen};
use super::server::Server;
use super::{GOODBYE, link, schema};
use crate::inspect::{Beat, Facts, Inspect, SessionPage, SessionSeen, StreamSeen, count, user};

/// How long an answer may take. A look may go through all sessions.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is told of a session; `$1` is the log that is looked for.
const SESSION: &str = "SELECT s.id, s.name, s.owner, s.released IS NOT NULL, s.epoch, s.salt, s.revision, s.principal, \
     octet_length(s.note) > 0, s.bytes, \
     (SELECT count(*) FROM {ns}.stream WHERE session = s.id), \
     (SELECT count(*) FROM {ns}.stream WHERE session = s.id AND kept_until IS NULL), \
     (SELECT count(*) FROM {ns}.message WHERE session = s.id AND NOT is_taken), \
     (SELECT min(low_at) FROM {ns}.stream WHERE session = s.id), \
     (SELECT max(low_at) FROM {ns}.stream WHERE session = s.id), \
     EXISTS (SELECT FROM {ns}.stream WHERE session = s.id AND nonce = $1) \
     FROM {ns}.session AS s";
const STREAMS: &str = "SELECT st.nonce, coalesce(st.nonce = s.standalone, false), \
     coalesce((SELECT frame FROM {ns}.event WHERE stream = st.id AND seq = 0), ''), \
     st.head, st.low, st.events, st.bytes, st.readers, st.low_at, \
     (SELECT at FROM {ns}.event WHERE stream = st.id AND seq = st.head AND seq > 0), st.kept_until, \
     (SELECT octet_length(frame)::bigint FROM {ns}.event WHERE stream = st.id AND seq = -1), \
     EXISTS (SELECT FROM {ns}.message AS m WHERE m.session = s.id AND m.stream = st.id AND NOT m.is_taken), \
     st.is_withdrawn \
     FROM {ns}.session AS s JOIN {ns}.stream AS st ON st.session = s.id WHERE s.name = $1 ORDER BY st.id LIMIT $2";
/// What a store object asks of the tables.
const RIGHTS: &str = "SELECT coalesce(bool_and(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
     AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')), false) \
     FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> 'about'";

type Values<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(crate) struct Looking {
    address: Address,
    server: Server,
    runtime: Runtime,
    client: Option<Arc<Client>>,
    is_ours: bool,
}

impl Looking {
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let address = Address::parse(address)?;
        let server = Server::new(address.place.clone())?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime for it: {error}"))?;
        Ok(Self { address, server, runtime, client: None, is_ours: false })
    }

    fn client(&mut self) -> Result<Arc<Client>, String> {
        if let Some(client) = &self.client {
            return Ok(Arc::clone(client));
        }
        let connecting = link::connect(&self.server, None, Arc::default());
        let client = Arc::new(self.runtime.block_on(connecting).map_err(|fault| fault.what)?);
        self.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// `{ns}` is the quoted name of the namespace. Nothing is prepared: a pooler may give each statement another connection.
    fn ask(&mut self, statement: &str, values: Values<'_>) -> Result<Vec<Row>, String> {
        let client = self.client()?;
        let statement = statement.replace("{ns}", &format!("\"{}\"", self.address.namespace));
        let asked = async { tokio::time::timeout(PATIENCE, client.query_typed(&statement, values)).await };
        let answer = self.runtime.block_on(asked).map_err(|_| "the server did not answer in time".to_owned())?;
        answer.map_err(|error| link::fault(&error).what)
    }

    /// The same of the tables, once they are known to be ours.
    fn look(&mut self, statement: &str, values: Values<'_>) -> Result<Vec<Row>, String> {
        if !self.is_ours {
            let client = self.client()?;
            let namespace = self.address.namespace.clone();
            let version = self.runtime.block_on(schema::version(&client, &namespace))?;
            version.ok_or_else(|| format!("there is no schema {namespace}: no store has made its tables"))?;
            self.is_ours = true;
        }
        self.ask(statement, values)
    }

    /// One value.
    fn value<T: for<'a> FromSql<'a>>(&mut self, statement: &str, values: Values<'_>) -> Result<T, String> {
        let rows = self.ask(statement, values)?;
        let value = rows.first().map(|row| row.try_get(0).map_err(|error| link::fault(&error).what));
        value.unwrap_or_else(|| Err("the server gave no answer".to_owned()))
    }

    fn add_settings(&mut self, facts: &mut Facts) -> Result<(), String> {
        for (name, setting) in [
            ("server_version", "server_version"),
            ("default_transaction_read_only", "default_transaction_read_only"),
            ("synchronous_commit", "synchronous_commit"),
            ("fsync", "fsync"),
            ("autovacuum", "autovacuum"),
            ("track_counts", "track_counts"),
            ("server_encoding", "server_encoding"),
        ] {
            let text: Option<String> = self.value("SELECT current_setting($1, true)", &[(&setting, Type::TEXT)])?;
            facts.add_known(name, text);
        }
        for (name, setting) in [
            ("server_version_num", "server_version_num"),
            ("max_connections", "max_connections"),
            ("superuser_reserved_connections", "superuser_reserved_connections"),
            ("statement_timeout_ms", "statement_timeout"),
        ] {
            let number: Option<i64> =
                self.value("SELECT setting::bigint FROM pg_settings WHERE name = $1", &[(&setting, Type::TEXT)])?;
            facts.add_known(name, number);
        }
        facts.add("is_standby", self.value::<bool>("SELECT pg_is_in_recovery()", &[])?);
        let connections = "SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database";
        facts.add("connections", self.value::<i64>(connections, &[])?);
        let oldest = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::bigint * 1000 \
             FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()";
        // Another role's transactions are seen only with a right of its own.
        facts.add_known("oldest_transaction_ms", self.value::<i64>(oldest, &[]).ok());
        facts.add("connections_of_process", i64::try_from(self.address.connections).unwrap_or(i64::MAX) + 2);
        let listens = match self.address.listen {
            Listen::Main => "here",
            Listen::Elsewhere(_) => "elsewhere",
            Listen::Off => "off",
        };
        facts.add("listen", listens);
        Ok(())
    }

    fn add_rights(&mut self, facts: &mut Facts) -> Result<(), String> {
        let namespace = self.address.namespace.clone();
        let name: Values<'_> = &[(&namespace, Type::TEXT)];
        let there = !self.ask("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1", name)?.is_empty();
        facts.add("has_schema", there);
        if there {
            facts.add("may_use", self.value::<bool>("SELECT has_schema_privilege($1, 'USAGE')", name)?);
            facts.add("may_create", self.value::<bool>("SELECT has_schema_privilege($1, 'CREATE')", name)?);
        } else {
            let create = "SELECT has_database_privilege(current_database(), 'CREATE')";
            facts.add("may_create", self.value::<bool>(create, &[])?);
        }
        Ok(())
    }

    fn add_contents(&mut self, facts: &mut Facts) -> Result<(), String> {
        let client = self.client()?;
        let namespace = self.address.namespace.clone();
        match self.runtime.block_on(schema::version(&client, &namespace)) {
            Ok(Some(version)) => facts.add("version", i64::from(version)),
            Ok(None) => return Ok(()),
            Err(what) => {
                facts.add("unusable", what);
                return Ok(());
            }
        }
        facts.add("may_write", self.value::<bool>(RIGHTS, &[(&namespace, Type::TEXT)])?);
        for (name, statement) in [
            ("owners", "SELECT count(*) FROM {ns}.owner"),
            ("open_in", "SELECT count(*) FROM {ns}.owner WHERE gone IS NULL"),
            ("sessions", "SELECT sessions FROM {ns}.total"),
            ("streams", "SELECT streams FROM {ns}.total"),
            ("events", "SELECT events FROM {ns}.total"),
            ("bytes", "SELECT bytes FROM {ns}.total"),
            ("trash", "SELECT count(*) FROM {ns}.trash"),
        ] {
            facts.add(name, self.value::<i64>(statement, &[])?);
        }
        Ok(())
    }
}

fn session(row: &Row) -> Result<(i64, SessionSeen), tokio_postgres::Error> {
    let revision: Option<String> = row.try_get(6)?;
    let number = |at: usize| row.try_get::<_, i64>(at).map(count);
    let present = |at: usize| row.try_get::<_, Option<i64>>(at).map(|number| number.map(count));
    let seen = SessionSeen {
        name: String::from_utf8_lossy(row.try_get(1)?).into_owned(),
        owner: if row.try_get(3)? { None } else { Some(shown(row.try_get(2)?)) },
        epoch: row.try_get::<_, i64>(4)?.cast_unsigned(),
        salt: row.try_get::<_, i64>(5)?.cast_unsigned(),
        is_sealed: revision.is_none() && row.try_get(8)?,
        revision,
        user: row.try_get::<_, Option<&[u8]>>(7)?.map(user),
        bytes: number(9)?,
        streams: number(10)?,
        running: number(11)?,
        waiting: number(12)?,
        oldest_at: present(13)?,
        newest_at: present(14)?,
        has_log: row.try_get(15)?,
    };
    Ok((row.try_get(0)?, seen))
}

fn stream(row: &Row) -> Result<StreamSeen, tokio_postgres::Error> {
    let number = |at: usize| row.try_get::<_, i64>(at).map(count);
    let present = |at: usize| row.try_get::<_, Option<i64>>(at).map(|number| number.map(count));
    Ok(StreamSeen {
        nonce: hex(row.try_get::<_, &[u8]>(0)?),
        is_standalone: row.try_get(1)?,
        about: row.try_get(2)?,
        head: number(3)?,
        low: number(4)?,
        events: number(5)?,
        bytes: number(6)?,
        readers: number(7)?,
        began_at: number(8)?,
        last_at: present(9)?,
        kept_until: present(10)?,
        tail: present(11)?,
        waits: row.try_get(12)?,
        is_withdrawn: row.try_get(13)?,
    })
}

fn shown(owner: i64) -> String {
    format!("{owner:016x}")
}

fn failed(error: tokio_postgres::Error) -> String {
    link::fault(&error).what
}

impl Inspect for Looking {
    fn facts(&mut self) -> Result<Facts, String> {
        let mut facts = Facts::default();
        self.client()?;
        self.add_settings(&mut facts)?;
        self.add_rights(&mut facts)?;
        if facts.flag("may_use") == Some(true) {
            // What it may not read it does not know.
            if let Err(what) = self.add_contents(&mut facts) {
                facts.add("unusable", what);
            }
        }
        facts.add("now_ms", i64::try_from(self.now_ms()?).unwrap_or(i64::MAX));
        Ok(facts)
    }

    fn sessions(&mut self, after: Option<&str>, at_most: usize, log: &StreamNonce) -> Result<SessionPage, String> {
        let after: i64 = after.and_then(|after| after.parse().ok()).unwrap_or(i64::MIN);
        let wanted = i64::try_from(at_most).unwrap_or(i64::MAX);
        let (statement, log) = (format!("{SESSION} WHERE s.id > $2 ORDER BY s.id LIMIT $3"), &log.0[..]);
        let rows = self.look(&statement, &[(&log, Type::BYTEA), (&after, Type::INT8), (&wanted, Type::INT8)])?;
        let page = rows.iter().map(session).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let next = page.last().filter(|_| page.len() == at_most).map(|(id, _)| id.to_string());
        Ok(SessionPage { sessions: page.into_iter().map(|(_, session)| session).collect(), next })
    }

    fn session(&mut self, name: &str, log: &StreamNonce) -> Result<Option<SessionSeen>, String> {
        let (log, name) = (&log.0[..], name.as_bytes());
        let statement = format!("{SESSION} WHERE s.name = $2");
        let rows = self.look(&statement, &[(&log, Type::BYTEA), (&name, Type::BYTEA)])?;
        let found = rows.first().map(session).transpose().map_err(failed)?;
        Ok(found.map(|(_, session)| session))
    }

    fn streams(&mut self, session: &str, at_most: usize) -> Result<Vec<StreamSeen>, String> {
        let (name, wanted) = (session.as_bytes(), i64::try_from(at_most).unwrap_or(i64::MAX));
        let rows = self.look(STREAMS, &[(&name, Type::BYTEA), (&wanted, Type::INT8)])?;
        rows.iter().map(stream).collect::<Result<_, _>>().map_err(failed)
    }

    fn frames(&mut self, session: &str, log: &StreamNonce, max_bytes: u64) -> Result<Option<Vec<Vec<u8>>>, String> {
        const FIND: &str = "SELECT st.id FROM {ns}.session AS s JOIN {ns}.stream AS st ON st.session = s.id \
             WHERE s.name = $1 AND st.nonce = $2 AND st.bytes <= $3";
        let (name, log, most) = (session.as_bytes(), &log.0[..], i64::try_from(max_bytes).unwrap_or(i64::MAX));
        let rows = self.look(FIND, &[(&name, Type::BYTEA), (&log, Type::BYTEA), (&most, Type::INT8)])?;
        let Some(row) = rows.first() else { return Ok(None) };
        let id: i64 = row.try_get(0).map_err(failed)?;
        const READ: &str = "SELECT frame FROM {ns}.event WHERE stream = $1 AND seq > 0 ORDER BY seq";
        let rows = self.look(READ, &[(&id, Type::INT8)])?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map(Some).map_err(failed)
    }

    fn beats(&mut self, owners: &[&str]) -> Result<Vec<Beat>, String> {
        let id = |owner: &str| u64::from_str_radix(owner, 16).unwrap_or_default().cast_signed();
        let ids: Vec<i64> = owners.iter().map(|owner| id(owner)).collect();
        let rows = self.look("SELECT id, beat FROM {ns}.owner WHERE id = ANY ($1)", &[(&ids, Type::INT8_ARRAY)])?;
        let beat = |row: &Row| Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?));
        let found = rows.iter().map(beat).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let of = |id: &i64| match found.iter().find(|(owner, _)| owner == id) {
            None => Beat::Unknown,
            Some((_, GOODBYE)) => Beat::Closed,
            Some((_, count)) => Beat::Count(count.cast_unsigned()),
        };
        Ok(ids.iter().map(of).collect())
    }

    fn now_ms(&mut self) -> Result<u64, String> {
        self.value::<i64>("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).map(count)
    }
}
