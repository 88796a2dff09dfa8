//! Reads the body of a request.

use std::error::Error;
use std::pin::Pin;

use bytes::{Buf as _, BufMut as _, Bytes};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError};

/// The error of a body, as tower's services have it.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Why a body was not read to its end.
pub(crate) enum Unread {
    /// It has more bytes than may be read: what was read of it. Nothing, if middleware has found that out.
    #[cfg_attr(not(feature = "front"), expect(dead_code, reason = "only the front passes it on"))]
    TooLarge(Bytes),
    /// For example, the sender left in the middle of the body (F-22).
    Failed(BoxError),
}

impl Unread {
    /// Middleware may bound bodies, too.
    fn of(error: BoxError) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
        while let Some(found) = cause {
            if found.is::<LengthLimitError>() {
                return Self::TooLarge(Bytes::new());
            }
            cause = found.source();
        }
        Self::Failed(error)
    }
}

/// Reads a body of `max_bytes` bytes at most. What follows in a larger one is left in it.
pub(crate) async fn read<B>(mut body: Pin<&mut B>, max_bytes: usize) -> Result<Bytes, Unread>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Unread::of(error.into()))?;
        let Ok(mut data) = frame.into_data() else { continue };
        let length = data.remaining();
        // Most bodies have one frame, which need not be copied.
        if first.is_empty() {
            first = data.copy_to_bytes(length);
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.put(data);
        }
        if first.len().max(all.len()) > max_bytes {
            return Err(Unread::TooLarge(joined(first, all)));
        }
    }
    Ok(joined(first, all))
}

fn joined(first: Bytes, all: Vec<u8>) -> Bytes {
    if all.is_empty() { first } else { all.into() }
}
