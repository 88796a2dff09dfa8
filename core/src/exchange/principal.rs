//! Whose request it is (I7). docs/security.md has the table.
//!
//! A session belongs to the principal of the request that opened it, and nobody else finds it. A request that carries
//! any credential always belongs to somebody.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::protocol::{base64url, hex};

/// The headers that carry a credential, or name the user that a proxy has authenticated.
pub const CREDENTIAL_HEADERS: [&str; 12] = [
    "authorization",
    "api-key",
    "cf-access-authenticated-user-email",
    "remote-user",
    "x-amzn-oidc-identity",
    "x-api-key",
    "x-auth-request-user",
    "x-auth-token",
    "x-forwarded-user",
    "x-goog-authenticated-user-id",
    "x-ms-client-principal-id",
    "x-remote-user",
];

/// What is known of the sender of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker<'a> {
    /// The name that the operator's own function gives to the user. If there is one, it decides alone.
    pub named: Option<&'a str>,
    /// What authentication in front of the endpoint left, as JSON: the user's name, or an object of facts.
    pub user_json: Option<&'a str>,
    /// The headers of [`CREDENTIAL_HEADERS`] that the request has, with their values.
    pub credentials: &'a [(&'a str, &'a str)],
}

impl Asker<'_> {
    /// The principal: a hash of what identifies the user, or none for a request that says nothing about its sender.
    ///
    /// These count, in this order: the name from the operator's function; what authentication left, without what
    /// changes from token to token; and, if that names no user, also the credentials, including a token that
    /// authentication left. Of a JSON Web Token, the issuer and the subject count: the host has to verify its
    /// signature. Other credentials count as they are.
    pub fn principal(&self) -> Option<Box<str>> {
        if let Some(name) = self.named.filter(|name| !name.is_empty()) {
            return Some(digest("named", &Value::from(name)));
        }
        let user = self.user_json.map(|json| serde_json::from_str(json).unwrap_or_else(|_| Value::from(json)));
        let token = user.as_ref().and_then(|user: &Value| Some(format!("Bearer {}", user.get("token")?.as_str()?)));
        let user = user.and_then(stable);
        if let Some(user) = &user
            && names_user(user)
        {
            return Some(digest("user", user));
        }
        let token = token.as_deref().map(|token| ("authorization", token));
        let credentials = self.credentials.iter().copied().chain(token).filter(|(_, value)| !value.is_empty());
        let mut facts: Vec<Value> = credentials.map(|(name, value)| credential(name, value)).collect();
        facts.sort_by_cached_key(Value::to_string);
        facts.dedup();
        facts.extend(user);
        (!facts.is_empty()).then(|| digest("credentials", &Value::Array(facts)))
    }
}

/// Members that differ between two tokens of one user, in lower case without `_` and `-`.
const CHANGING: [&str; 32] = [
    "accesstoken",
    "acr",
    "aio",
    "amr",
    "athash",
    "authtime",
    "chash",
    "exp",
    "expires",
    "expiresin",
    "groups",
    "iat",
    "idtoken",
    "jti",
    "nbf",
    "nonce",
    "permissions",
    "refreshtoken",
    "rh",
    "roles",
    "scope",
    "scopes",
    "scp",
    "sessionid",
    "sessionstate",
    "shash",
    "sid",
    "token",
    "tokentype",
    "typ",
    "updated",
    "uti",
];

/// Members that name a user, written in the same way.
const NAMING: [&str; 13] = [
    "email",
    "id",
    "identity",
    "login",
    "oid",
    "pk",
    "preferredusername",
    "sub",
    "subject",
    "uid",
    "upn",
    "userid",
    "username",
];

/// Members that hold facts of the user.
const NESTED: [&str; 3] = ["claims", "extra", "user"];

fn plain(name: &str) -> String {
    name.chars().filter(|character| !matches!(character, '_' | '-')).collect::<String>().to_ascii_lowercase()
}

/// Whether the member changes from one token or request of a user to the next: `exp`, `updatedAt`, `last_seen`.
fn is_changing(name: &str) -> bool {
    let is_time = name.ends_with("At") || name.ends_with("_at") || name.starts_with("last");
    is_time || CHANGING.contains(&plain(name).as_str())
}

/// The value without the members that change; none if nothing is left.
fn stable(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Object(members) => {
            let members = members.into_iter().filter(|(name, _)| !is_changing(name));
            let kept: serde_json::Map<_, _> =
                members.filter_map(|(name, value)| stable(value).map(|value| (name, value))).collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Array(items) => {
            let kept: Vec<Value> = items.into_iter().filter_map(stable).collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        scalar => Some(scalar),
    }
}

fn names_user(user: &Value) -> bool {
    let Value::Object(members) = user else { return !user.is_array() };
    members.iter().any(|(name, value)| {
        let name = plain(name);
        let is_nested = NESTED.contains(&name.as_str());
        if is_nested {
            names_user(value)
        } else {
            NAMING.contains(&name.as_str()) && (value.is_string() || value.is_number())
        }
    })
}

/// What a credential says about its owner: the same for every token of one user, if the token shows whose it is.
fn credential(name: &str, value: &str) -> Value {
    let named = if name == "authorization" { token_owner(value) } else { None };
    named.unwrap_or_else(|| Value::from([name, value].as_slice()))
}

/// Issuer and subject of a JSON Web Token after any authentication scheme (RFC 7519).
fn token_owner(authorization: &str) -> Option<Value> {
    let token = authorization.split_once(' ')?.1.trim();
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let mut bytes = vec![0; payload.len()];
    let length = base64url::decode(payload.as_bytes(), &mut bytes)?;
    let claims: Value = serde_json::from_slice(&bytes[..length]).ok()?;
    let subject = claims.get("sub").cloned().and_then(stable)?;
    let issuer = claims.get("iss").cloned().unwrap_or_default();
    Some(Value::Array(vec![issuer, subject]))
}

/// A hash of 256 bits that says nothing about what it was made from: stores and logs may see it.
fn digest(kind: &str, facts: &Value) -> Box<str> {
    let mut text = String::from(kind);
    write_sorted(facts, &mut text);
    hex(&Sha256::digest(text)).into()
}

/// JSON with the members of each object in the order of their names.
fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in members {
                let _ = write!(out, "{}:", Value::from(name.as_str()));
                write_sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}
