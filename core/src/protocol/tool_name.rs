//! The name of a tool, as its caller spells it.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

/// The name of a tool. Names as tools have them need no memory of their own, so each running call keeps its tool's.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ToolName(SmallVec<[u8; 32]>);

impl From<&str> for ToolName {
    fn from(name: &str) -> Self {
        Self(SmallVec::from_slice(name.as_bytes()))
    }
}

impl Deref for ToolName {
    type Target = str;

    fn deref(&self) -> &str {
        // It was made of a text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
