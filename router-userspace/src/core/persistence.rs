//! Cookie persistence: a cookie that names the instance which served a client, so that the client's later connections go there.
//!
//! The cookie is sealed: encrypted, so that it says nothing about what is behind the router, and authenticated, so that
//! only the router can make one (XChaCha20-Poly1305, whose nonces are long enough to be drawn at random). It is bound to its name.
//! What is inside: a version, the generation, the time of issue in seconds since 1970 (both 32 bits, big-endian), and the instance's name.

use std::fmt;
use std::time::{Duration, SystemTime};

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use data_encoding::BASE64URL_NOPAD;
use router_common::abi::reason::CookieEvent;

/// Random bytes that make each cookie unique.
pub const NONCE_LEN: usize = 24;
/// Bytes of one key.
pub const KEY_LEN: usize = 32;

const VERSION: u8 = 1;
const HEADER_LEN: usize = 9;
const TAG_LEN: usize = 16;
/// The longest value that is looked into, in bytes: a name of 255 bytes fits.
const MAX_VALUE_LEN: usize = (NONCE_LEN + HEADER_LEN + 255 + TAG_LEN).div_ceil(3) * 4;
/// How far the clock of another router that issued a cookie may be ahead, in seconds.
const CLOCK_TOLERANCE: u32 = 300;

/// A moment as cookies tell it: whole seconds since 1970.
pub fn unix_time(clock: SystemTime) -> u32 {
    let since = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(u32::MAX)
}

/// The keys of cookies: the first seals, and all of them open, so that a key can be replaced without losing anybody.
#[derive(Clone)]
pub struct Keys(Vec<XChaCha20Poly1305>);

impl Keys {
    /// `None` without a key.
    pub fn new(keys: &[[u8; KEY_LEN]]) -> Option<Self> {
        (!keys.is_empty()).then(|| Self(keys.iter().map(|key| XChaCha20Poly1305::new(key.into())).collect()))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// When a browser sends a cookie along with requests that other sites cause (RFC 6265bis §5.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

impl SameSite {
    fn attribute(self) -> &'static str {
        match self {
            Self::Strict => "; SameSite=Strict",
            Self::Lax => "; SameSite=Lax",
            Self::None => "; SameSite=None",
        }
    }
}

/// A rule's cookie.
#[derive(Clone, Debug)]
pub struct Persistence {
    /// The cookie's name.
    pub cookie: String,
    /// How long it is valid; zero for as long as the browser runs.
    pub age: Duration,
    pub domain: Option<String>,
    pub path: String,
    pub secure: bool,
    pub http_only: bool,
    pub same_site: Option<SameSite>,
    /// Cookies of any other generation are ignored.
    pub generation: u32,
    pub keys: Keys,
}

impl Persistence {
    /// A cookie's value that names `instance`, issued at `now` in seconds since 1970. The nonce must be random.
    pub fn seal(&self, instance: &str, nonce: &[u8; NONCE_LEN], now: u32) -> String {
        let mut inside = Vec::with_capacity(HEADER_LEN + instance.len());
        inside.push(VERSION);
        inside.extend(self.generation.to_be_bytes());
        inside.extend(now.to_be_bytes());
        inside.extend(instance.as_bytes());
        let payload = Payload { msg: &inside, aad: self.cookie.as_bytes() };
        let sealed = self.keys.0[0].encrypt(XNonce::from_slice(nonce), payload);
        let sealed = sealed.expect("a name is shorter than the 256 GiB that the cipher takes");
        BASE64URL_NOPAD.encode(&[nonce.as_slice(), &sealed].concat())
    }

    /// The name of the instance that a cookie's value names, or why the cookie is to be ignored.
    pub fn open(&self, value: &[u8], now: u32) -> Result<String, CookieEvent> {
        if value.len() > MAX_VALUE_LEN {
            return Err(CookieEvent::Forged);
        }
        let bytes = BASE64URL_NOPAD.decode(value).map_err(|_| CookieEvent::Forged)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN).ok_or(CookieEvent::Forged)?;
        let payload = || Payload { msg: sealed, aad: self.cookie.as_bytes() };
        let open = |key: &XChaCha20Poly1305| key.decrypt(XNonce::from_slice(nonce), payload()).ok();
        let inside = self.keys.0.iter().find_map(open).ok_or(CookieEvent::Forged)?;
        let (&[version, header @ ..], name) =
            inside.split_first_chunk::<HEADER_LEN>().ok_or(CookieEvent::Forged)?;
        if version != VERSION {
            return Err(CookieEvent::Generation);
        }
        let [g0, g1, g2, g3, t0, t1, t2, t3] = header;
        if u32::from_be_bytes([g0, g1, g2, g3]) != self.generation {
            return Err(CookieEvent::Generation);
        }
        let issued = u32::from_be_bytes([t0, t1, t2, t3]);
        let expired = !self.age.is_zero() && u64::from(now) > u64::from(issued) + self.age.as_secs();
        if expired || issued > now.saturating_add(CLOCK_TOLERANCE) {
            return Err(CookieEvent::Expired);
        }
        String::from_utf8(name.to_vec()).map_err(|_| CookieEvent::Forged)
    }

