//! One line of an access log: the combined format of nginx and Apache, with or without hosts, and HAProxy's HTTP format.
//!
//! The three have in common a client's address before the first `[`, a time in brackets, and the request line in
//! double quotes. Quoted texts that follow are `Referer`, `User-Agent` and, where it is logged, the host.

use std::net::{IpAddr, SocketAddr};

use super::arrival::Arrival;

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Malformed {
    #[error("longer than 65536 bytes")]
    TooLong,
    #[error("not UTF-8")]
    NotText,
    #[error("no client's address before the time")]
    NoClient,
    #[error("no time such as [30/Nov/2026:13:55:36 +0000]")]
    NoTime,
    #[error("no request line such as \"GET / HTTP/1.1\" in double quotes")]
    NoRequest,
}

/// How many brackets are looked into for the time.
const MAX_BRACKETS: usize = 8;

/// What a line says: a request, and its time in seconds since 1970.
pub(super) fn parse(line: &str) -> Result<(Arrival, f64), Malformed> {
    let (before, at, rest) = time(line).ok_or(Malformed::NoTime)?;
    let words: Vec<&str> = before.split_whitespace().collect();
    let mut addresses = words.iter().enumerate().filter_map(|(place, word)| Some((place, address(word)?)));
    // HAProxy's stands directly before the time, whatever syslog has written before it.
    let with_port = words.last().is_some_and(|word| word.parse::<SocketAddr>().is_ok());
    let found = if with_port { addresses.next_back() } else { addresses.next() };
    let (place, client) = found.ok_or(Malformed::NoClient)?;
    let mut quoted = Quoted { rest };
    let (method, target, http10) = quoted.find_map(|text| request_line(&text)).ok_or(Malformed::NoRequest)?;
    let mut after = quoted.map(Some).chain(std::iter::repeat(None));
    let mut field = |name: &str| {
        let value = after.next().flatten().filter(|value| value != "-" && !value.is_empty());
        value.map(|value| (name.to_owned(), value))
    };
    let fields = ["Referer", "User-Agent"].into_iter().filter_map(&mut field).collect();
    // Apache's `vhost_combined` begins with the host; nginx is usually told to end with it.
    let host = match place {
        0 => field("Host").map(|(_, host)| host),
        1 => words.first().map(|&host| host.to_owned()),
        _ => None,
    };
    let is_host = |host: &String| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
    // Behind the address stand the identity, which nobody logs, and the user.
    let user = words.get(place + 2).filter(|&&user| user != "-").map(|&user| user.to_owned());
    let host = host.filter(is_host);
    Ok((Arrival { client, method, target, http10, host, user, fields, ..Arrival::default() }, at))
}

/// The first time in brackets, with what stands before and behind it. Syslog's process number is in brackets too.
fn time(line: &str) -> Option<(&str, f64, &str)> {
    line.match_indices('[').take(MAX_BRACKETS).find_map(|(place, _)| {
        let (time, rest) = line[place + 1..].split_once(']')?;
        Some((&line[..place], seconds(time)?, rest))
    })
}

/// An address, with or without a port.
fn address(word: &str) -> Option<IpAddr> {
    let with_port = || word.parse::<SocketAddr>().map(|address| address.ip());
    word.parse::<IpAddr>().or_else(|_| with_port()).ok().map(|address| address.to_canonical())
}

fn request_line(text: &str) -> Option<(String, String, bool)> {
    let mut words = text.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let good = words.next().is_none()
        && !method.is_empty()
        && method.bytes().all(is_token)
        && (target.starts_with('/') || target == "*")
        && version.starts_with("HTTP/");
    good.then(|| (method.to_owned(), target.to_owned(), version == "HTTP/1.0"))
}

/// The texts in double quotes, with `\"`, `\\` and `\xHH` replaced by what they stand for.
struct Quoted<'a> {
    rest: &'a str,
}

impl Iterator for Quoted<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (_, text) = self.rest.split_once('"')?;
        let mut bytes = Vec::new();
        let mut left = text.bytes().enumerate();
        while let Some((place, byte)) = left.next() {
            match byte {
                b'"' => {
                    self.rest = &text[place + 1..];
                    return Some(String::from_utf8_lossy(&bytes).into_owned());
                }
                b'\\' => match left.next()?.1 {
                    b'x' => {
                        let digits = text.get(place + 2..place + 4)?;
                        bytes.push(u8::from_str_radix(digits, 16).ok()?);
                        left.nth(1)?;
                    }
                    other => bytes.push(other),
                },
                other => bytes.push(other),
            }
        }
        None
    }
}

