#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod driver;
#[cfg(feature = "hyper")]
mod http_client;
#[cfg(feature = "rmcp")]
mod rmcp_client;

pub use driver::{Event, Events};
#[cfg(feature = "hyper")]
pub use http_client::{HttpClient, HttpError, Posted};
#[cfg(feature = "rmcp")]
pub use rmcp_client::{Resumable, StatusOf};
pub use tailrope_core::client::{Failure, Options, OptionsError, Token, TokenError};