    /// The whole header field, with its line end.
    pub fn set_cookie(&self, value: &str) -> String {
        let mut line = format!("Set-Cookie: {}={value}", self.cookie);
        if !self.age.is_zero() {
            line += &format!("; Max-Age={}", self.age.as_secs());
        }
        if let Some(domain) = &self.domain {
            line += &format!("; Domain={domain}");
        }
        line += &format!("; Path={}", self.path);
        for (wanted, attribute) in [(self.secure, "; Secure"), (self.http_only, "; HttpOnly")] {
            if wanted {
                line += attribute;
            }
        }
        if let Some(same_site) = self.same_site {
            line += same_site.attribute();
        }
        line + "\r\n"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: [u8; NONCE_LEN] = [7; NONCE_LEN];
    const NOW: u32 = 1_800_000_000;

    fn persistence(keys: &[[u8; KEY_LEN]]) -> Persistence {
        Persistence {
            cookie: "RTID".to_owned(),
            age: Duration::ZERO,
            domain: None,
            path: "/".to_owned(),
            secure: false,
            http_only: true,
            same_site: Some(SameSite::Lax),
            generation: 1,
            keys: Keys::new(keys).unwrap(),
        }
    }

    #[test]
    fn a_cookie_names_its_instance_to_the_router_and_to_nobody_else() {
        let rule = persistence(&[[1; KEY_LEN]]);
        let value = rule.seal("gis1", &NONCE, NOW);
        assert_eq!(rule.open(value.as_bytes(), NOW + 9), Ok("gis1".to_owned()));
        let seen = BASE64URL_NOPAD.decode(value.as_bytes()).unwrap();
        assert!(!seen.windows(4).any(|bytes| bytes == b"gis1"));
        assert_eq!(
            rule.set_cookie(&value),
            format!("Set-Cookie: RTID={value}; Path=/; HttpOnly; SameSite=Lax\r\n")
        );
    }

    #[test]
    fn a_cookie_of_another_name_or_router_is_forged() {
        let rule = persistence(&[[1; KEY_LEN]]);
        let value = rule.seal("gis1", &NONCE, NOW);
        let renamed = Persistence { cookie: "OTHER".to_owned(), ..rule.clone() };
        assert_eq!(renamed.open(value.as_bytes(), NOW), Err(CookieEvent::Forged));
        let stranger = persistence(&[[2; KEY_LEN]]);
        assert_eq!(stranger.open(value.as_bytes(), NOW), Err(CookieEvent::Forged));
    }

    #[test]
    fn a_key_is_replaced_without_losing_anybody() {
        let (old, new) = ([1; KEY_LEN], [2; KEY_LEN]);
        let value = persistence(&[old]).seal("gis1", &NONCE, NOW);
        let both = persistence(&[new, old]);
        assert_eq!(both.open(value.as_bytes(), NOW), Ok("gis1".to_owned()));
        let renewed = both.seal("gis1", &NONCE, NOW);
        assert_eq!(persistence(&[new]).open(renewed.as_bytes(), NOW), Ok("gis1".to_owned()));
        assert_eq!(persistence(&[new]).open(value.as_bytes(), NOW), Err(CookieEvent::Forged));
    }

    #[test]
    fn a_cookie_of_another_generation_or_past_its_age_is_ignored() {
        let hour = Persistence { age: Duration::from_secs(3600), ..persistence(&[[1; KEY_LEN]]) };
        let value = hour.seal("gis1", &NONCE, NOW);
        let open = |rule: &Persistence, now| rule.open(value.as_bytes(), now);
        assert_eq!(open(&hour, NOW + 3600), Ok("gis1".to_owned()));
        assert_eq!(open(&hour, NOW + 3601), Err(CookieEvent::Expired));
        assert_eq!(open(&hour, NOW - CLOCK_TOLERANCE), Ok("gis1".to_owned()));
        assert_eq!(open(&hour, NOW - CLOCK_TOLERANCE - 1), Err(CookieEvent::Expired));
        assert_eq!(open(&Persistence { generation: 2, ..hour.clone() }, NOW), Err(CookieEvent::Generation));
        assert!(hour.set_cookie("v").contains("; Max-Age=3600; Path=/"));
    }

    proptest! {
        #[test]
        fn a_changed_cookie_is_forged(at in 0usize..80, to in any::<u8>(), cut in 0usize..80) {
            let rule = persistence(&[[1; KEY_LEN]]);
            let value = rule.seal("gis1", &NONCE, NOW).into_bytes();
            let mut changed = value.clone();
            let at = at % changed.len();
            changed[at] = to;
            if changed != value {
                prop_assert_eq!(rule.open(&changed, NOW), Err(CookieEvent::Forged));
            }
            prop_assert_eq!(rule.open(&value[..cut % value.len()], NOW), Err(CookieEvent::Forged));
        }

        #[test]
        fn any_bytes_are_survived(value in proptest::collection::vec(any::<u8>(), 0..600)) {
            let rule = persistence(&[[1; KEY_LEN]]);
            prop_assert_eq!(rule.open(&value, NOW), Err(CookieEvent::Forged));
        }
    }
}
