//! How many sessions are adopted at once (O15). If a process dies that had thousands, their clients come to the other
//! processes together, and each session needs a server object.

use std::collections::VecDeque;

use crate::engine::sessions::cell::Cell;
use crate::engine::shared::{Shared, lock};
use crate::sync::Weak;

/// Server objects that hosts build at once. Further sessions wait for their turn, for as long as the requests that were
/// relayed to them wait.
const MAX_BUILDING: usize = 32;

/// The server objects that hosts build for the sessions that they adopt. One is under way from when the host takes the
/// session until the host accepts what waits for it, or until the session ends.
#[derive(Default)]
pub(crate) struct Building {
    under_way: usize,
    /// Sessions that this process owns, and that their hosts may not take yet.
    waiting: VecDeque<Weak<Cell>>,
}

impl Shared {
    /// Whether the host of this view may begin. If not, it is told when it may.
    pub(crate) fn may_build(&self, view: &Cell) -> bool {
        let mut building = lock(&self.building);
        let is_free = building.under_way < MAX_BUILDING;
        if is_free {
            building.under_way += 1;
        } else {
            building.waiting.push_back(view.me.clone());
        }
        is_free
    }

    /// A server object is built, or will not be.
    pub(crate) fn end_building(&self) {
        let mut building = lock(&self.building);
        building.under_way = building.under_way.saturating_sub(1);
    }

    /// Lets the next host begin. The caller must hold no lock of a session.
    pub(crate) fn build_next(&self) {
        loop {
            let next = {
                let mut building = lock(&self.building);
                if building.under_way >= MAX_BUILDING {
                    return;
                }
                building.waiting.pop_front()
            };
            let Some(view) = next else { return };
            if view.upgrade().is_some_and(|view| view.tell_again()) {
                return;
            }
        }
    }
}
