//! The user that authentication in front of the endpoint left, in one normal form for every language.
//!
//! A closed set of members counts: those that name a user, and those that say where the name is valid. Everything else may
//! change from one request of a user to the next, and is ignored. How a member is spelled, in which object it is nested and
//! what type its value has do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::value::RawValue;

use crate::exchange::shape::Shape;

/// What a member of a user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// It names the user.
    Naming(&'static str),
    /// It says where the user's name is valid.
    Scoping(&'static str),
    /// Further members of the user are in it.
    Nesting,
}

/// The members that count, in lower case without `_` and `-`. Those of one kind are synonyms.
const MEMBERS: [(Member, &[&str]); 10] = [
    (Member::Naming("sub"), &["sub", "subject"]),
    (Member::Naming("oid"), &["oid", "objectid"]),
    (Member::Naming("id"), &["id", "userid", "uid", "pk"]),
    (Member::Naming("username"), &["username", "login", "upn", "userprincipalname", "preferredusername", "user"]),
    (Member::Naming("email"), &["email"]),
    (Member::Naming("identity"), &["identity"]),
    (Member::Scoping("issuer"), &["iss", "issuer"]),
    (
        Member::Scoping("tenant"),
        &["tenant", "tenantid", "tid", "org", "orgid", "organization", "organizationid", "realm"],
    ),
    (Member::Scoping("client"), &["clientid", "azp"]),
    (Member::Nesting, &["accesstoken", "claims", "extra", "payload", "sessionclaims", "upstreamclaims", "userinfo"]),
];

/// What the SDKs' objects say of a token, and not of its user.
const OF_TOKEN: [&str; 4] = ["expiresat", "resource", "scopes", "token"];

/// Nested objects are read up to here.
const MAX_DEPTH: usize = 8;

impl Member {
    /// What a member of this name is; none if it does not count.
    pub fn named(name: &str) -> Option<Self> {
        let name = plain(name);
        MEMBERS.into_iter().find(|(_, names)| names.contains(&&*name)).map(|(member, _)| member)
    }
}

/// A name without what differs between languages.
pub(in crate::exchange) fn plain(name: &str) -> String {
    name.chars().filter(|character| !matches!(character, '_' | '-')).collect::<String>().to_ascii_lowercase()
}

/// Whether what authentication left names a user. If it does not, a host has to hand over all of it.
pub fn names_user(user_json: &str) -> bool {
    matches!(Facts::read(user_json), Some(Facts::Named(_)))
}

/// What counts of a user.
#[derive(Debug)]
pub(super) enum Facts {
    /// Something names the user. Only what names and places the user counts.
    Named(String),
    /// Nothing does: everything counts. A token that authentication left is a credential.
    Nameless { facts: String, token: Option<String> },
}

impl Facts {
    /// None if there is nothing that could tell one user from another, or if it cannot be read.
    pub(super) fn read(user_json: &str) -> Option<Self> {
        let user: &RawValue = serde_json::from_str(user_json).ok()?;
        let mut token = None;
        match Shape::of(user)? {
            Shape::Object(members) => {
                let mut collected = Collected::default();
                collected.read(&members, "", 0)?;
                if collected.names {
                    return Some(Self::Named(collected.text()));
                }
                let of_token = members.iter().find(|(name, _)| plain(name) == "token");
                token = of_token.and_then(|(_, value)| scalar(Shape::of(value)?));
            }
            Shape::List(_) => {}
            name => return scalar(name).map(|name| Self::Named(format!("{name:?}"))),
        }
        let facts = canonical(user, 0)?;
        (token.is_some() || has_fact(user, 0)).then_some(Self::Nameless { facts, token })
    }

    /// What names a user among the claims of a token.
    pub(super) fn of_claims(claims: &str) -> Option<String> {
        match Self::read(claims)? {
            Self::Named(facts) => Some(facts),
            Self::Nameless { .. } => None,
        }
    }
}

/// The members that count, found at any place: by what they are, then by where they were, their values.
#[derive(Default)]
struct Collected {
    names: bool,
    values: BTreeMap<Member, BTreeMap<String, BTreeSet<String>>>,
}

impl Collected {
    /// None for what cannot be read.
    fn read(&mut self, members: &[(String, &RawValue)], path: &str, depth: usize) -> Option<()> {
        for (name, value) in members {
            let Some(member) = Member::named(name) else { continue };
            let path = format!("{path}.{name}");
            let nests = member == Member::Nesting || plain(name) == "user";
            match Shape::of(value)? {
                Shape::Object(_) if nests && depth == MAX_DEPTH => return None,
                Shape::Object(inner) if nests => self.read(&inner, &path, depth + 1)?,
                _ if member == Member::Nesting => {}
                _ => {
                    let values = values(value, depth)?;
                    if !values.is_empty() {
                        self.names |= matches!(member, Member::Naming(_));
                        self.values.entry(member).or_default().insert(path, values);
                    }
                }
            }
        }
        Some(())
    }

    /// Synonyms that agree are one fact. Where they differ, each counts with its own name.
    fn text(&self) -> String {
        let mut out = String::new();
        for (member, by_path) in &self.values {
            let mut all = by_path.values();
            let first = all.next();
            if all.all(|values| Some(values) == first) {
                let _ = writeln!(out, "{member:?} {first:?}");
            } else {
                let _ = writeln!(out, "{member:?} {by_path:?}");
            }
        }
        out
    }
}

/// A text or a number as text: the same for `7`, `7.0` and `"7"`. None for what names nothing: null, a truth value, an empty
/// text.
fn scalar(shape: Shape<'_>) -> Option<String> {
    match shape {
        Shape::Text(text) => (!text.is_empty()).then_some(text),
        Shape::Other("null" | "true" | "false") | Shape::Object(_) | Shape::List(_) => None,
        Shape::Other(json) => Some(number(json)),
    }
}

/// A number with all its digits.
fn number(json: &str) -> String {
    let digits = json.strip_prefix('-').unwrap_or(json);
    if digits != "0" && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return json.to_owned();
    }
    match json.parse::<f64>() {
        Ok(0.0) => "0".to_owned(),
        Ok(number) if number.is_finite() => format!("{number}"),
        _ => json.to_owned(),
    }
}

