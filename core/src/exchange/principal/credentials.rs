//! The headers that carry a credential, or in which a proxy names the user that it has authenticated, and what each says
//! about its owner: the same for every request of one user, as far as a credential shows whose it is.

use serde_json::value::RawValue;

use super::Rule;
use super::user::Facts;
use crate::protocol::base64url;

/// The headers that say who sends a request: credentials, and the headers in which proxies name a user.
pub const IDENTITY_HEADERS: [&str; 24] = [
    "authorization",
    "api-key",
    "cf-access-authenticated-user-email",
    "remote-email",
    "remote-user",
    "signature-input",
    "tailscale-user-login",
    "x-amzn-oidc-identity",
    "x-api-key",
    "x-auth-request-email",
    "x-auth-request-preferred-username",
    "x-auth-request-user",
    "x-auth-token",
    "x-authentik-uid",
    "x-authentik-username",
    "x-forwarded-email",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
    "x-goog-authenticated-user-email",
    "x-goog-authenticated-user-id",
    "x-ms-client-principal-id",
    "x-ms-client-principal-name",
    "x-pomerium-jwt-assertion",
    "x-remote-user",
];

/// Those whose value lets its owner in. The others name a user.
const SECRET: [&str; 5] = ["authorization", "api-key", "x-api-key", "x-auth-token", "x-pomerium-jwt-assertion"];

/// Whether the value of this header lets its owner in.
pub fn is_secret_header(name: &str) -> bool {
    SECRET.iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// The part of such a header's value that has to stay secret: what follows the scheme.
pub(in crate::exchange) fn secret_of(value: &str) -> &str {
    let value = value.trim();
    value.split_once(' ').map_or(value, |(_, secret)| secret.trim())
}

/// Schemes that sign a request, and the parameters that name the key. Everything else in them differs in each request.
const SIGNED: [(&str, &[&str]); 9] = [
    ("concealed", &["a", "k"]),
    ("digest", &["realm", "username", "username*"]),
    ("eg1-hmac-sha256", &["access_token", "client_token"]),
    ("hawk", &["id"]),
    ("hmac", &["username"]),
    ("mac", &["id", "kid"]),
    ("oauth", &["oauth_consumer_key", "oauth_token"]),
    ("scram-sha-256", &["sid"]),
    ("signature", &["keyid"]),
];

/// Schemes whose credential is the key and a signature, with a colon between them.
const KEY_AND_SIGNATURE: [&str; 3] = ["aws", "sharedkey", "sharedkeylite"];

/// Schemes that authenticate a connection, not a request.
const OF_CONNECTION: [&str; 3] = ["kerberos", "negotiate", "ntlm"];

/// What one header says about its owner. The strongest is the least.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Credential {
    /// What names the user of a JSON Web Token.
    Token(String),
    /// The scheme, and what names the key.
    Signature(String, String),
    /// A header in which a proxy names the user, and its value.
    Proxy(String, String),
    /// Any other, as it is.
    Opaque(String, String),
}

impl Credential {
    /// None for a header that says nothing about its owner.
    pub(super) fn read(name: &str, value: &str) -> Option<Self> {
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        if value.is_empty() {
            return None;
        }
        if name == "signature-input" {
            let keys = parameters(value).filter(|(name, _)| *name == "keyid").map(|(_, key)| key);
            let mut keys: Vec<&str> = keys.collect();
            keys.sort_unstable();
            keys.dedup();
            return (!keys.is_empty()).then(|| Self::Signature(name, format!("{keys:?}")));
        }
        if let Some(owner) = token_owner(secret_of(value)) {
            return Some(Self::Token(owner));
        }
        if name != "authorization" {
            return Some(if is_secret_header(&name) {
                Self::Opaque(name, value.to_owned())
            } else {
                Self::Proxy(name, value.to_owned())
            });
        }
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        let scheme = scheme.to_ascii_lowercase();
        if OF_CONNECTION.contains(&&*scheme) {
            return None;
        }
        match signer(&scheme, rest) {
            Some(key) => Some(Self::Signature(scheme, key)),
            // A scheme is the same in any case.
            None => Some(Self::Opaque(name, format!("{scheme} {}", rest.trim()))),
        }
    }

