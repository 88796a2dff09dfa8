//! The simulated store by itself, for the suite that every store is put through.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tailrope_core::store::EventStore;

use crate::node_store::{Mode, NodeStore, lock};
use crate::schedule::Setup;
use crate::sea::Sea;

/// Two store objects of one empty place, which answer at once. A thread brings them their hints as long as there are any.
pub fn place() -> (Arc<dyn EventStore>, Arc<dyn EventStore>) {
    let sea = Arc::new(Mutex::new(Sea::new(&Setup::roomy())));
    let [a, b] = [0, 1].map(|node| Arc::new(NodeStore::new(&sea, node, Mode::Now, true)));
    let (place, stores) = (Arc::downgrade(&sea), [&a, &b].map(Arc::downgrade));
    std::thread::spawn(move || while bring_hints(&place, &stores) {});
    (a, b)
}

/// False when nobody is left to be told.
fn bring_hints(place: &Weak<Mutex<Sea>>, stores: &[Weak<NodeStore>]) -> bool {
    let Some(sea) = place.upgrade() else { return false };
    let hints = std::mem::take(&mut lock(&sea).hints);
    if hints.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for hint in hints {
        if let Some(store) = stores[hint.node].upgrade() {
            store.tell(&hint);
        }
    }
    true
}
