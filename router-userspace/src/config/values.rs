//! Reads single values: durations, addresses, names, numbers and choices, each with a sentence for what is wrong.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use router_report::{format_duration, parse_duration};
use toml::de::DeValue;

use super::reader::describe;
use super::suggest::closest;

/// A value as it was found in the file.
pub(super) type Found<'a> = &'a DeValue<'a>;

/// Why a value is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    message: String,
    pub help: String,
}

impl Wrong {
    pub fn new(message: impl Into<String>) -> Wrong {
        Wrong { message: message.into(), help: String::new() }
    }

    /// The whole sentence about `key`.
    pub fn about(&self, key: &str) -> String {
        format!("`{key}` {}", self.message)
    }

    pub fn help(mut self, help: impl Into<String>) -> Wrong {
        self.help = help.into();
        self
    }
}

fn text<'a>(found: Found<'a>, wanted: &str) -> Result<&'a str, Wrong> {
    match found {
        DeValue::String(text) => Ok(text),
        other => Err(Wrong::new(format!("must be {wanted}, not {}", describe(other)))),
    }
}

/// Any string.
pub(super) fn string(found: Found<'_>) -> Result<String, Wrong> {
    text(found, "a string").map(str::to_owned)
}

pub(super) fn boolean(found: Found<'_>) -> Result<bool, Wrong> {
    match found {
        DeValue::Boolean(value) => Ok(*value),
        other => {
            Err(Wrong::new(format!("must be true or false, not {}", describe(other))).help("without quotes"))
        }
    }
}

/// A whole number within `range`.
pub(super) fn integer<T>(range: RangeInclusive<T>) -> impl Fn(Found<'_>) -> Result<T, Wrong>
where
    T: TryFrom<i128> + PartialOrd + std::fmt::Display,
{
    move |found| {
        let DeValue::Integer(number) = found else {
            let (low, high) = (range.start(), range.end());
            let message = format!("must be a whole number from {low} to {high}, not {}", describe(found));
            return Err(Wrong::new(message));
        };
        i128::from_str_radix(number.as_str(), number.radix())
            .ok()
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                Wrong::new(format!("must be from {} to {}, not {number}", range.start(), range.end()))
            })
    }
}

/// One of these values.
pub(super) fn choice<T: Clone>(
    known: &'static [(&'static str, T)],
) -> impl Fn(Found<'_>) -> Result<T, Wrong> {
    move |found| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let use_one = || match names.as_slice() {
            [only] => format!("use {only:?}"),
            [others @ .., last] => {
                let others: Vec<String> = others.iter().map(|name| format!("{name:?}")).collect();
                format!("use {} or {last:?}", others.join(", "))
            }
            [] => String::new(),
        };
        let DeValue::String(text) = found else {
            return Err(Wrong::new(format!("must be a string, not {}", describe(found))).help(use_one()));
        };
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == text.as_ref()) {
            return Ok(value.clone());
        }
        let help = match closest(text, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => use_one(),
        };
        Err(Wrong::new(format!("cannot be {}", describe(found))).help(help))
    }
}

/// A time with its unit, within `range`.
pub(super) fn duration(range: RangeInclusive<Duration>) -> impl Fn(Found<'_>) -> Result<Duration, Wrong> {
    move |found| {
        const EXAMPLE: &str =
            "a number and a unit (ms, s, m, h or d) in quotes, such as \"500ms\", \"10s\" or \"1m30s\"";
        let text = text(found, "a duration").map_err(|wrong| wrong.help(EXAMPLE))?;
        let Some(duration) = parse_duration(text) else {
            return Err(Wrong::new(format!("is not a duration: {}", describe(found))).help(EXAMPLE));
        };
        if range.contains(&duration) {
            return Ok(duration);
        }
        let (low, high) = (format_duration(*range.start()), format_duration(*range.end()));
        Err(Wrong::new(format!("must be from {low} to {high}, not {text}")))
    }
}

/// A name of ours, used in metrics, logs and commands.
pub(super) fn name(found: Found<'_>) -> Result<String, Wrong> {
    let text = text(found, "a name")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if (1..=64).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(text.to_owned());
    }
    let help = "1 to 64 letters, digits, '-', '_', '.' or ':'";
    Err(Wrong::new(format!("is not a usable name: {}", describe(found))).help(help))
}

/// A token of HTTP (RFC 9110 §5.6.2), such as a cookie's name.
pub(super) fn token(found: Found<'_>) -> Result<String, Wrong> {
    let text = string(found)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !text.is_empty() && text.len() <= 255 && text.bytes().all(allowed) {
        return Ok(text);
    }
    Err(Wrong::new(format!("is not a name that HTTP allows: {}", describe(found)))
        .help("use letters, digits, '-' and '_'"))
}