/// Seconds since 1970 of `10/Oct/2000:13:55:36 -0700`; HAProxy writes milliseconds and no zone.
fn seconds(time: &str) -> Option<f64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (date, clock) = time.split_once(':')?;
    let mut date = date.split('/');
    let day: i64 = date.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = date.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = date.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let (clock, zone) = clock.split_once(' ').unwrap_or((clock, "+0000"));
    let mut clock = clock.split(':').map(|part| part.parse::<f64>().ok().filter(|part| *part >= 0.0));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let (sign, zone) = zone.split_at_checked(1)?;
    let zone: f64 = zone.parse::<u16>().ok().map(|zone| f64::from(zone / 100 * 60 + zone % 100))?;
    let zone = if sign == "-" { -zone } else { zone };
    // Days of the civil calendar, counted from March on, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
    Some(days as f64 * 86_400.0 + hour * 3_600.0 + (minute - zone) * 60.0 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_combined_format_is_a_request() {
        let line = r#"10.1.2.3 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=\x22c HTTP/1.0" 200 2326 "http://x/" "Mozilla \"4\"""#;
        let (arrival, at) = parse(line).unwrap();
        assert_eq!(at, 971_211_336.0);
        assert_eq!(arrival.client, IpAddr::from([10, 1, 2, 3]));
        assert_eq!((arrival.method.as_str(), arrival.target.as_str()), ("GET", "/a?b=\"c"));
        assert_eq!((arrival.user.as_deref(), arrival.host, arrival.http10), (Some("frank"), None, true));
        let fields = [("Referer", "http://x/"), ("User-Agent", "Mozilla \"4\"")];
        assert_eq!(arrival.fields, fields.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn the_host_is_found_before_the_address_or_behind_the_agent() {
        let apache =
            r#"gis.example:443 10.1.2.3 - - [01/Jan/1970:00:00:01 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;
        let (arrival, at) = parse(apache).unwrap();
        assert_eq!((arrival.host.as_deref(), at, arrival.fields.len()), (Some("gis.example:443"), 1.0, 0));
        let nginx = r#"::1 - - [29/Feb/2024:23:59:59 +0000] "GET / HTTP/2.0" 200 1 "-" "curl" "gis.example""#;
        let (arrival, at) = parse(nginx).unwrap();
        assert_eq!((arrival.host.as_deref(), at), (Some("gis.example"), 1_709_251_199.0));
    }

    #[test]
    fn haproxys_line_is_one_too() {
        let line = r#"Feb  6 12:14:14 lb haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#;
        let (arrival, at) = parse(line.split_once("]: ").unwrap().1).unwrap();
        assert_eq!((arrival.target.as_str(), at), ("/index.html", 1_233_922_454.655));
        assert_eq!(arrival.client, IpAddr::from([10, 0, 1, 2]));
        assert_eq!(parse(line).unwrap().0, arrival, "with what syslog puts before it");
    }

    #[test]
    fn what_is_no_request_says_why() {
        let time = "[10/Oct/2000:13:55:36 -0700]";
        for (line, why) in [
            (String::new(), Malformed::NoTime),
            ("10.1.2.3 - - yesterday".to_owned(), Malformed::NoTime),
            (format!("nobody - - {time} \"GET / HTTP/1.1\" 200 1"), Malformed::NoClient),
            (format!("10.1.2.3 - - {time} \"\\x16\\x03\\x01\" 400 1"), Malformed::NoRequest),
            (format!("10.1.2.3 - - {time} \"GET / HTTP/1.1"), Malformed::NoRequest),
            (format!("10.1.2.3 - - {time} \"GET / \\x"), Malformed::NoRequest),
            ("10.1.2.3 - - [40/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\"".to_owned(), Malformed::NoTime),
        ] {
            assert_eq!(parse(&line).map(|(arrival, _)| arrival.target), Err(why), "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_whatever_is_in_it_makes_the_parser_panic(line in "\\PC*|[\"\\\\x0-9a-f\\[\\]/: ]*") {
            drop(parse(&line));
            drop(parse(&format!("10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] {line}")));
            drop(parse(&format!("10.0.0.1 - - [{line}] \"GET / HTTP/1.1\"")));
        }
    }
}
