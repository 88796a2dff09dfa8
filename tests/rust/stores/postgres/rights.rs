//! The rights that docs/stores/README.md says a role of the store needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrope_core::store::contract::{check, check_shared};
use tailrope_core::store::{EventStore, StoreOptions};

use super::database::{Administrator, Database, at, told};
use crate::kit::common::documented;

/// Everything that the store can be asked, by a role that may do no more than `give` lets it: that is called with a
/// database, the name of the role, and a namespace in which nothing is yet.
fn works_with(give: impl Fn(&Database, &str, &str) + Sync) {
    struct Role(String);
    impl Drop for Role {
        fn drop(&mut self) {
            let drop = format!("DROP ROLE IF EXISTS {}", self.0);
            let _ = std::panic::catch_unwind(|| Administrator::new().run(&drop));
        }
    }
    let role;
    // It goes first, and with it all that the role owns.
    let database = Database::new();
    role = Role(format!("role_of_{}", database.name));
    let name = &role.0;
    // The database is its owner's alone.
    database.administrator.run(&format!(
        "CREATE ROLE {name} LOGIN PASSWORD 'throw-away'; REVOKE ALL ON DATABASE {0} FROM PUBLIC;
         GRANT CONNECT ON DATABASE {0} TO {name}",
        database.name
    ));
    let server = told("TAILROPE_TEST_POSTGRES");
    let (_, server) = server.rsplit_once('@').expect("it has a user");
    let (server, _) = server.rsplit_once('/').expect("it names a database");
    let places = AtomicU64::new(0);
    // The rules are checked several at a time, so each has a place of its own.
    let place = || {
        let namespace = format!("place_{}", places.fetch_add(1, Ordering::Relaxed));
        give(&database, name, &namespace);
        format!("postgres://{name}:throw-away@{server}/{}?namespace={namespace}", database.name)
    };
    let open = |address: &str| Arc::new(at(address, &StoreOptions::default())) as Arc<dyn EventStore>;
    check(&|| open(&place()));
    check_shared(&|| {
        let address = place();
        (open(&address), open(&address))
    });
}

/// The statements of the documents that begin like this, for this role and namespace.
fn statements(begin: &str, role: &str, namespace: &str) -> String {
    documented("stores/README.md", begin).replace("tailrope", namespace).replace("app", role)
}

#[test]
fn a_role_that_was_given_its_schema_needs_no_more() {
    works_with(|database, role, namespace| {
        database.inside().run(&statements("CREATE SCHEMA tailrope", role, namespace));
    });
}

#[test]
fn a_role_may_be_kept_from_making_tables() {
    works_with(|database, role, namespace| {
        drop(at(&database.address_of(namespace), &StoreOptions::default()));
        database.inside().run(&statements("GRANT USAGE ON SCHEMA", role, namespace));
    });
}