/// The values of a member: of a list each, in any order. None for what cannot be read.
fn values(value: &RawValue, depth: usize) -> Option<BTreeSet<String>> {
    if depth == MAX_DEPTH {
        return None;
    }
    Some(match Shape::of(value)? {
        Shape::List(items) => {
            let items: Option<Vec<_>> = items.into_iter().map(|item| values(item, depth + 1)).collect();
            items?.into_iter().flatten().collect()
        }
        Shape::Object(members) => {
            let mut collected = Collected::default();
            collected.read(&members, "", depth + 1)?;
            match (collected.values.is_empty(), has_fact(value, depth)) {
                (false, _) => BTreeSet::from([format!("\0{}", collected.text())]),
                // No scalar begins like this.
                (true, true) => BTreeSet::from([format!("\0{}", canonical(value, depth)?)]),
                (true, false) => BTreeSet::new(),
            }
        }
        shape => scalar(shape).into_iter().collect(),
    })
}

/// The value as text, whatever the order of its members, without what the SDKs say of a token. None for what cannot be read.
fn canonical(value: &RawValue, depth: usize) -> Option<String> {
    if depth == MAX_DEPTH {
        return None;
    }
    Some(match Shape::of(value)? {
        Shape::List(items) => {
            let items: Option<Vec<String>> = items.into_iter().map(|item| canonical(item, depth + 1)).collect();
            format!("{:?}", items?)
        }
        Shape::Object(members) => {
            let facts = members.into_iter().filter(|(name, _)| counts(name, depth));
            let facts = facts.map(|(name, value)| Some((name, canonical(value, depth + 1)?)));
            format!("{:?}", facts.collect::<Option<BTreeMap<_, _>>>()?)
        }
        shape => scalar(shape).unwrap_or_else(|| format!("\0{}", value.get())),
    })
}

/// Whether anything in it may tell one user from another: null, truth values and empty texts do not.
fn has_fact(value: &RawValue, depth: usize) -> bool {
    if depth == MAX_DEPTH {
        return false;
    }
    match Shape::of(value) {
        None => false,
        Some(Shape::List(items)) => items.into_iter().any(|item| has_fact(item, depth + 1)),
        Some(Shape::Object(members)) => {
            members.iter().any(|(name, value)| counts(name, depth) && has_fact(value, depth + 1))
        }
        Some(shape) => scalar(shape).is_some(),
    }
}

/// Whether a member is a fact about a user, where everything counts.
fn counts(name: &str, depth: usize) -> bool {
    depth > 0 || !OF_TOKEN.contains(&&*plain(name))
}
