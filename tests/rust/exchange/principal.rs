//! Runs `tests/vectors/principal.json`: who finds whose session. And what holds for users made at random.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tailrope_core::exchange::{IDENTITY_HEADERS, Member, Principal, Requester, Rule, Unidentified};

use crate::kit::dice::Dice;
use crate::kit::vectors::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    opens: Request,
    asks: Request,
    finds: bool,
    /// Nobody can tell whose requests these are.
    #[serde(default)]
    refused: bool,
    /// Whether both count for one bound; as `finds` says where it is not told.
    same_account: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    named: Option<String>,
    user: Option<Value>,
    /// The user as JSON text, where a value of JSON would lose something.
    user_json: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl Request {
    fn principal(&self) -> Result<Option<Principal>, Unidentified> {
        let user_json = self.user_json.clone().or_else(|| self.user.as_ref().map(Value::to_string));
        let credentials: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert!(credentials.iter().all(|(name, _)| IDENTITY_HEADERS.contains(name)), "{credentials:?}");
        let named = self.named.as_deref();
        Requester { named, user_json: user_json.as_deref(), log_user: None, credentials: &credentials }.principal()
    }
}

#[test]
fn i7_principals() {
    let all = vectors::<Vector>(include_str!("../../vectors/principal.json"));
    let (same, other): (Vec<_>, Vec<_>) = all.iter().partition(|(_, vector)| vector.finds);
    assert!(same.len() >= 80 && other.len() >= 80, "{} {}", same.len(), other.len());
    for (name, vector) in all {
        let (owner, requester) = (vector.opens.principal(), vector.asks.principal());
        // Somebody who cannot be identified equals nobody, also in the same request.
        let finds = matches!((&owner, &requester), (Ok(owner), Ok(requester)) if owner == requester);
        assert_eq!(finds, vector.finds, "{name}: {owner:?}, {requester:?}");
        assert_eq!((owner.is_err(), requester.is_err()), (vector.refused, vector.refused), "{name}");
        let account = |principal: &Result<Option<Principal>, _>| {
            principal.as_ref().ok().and_then(Option::as_ref).map(|principal| principal.account().to_owned())
        };
        if finds || vector.same_account.is_some() {
            let same_account = vector.same_account.unwrap_or(true);
            assert_eq!(account(&owner) == account(&requester), same_account, "{name}: the bound");
        }
    }
}