/// An address and port of a listener or an instance.
pub(super) fn socket_address(found: Found<'_>) -> Result<SocketAddr, Wrong> {
    const EXAMPLE: &str = "write \"10.0.1.1:80\", or \"[2001:db8::1]:80\" for IPv6";
    let text = text(found, "an address and port").map_err(|wrong| wrong.help(EXAMPLE))?;
    let Ok(address) = text.parse::<SocketAddr>() else {
        let help = if text.parse::<IpAddr>().is_ok() {
            "the port is missing: ".to_owned() + EXAMPLE
        } else if text.contains(|c: char| c.is_ascii_alphabetic()) && !text.contains("::") {
            "host names are not resolved: ".to_owned() + EXAMPLE
        } else {
            EXAMPLE.to_owned()
        };
        return Err(Wrong::new(format!("is not an address and port: {}", describe(found))).help(help));
    };
    usable(address.ip())?;
    if let SocketAddr::V6(v6) = address
        && v6.scope_id() != 0
    {
        return Err(Wrong::new(format!("must not name an interface: {text}")).help(EXAMPLE));
    }
    if address.port() == 0 {
        return Err(Wrong::new("must have a port from 1 to 65535, not 0"));
    }
    Ok(address)
}

/// An address without a port.
pub(super) fn ip_address(found: Found<'_>) -> Result<IpAddr, Wrong> {
    let text = text(found, "an IP address")?;
    let address: IpAddr = text.parse().map_err(|_| {
        let wrong = Wrong::new(format!("is not an IP address: {}", describe(found)));
        wrong.help("write \"10.0.2.1\" or \"fd00::1\", without a port or prefix length")
    })?;
    usable(address)?;
    Ok(address)
}

fn usable(address: IpAddr) -> Result<(), Wrong> {
    if address.is_multicast() || address == IpAddr::from([255, 255, 255, 255]) {
        return Err(Wrong::new(format!("must be a unicast address, not {address}")));
    }
    match address {
        IpAddr::V6(v6) => {
            match v6.to_ipv4_mapped() {
                Some(v4) => Err(Wrong::new(format!("is an IPv4 address in IPv6 form: {address}"))
                    .help(format!("write {v4}"))),
                None if v6.is_unicast_link_local() => Err(Wrong::new(format!(
                    "is a link-local address, which means nothing without its interface: {address}"
                ))
                .help("use a global address, or a unique local one such as fd00::1")),
                None => Ok(()),
            }
        }
        IpAddr::V4(_) => Ok(()),
    }
}

/// A range of ports such as `20000-59999`, both ends included.
pub(super) fn port_range(found: Found<'_>) -> Result<RangeInclusive<u16>, Wrong> {
    const HELP: &str = "write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\"";
    let text = text(found, "a range of ports").map_err(|wrong| wrong.help(HELP))?;
    let ends =
        text.split_once('-').map(|(low, high)| (low.trim().parse::<u16>(), high.trim().parse::<u16>()));
    match ends {
        Some((Ok(low), Ok(_))) if low < 1024 => {
            Err(Wrong::new(format!("must not use ports below 1024: {text}")).help(HELP))
        }
        Some((Ok(low), Ok(high))) if low > high => {
            Err(Wrong::new(format!("begins above its end: {text}")).help(format!("write \"{high}-{low}\"")))
        }
        Some((Ok(low), Ok(high))) => Ok(low..=high),
        _ => Err(Wrong::new(format!("is not a range of ports: {}", describe(found))).help(HELP)),
    }
}

/// An HTTP status, or a range of them such as `200-299`.
pub(super) fn status_range(found: Found<'_>) -> Result<RangeInclusive<u16>, Wrong> {
    const HELP: &str = "write statuses from 100 to 599, such as [200, \"300-399\"]";
    if let DeValue::Integer(_) = found {
        return integer(100..=599)(found).map(|status| status..=status).map_err(|wrong| wrong.help(HELP));
    }
    let text = text(found, "a status or a range of them").map_err(|wrong| wrong.help(HELP))?;
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse::<u16>(), high.trim().parse::<u16>()) {
        (Ok(low), Ok(high)) if low <= high && low >= 100 && high <= 599 => Ok(low..=high),
        _ => Err(Wrong::new(format!("is not a range of HTTP statuses: {}", describe(found))).help(HELP)),
    }
}

/// An absolute path of a file or folder.
pub(super) fn path(found: Found<'_>) -> Result<PathBuf, Wrong> {
    let text = text(found, "a path")?;
    if text.starts_with('/') && !text.contains('\0') {
        return Ok(PathBuf::from(text));
    }
    Err(Wrong::new(format!("must be an absolute path, not {}", describe(found))))
}

/// The path of a Unix socket. The kernel takes at most 107 bytes (`sun_path`).
pub(super) fn socket_path(found: Found<'_>) -> Result<PathBuf, Wrong> {
    let path = path(found)?;
    let length = path.as_os_str().len();
    if length > 107 {
        return Err(Wrong::new(format!("is too long for a Unix socket: {length} bytes"))
            .help("at most 107 bytes; use a shorter folder such as /run/router"));
    }
    Ok(path)
}

/// A network interface's name, as the kernel accepts it (`IFNAMSIZ`).
pub(super) fn interface(found: Found<'_>) -> Result<String, Wrong> {
    let text = text(found, "an interface name")?;
    let invalid = text.is_empty()
        || text.len() > 15
        || matches!(text, "." | "..")
        || text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if !invalid {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(format!("is not an interface name: {}", describe(found)))
        .help("1 to 15 characters, as `ip link` shows it"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_text_is_a_value_or_an_error(text in "\\PC{0,30}") {
            let value = DeValue::String(text.clone().into());
            let _ = (socket_address(&value), ip_address(&value), port_range(&value));
            let _ = (name(&value), path(&value), interface(&value), socket_path(&value), status_range(&value));
        }
    }
}
