//! Whose request it is (I7). docs/security.md has the rule in words.
//!
//! A session belongs to the principal of the request that opened it, and nobody else finds it. The first of these that
//! applies says who sends a request:
//!
//! 1. the name from the operator's own function, alone;
//! 2. what authentication left of the user (`user.rs`): the members that name and place the user. If none names the user,
//!    all its facts count, together with 3. If it has no facts, nobody can tell whose request it is;
//! 3. the headers that carry a credential, or in which a proxy names a user (`credentials.rs`), together.

mod credentials;
mod user;

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

pub use credentials::{IDENTITY_HEADERS, is_secret_header};
pub use user::{Member, names_user};

pub(super) use credentials::secret_of;
pub(super) use user::plain;

use super::secrets::Secrets;
use crate::protocol::hex;
use credentials::Credential;
use user::Facts;

/// What is known of the sender of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requester<'a> {
    /// The name that the operator's own function gives to the user. If there is one, it decides alone.
    pub named: Option<&'a str>,
    /// What authentication in front of the endpoint left of the user, as JSON. What is no JSON stands for a user that cannot
    /// be read, and identifies nobody.
    pub user_json: Option<&'a str>,
    /// The name that the operator's own function gives to the user in the log.
    pub log_user: Option<&'a str>,
    /// The headers of [`IDENTITY_HEADERS`], and of the option `identity_headers`, that the request has, with their values.
    pub credentials: &'a [(&'a str, &'a str)],
}

/// Which part of the rule decided whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The option `principal`.
    Named,
    /// What authentication left names the user.
    User,
    /// What authentication left names nobody, so all of it counts, together with the credentials.
    UserFacts,
    /// Issuer and subject of a JSON Web Token.
    Token,
    /// The key that signs the request.
    Signature,
    /// A header in which a proxy names the user.
    Proxy,
    /// Credentials as they are.
    Credential,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "the option `principal`",
            Self::User => "the user that authentication left",
            Self::UserFacts => "all that authentication left, as it names nobody, with the credentials",
            Self::Token => "issuer and subject of a token",
            Self::Signature => "the key that signs the request",
            Self::Proxy => "a header in which a proxy names the user",
            Self::Credential => "the credentials as they are",
        })
    }
}

/// A user, as sessions know it. Two are equal if they are of the same user.
#[derive(Clone)]
pub struct Principal(Arc<Hashes>);

struct Hashes {
    identity: Box<str>,
    account: Box<str>,
    rule: Rule,
}

impl Principal {
    fn new(rule: Rule, identity: &[&str], account: &[&str]) -> Self {
        Self(Arc::new(Hashes { identity: digest(identity), account: digest(account), rule }))
    }

    /// The principal of the user that the operator's own function gives this name.
    pub fn named(name: &str) -> Self {
        let parts = ["named", name];
        Self::new(Rule::Named, &parts, &parts)
    }

    /// A hash of what identifies the user, of 64 hexadecimal digits. It says nothing about what it was made from: stores
    /// and logs may see it.
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// A hash of the strongest fact about the user alone. Bounds count by it, so that nobody gets more by what they can
    /// make up, such as a second header.
    pub fn account(&self) -> &str {
        &self.0.account
    }

    /// What decided.
    pub fn rule(&self) -> Rule {
        self.0.rule
    }
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Principal {}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Principal({}, {:?})", &self.identity()[..8], self.rule())
    }
}

/// Authentication left a user that nothing tells from another user. Such a request is of nobody: not even of the user of the same
/// request a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unidentified;

/// The longest name of a user in the log, in characters.
const MAX_LOG_NAME: usize = 128;

impl Requester<'_> {
    /// What the log calls the user: a name that one of the operator's own functions gives. None if no function does, or it
    /// gives a credential of the request.
    pub fn log_name(&self) -> Option<Box<str>> {
        let given = |name: &&str| !name.is_empty();
        let name = self.log_user.filter(given).or_else(|| self.named.filter(given))?;
        let secrets = Secrets::of(self.credentials.iter().copied(), self.user_json);
        let end = name.char_indices().nth(MAX_LOG_NAME).map_or(name.len(), |(end, _)| end);
        (!secrets.are_in(name)).then(|| name[..end].into())
    }

    /// Whose request it is; none for a request that says nothing about its sender.
    ///
    /// # Errors
    /// [`Unidentified`]: the request has to be refused.
    pub fn principal(&self) -> Result<Option<Principal>, Unidentified> {
        if let Some(name) = self.named.filter(|name| !name.is_empty()) {
            return Ok(Some(Principal::named(name)));
        }
        let user = self.user_json.map(|json| Facts::read(json).ok_or(Unidentified)).transpose()?;
        let mut credentials: Vec<Credential> =
            self.credentials.iter().filter_map(|(name, value)| Credential::read(name, value)).collect();
        let facts = match user {
            Some(Facts::Named(facts)) => {
                let parts = ["user", &*facts];
                return Ok(Some(Principal::new(Rule::User, &parts, &parts)));
            }
            Some(Facts::Nameless { facts, token }) => {
                credentials
                    .extend(token.and_then(|token| Credential::read("authorization", &format!("Bearer {token}"))));
                Some(facts)
            }
            None => None,
        };
        credentials.sort_unstable();
        credentials.dedup();
        let mut identity: Vec<&str> = vec!["facts"];
        identity.extend(facts.iter().flat_map(|facts| ["user", &**facts]));
        identity.extend(credentials.iter().flat_map(Credential::parts));
        // They are sorted by their strength.
        let strongest = credentials.first();
        let rule = match (&facts, strongest) {
            (None, None) => return Ok(None),
            (Some(_), _) => Rule::UserFacts,
            (None, Some(strongest)) => strongest.rule(),
        };
        let account = strongest.map_or_else(|| identity.clone(), |strongest| strongest.parts().to_vec());
        Ok(Some(Principal::new(rule, &identity, &account)))
    }
}

fn digest(parts: &[&str]) -> Box<str> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(&hash.finalize()).into()
}
