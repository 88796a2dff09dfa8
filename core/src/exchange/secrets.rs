//! The credentials of a request, and JSON without them: nothing that lets somebody in travels to another process.

use serde_json::value::RawValue;

use super::principal::{is_secret_header, plain, secret_of};
use super::shape::Shape;

/// The shortest credential that is looked for inside of longer texts. A shorter one would be found by chance.
const MIN_PART: usize = 12;

/// The names of members that hold a credential, in lower case without `_` and `-`.
const SECRET_MEMBERS: [&str; 9] = [
    "accesstoken",
    "apikey",
    "authorization",
    "clientsecret",
    "cookie",
    "idtoken",
    "password",
    "refreshtoken",
    "token",
];

/// The credentials that a request came with.
#[derive(Default)]
pub(super) struct Secrets(Vec<Box<str>>);

impl Secrets {
    /// Those in its headers, and in what the host says of its sender.
    pub(super) fn of<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>, sender_json: Option<&str>) -> Self {
        let mut secrets = Self::default();
        headers.filter(|(name, _)| is_secret_header(name)).for_each(|(_, value)| secrets.add(secret_of(value)));
        if let Some(sender) = sender_json.and_then(|json| serde_json::from_str(json).ok()) {
            secrets.collect(sender);
        }
        secrets
    }

    fn add(&mut self, secret: &str) {
        if !secret.is_empty() {
            self.0.push(secret.into());
        }
    }

    /// The texts of members that hold credentials, at any depth.
    fn collect(&mut self, value: &RawValue) {
        match Shape::of(value) {
            Some(Shape::List(items)) => items.into_iter().for_each(|item| self.collect(item)),
            Some(Shape::Object(members)) => {
                for (name, value) in members {
                    match Shape::of(value) {
                        Some(Shape::Text(secret)) if is_secret_member(&name) => self.add(secret_of(&secret)),
                        _ => self.collect(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a text holds one of them.
    pub(super) fn are_in(&self, text: &str) -> bool {
        self.0.iter().any(|secret| *text == **secret || (secret.len() >= MIN_PART && text.contains(&**secret)))
    }

    /// The value without the members and items that hold one of them. None if nothing is left, or it cannot be read.
    pub(super) fn removed_from(&self, json: &str) -> Option<String> {
        self.removed(serde_json::from_str(json).ok()?)
    }

    fn removed(&self, value: &RawValue) -> Option<String> {
        match Shape::of(value)? {
            Shape::Text(text) => (!self.are_in(&text)).then(|| value.get().to_owned()),
            Shape::Other(json) => Some(json.to_owned()),
            Shape::List(items) => {
                let left: Vec<String> = items.into_iter().filter_map(|item| self.removed(item)).collect();
                Some(format!("[{}]", left.join(",")))
            }
            Shape::Object(members) => {
                let left = members.into_iter().filter_map(|(name, value)| self.removed_member(&name, value));
                Some(format!("{{{}}}", left.collect::<Vec<_>>().join(",")))
            }
        }
    }

    fn removed_member(&self, name: &str, value: &RawValue) -> Option<String> {
        let is_secret = is_secret_member(name) && matches!(Shape::of(value), Some(Shape::Text(_)));
        if is_secret || self.are_in(name) {
            return None;
        }
        Some(format!("{}:{}", serde_json::to_string(name).ok()?, self.removed(value)?))
    }
}

fn is_secret_member(name: &str) -> bool {
    SECRET_MEMBERS.contains(&&*plain(name))
}
