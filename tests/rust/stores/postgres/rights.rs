//! The rights that docs/stores/README.md says a role of the store needs.

use std::sync::Arc;

use tailrope_core::store::contract::{check, check_shared};
use tailrope_core::store::{EventStore, StoreOptions};

use super::database::{Administrator, Database, at, told};
use crate::kit::common::documented;

/// Everything that the store can be asked, by a role that may do no more than that.
fn works_as(role: &str, database: &Database) {
    let address = told("TAILROPE_TEST_POSTGRES");
    let (_, place) = address.rsplit_once('@').expect("it has a user");
    let (place, _) = place.rsplit_once('/').expect("it names a database");
    let address = format!("postgres://{role}:throw-away@{place}/{}", database.name);
    let open = || Arc::new(at(&address, &StoreOptions::default())) as Arc<dyn EventStore>;
    drop(open());
    let inside = database.inside();
    let empty = || {
        for table in ["session", "ended", "stream", "event", "message", "trash", "tally", "owner"] {
            inside.run(&format!("DELETE FROM tailrope.{table}"));
        }
        inside.run("UPDATE tailrope.total SET sessions = 0, streams = 0, events = 0, bytes = 0");
    };
    check(&|| {
        empty();
        open()
    });
    check_shared(&|| {
        empty();
        (open(), open())
    });
}

/// A database that only its owner may use, and a role that goes with it.
fn with_role(what: impl FnOnce(&Database, &str)) {
    struct Role(String);
    impl Drop for Role {
        fn drop(&mut self) {
            let drop = format!("DROP ROLE IF EXISTS {}", self.0);
            let _ = std::panic::catch_unwind(|| Administrator::new().run(&drop));
        }
    }
    let role;
    let database = Database::new();
    role = Role(format!("role_of_{}", database.name));
    let name = &role.0;
    database.administrator.run(&format!(
        "CREATE ROLE {name} LOGIN PASSWORD 'throw-away'; REVOKE ALL ON DATABASE {0} FROM PUBLIC;
         GRANT CONNECT ON DATABASE {0} TO {name}",
        database.name
    ));
    what(&database, name);
    drop(database);
}

#[test]
fn a_role_that_was_given_its_schema_needs_no_more() {
    with_role(|database, role| {
        let make = documented("stores/README.md", "CREATE SCHEMA tailrope").replace("app", role);
        database.inside().run(&make);
        works_as(role, database);
    });
}

#[test]
fn a_role_may_be_kept_from_making_tables() {
    with_role(|database, role| {
        let address = told("TAILROPE_TEST_POSTGRES");
        let (server, _) = address.rsplit_once('/').expect("it names a database");
        drop(at(&format!("{server}/{}", database.name), &StoreOptions::default()));
        database.inside().run(&documented("stores/README.md", "GRANT USAGE ON SCHEMA").replace("app", role));
        works_as(role, database);
    });
}