#[test]
fn i7_a_principal_says_nothing_of_what_it_was_made_from() {
    let secret = [("authorization", "Bearer secret")];
    let principals = [
        Requester { named: Some("alice"), ..Requester::default() },
        Requester { user_json: Some(r#"{"sub":"alice"}"#), ..Requester::default() },
        Requester { credentials: &secret, ..Requester::default() },
    ];
    for requester in principals {
        let principal = requester.principal().unwrap().expect("somebody");
        for hash in [principal.identity(), principal.account()] {
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        }
    }
}

#[test]
fn i7_credentials_count_in_any_order_of_the_headers() {
    let headers = [("authorization", "Bearer 1"), ("x-api-key", "2")];
    let turned = [headers[1], headers[0]];
    let of = |credentials| Requester { credentials, ..Requester::default() }.principal();
    assert_eq!(of(&headers), of(&turned));
}

#[test]
fn i7_what_is_no_json_identifies_nobody() {
    for user_json in
        ["", "x", "{", "null", "true", "\"\"", "[]", "{}", "[null]", r#"{"admin":true}"#, r#"{"id":1,"id":2}"#]
    {
        for credentials in [&[][..], &[("authorization", "Bearer 1")]] {
            let requester = Requester { user_json: Some(user_json), credentials, ..Requester::default() };
            assert_eq!(requester.principal(), Err(Unidentified), "{user_json}");
        }
    }
}

#[test]
fn i7_the_rule_that_decides_is_known() {
    let rule = |requester: Requester<'_>| requester.principal().unwrap().expect("somebody").rule();
    let credentials = |name: &'static str, value: &'static str| {
        let headers = [(name, value)];
        rule(Requester { credentials: &headers, ..Requester::default() })
    };
    assert_eq!(credentials("authorization", "Bearer x"), Rule::Credential);
    assert_eq!(credentials("authorization", "Hawk id=\"a\", mac=\"b\""), Rule::Signature);
    assert_eq!(credentials("x-forwarded-user", "a"), Rule::Proxy);
    assert_eq!(credentials("authorization", "DPoP e30.eyJzdWIiOiJhbGljZSJ9.x"), Rule::Token);
    assert_eq!(rule(Requester { user_json: Some(r#"{"plan":"pro"}"#), ..Requester::default() }), Rule::UserFacts);
}

const NAMES: [&str; 30] = [
    "sub",
    "subject",
    "oid",
    "id",
    "_id",
    "userId",
    "user_id",
    "uid",
    "pk",
    "username",
    "login",
    "upn",
    "preferred_username",
    "email",
    "identity",
    "iss",
    "issuer",
    "tenant",
    "tenantId",
    "tid",
    "org",
    "org_id",
    "organization",
    "realm",
    "client_id",
    "clientId",
    "azp",
    "Sub",
    "USER-NAME",
    "EMAIL",
];
const NESTS: [&str; 5] = ["extra", "claims", "payload", "user", "upstream_claims"];
const OTHERS: [&str; 12] =
    ["credits", "__v", "unread", "ipaddr", "exp", "iat", "jti", "roles", "email_verified", "aud", "name", "picture"];

fn value(dice: &mut Dice) -> Value {
    match dice.below(5) {
        0 => json!(dice.below(4)),
        1 => json!(format!("v{}", dice.below(4))),
        2 => json!([format!("v{}", dice.below(4))]),
        3 => json!(9_007_199_254_740_992_u64 + dice.below(3)),
        _ => json!({"id": dice.below(3)}),
    }
}

fn user(dice: &mut Dice, depth: usize) -> Map<String, Value> {
    let mut user = Map::new();
    for _ in 0..=dice.below(3) {
        user.insert(NAMES[dice.place(NAMES.len())].into(), value(dice));
    }
    for _ in 0..dice.below(3) {
        user.insert(OTHERS[dice.place(OTHERS.len())].into(), value(dice));
    }
    if depth < 2 && dice.below(3) == 0 {
        user.insert(NESTS[dice.place(NESTS.len())].into(), Value::Object(self::user(dice, depth + 1)));
    }
    user
}

/// The objects of a user, with the place of each of their members.
fn places(user: &Map<String, Value>, path: &str, out: &mut Vec<(String, bool)>) {
    for (name, value) in user {
        let place = format!("{path}/{name}");
        match (Member::named(name), value) {
            (Some(Member::Nesting), Value::Object(inner)) => places(inner, &place, out),
            (_, Value::Object(inner)) if name == "user" => places(inner, &place, out),
            (member, _) => out.push((place, member.is_some())),
        }
    }
}

#[test]
fn i7_users_share_a_principal_if_and_only_if_all_agrees_that_names_or_places_them() {
    let mut dice = Dice::Seed(41);
    let of = |user: &Value| Requester { user_json: Some(&user.to_string()), ..Requester::default() }.principal();
    let (mut changed, mut ignored) = (0, 0);
    while changed + ignored < 4_000 {
        let before = Value::Object(user(&mut dice, 0));
        let Ok(Some(principal)) = of(&before) else { continue };
        if principal.rule() != Rule::User {
            continue;
        }
        let mut all = Vec::new();
        places(before.as_object().expect("it is one"), "", &mut all);
        let (place, counts) = &all[dice.place(all.len())];
        let mut after = before.clone();
        *after.pointer_mut(place).expect("it is there") = json!(format!("another {}", dice.below(1_000)));
        let found = of(&after).ok().flatten().as_ref() == Some(&principal);
        assert_eq!(found, !counts, "{before} {after} {place}");
        if *counts { changed += 1 } else { ignored += 1 }
    }
    assert!(changed > 500 && ignored > 500);
}