    /// What counts of it.
    pub(super) fn parts(&self) -> [&str; 3] {
        match self {
            Self::Token(owner) => ["token", owner, ""],
            Self::Signature(scheme, key) => ["signature", scheme, key],
            Self::Proxy(name, value) => ["proxy", name, value],
            Self::Opaque(name, value) => ["credential", name, value],
        }
    }

    pub(super) fn rule(&self) -> Rule {
        match self {
            Self::Token(_) => Rule::Token,
            Self::Signature(..) => Rule::Signature,
            Self::Proxy(..) => Rule::Proxy,
            Self::Opaque(..) => Rule::Credential,
        }
    }
}

/// What names the key of a signed request; none if the scheme signs nothing, or nothing in it names a key.
fn signer(scheme: &str, rest: &str) -> Option<String> {
    if KEY_AND_SIGNATURE.contains(&scheme) {
        return rest.split_once(':').map(|(key, _)| key.trim().to_owned());
    }
    let mut found: Vec<(String, &str)> = Vec::new();
    let (mut credential, mut is_signed) = (None, false);
    let names = SIGNED.iter().find(|(known, _)| *known == scheme).map_or(&[][..], |(_, names)| names);
    for (name, value) in parameters(rest) {
        let name = name.to_ascii_lowercase();
        match &*name {
            // `AWS4-HMAC-SHA256` and the schemes like it: the key, then the day and the service.
            "credential" => credential = value.split('/').next(),
            "signature" => is_signed = true,
            _ => {}
        }
        if names.contains(&&*name) && !value.is_empty() {
            found.push((name, value));
        }
    }
    if names.is_empty() && is_signed {
        found.extend(credential.filter(|key| !key.is_empty()).map(|key| ("credential".to_owned(), key)));
    }
    found.sort_unstable();
    (!found.is_empty()).then(|| format!("{found:?}"))
}

/// The parameters `name=value` and `name="value"` of a header, between commas, semicolons or spaces.
fn parameters(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',', ';']);
            let end = rest.find(['=', ' ', ',', ';'])?;
            let (name, behind) = rest.split_at(end);
            let Some(behind) = behind.strip_prefix('=') else {
                rest = behind;
                continue;
            };
            let (value, behind) = match behind.strip_prefix('"') {
                Some(quoted) => {
                    let mut is_escaped = false;
                    let end = quoted.find(|character| {
                        let is_end = character == '"' && !is_escaped;
                        is_escaped = character == '\\' && !is_escaped;
                        is_end
                    });
                    end.map_or((quoted, ""), |end| (&quoted[..end], &quoted[end + 1..]))
                }
                None => behind.split_at(behind.find([',', ';', ' ']).unwrap_or(behind.len())),
            };
            rest = behind;
            return Some((name, value));
        }
    })
}

/// Issuer and subject of a JSON Web Token (RFC 7519), or what else in it names its user. The host has to verify the
/// token's signature.
fn token_owner(token: &str) -> Option<String> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let mut bytes = vec![0; payload.len()];
    let length = base64url::decode(payload.as_bytes(), &mut bytes)?;
    let claims = std::str::from_utf8(&bytes[..length]).ok()?;
    #[derive(serde::Deserialize)]
    struct Registered<'a> {
        #[serde(borrow)]
        iss: Option<&'a RawValue>,
        #[serde(borrow)]
        sub: Option<&'a RawValue>,
    }
    let registered: Registered<'_> = serde_json::from_str(claims).ok()?;
    match registered.sub {
        Some(subject) => {
            let issuer = registered.iss.map_or("null", RawValue::get);
            Facts::of_claims(&format!("{{\"iss\":{issuer},\"sub\":{}}}", subject.get()))
        }
        None => Facts::of_claims(claims),
    }
}
