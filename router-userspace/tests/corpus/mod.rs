//! Heads that somebody might read differently.

/// Every byte at every place of a small request.
pub fn mutations() -> Vec<Vec<u8>> {
    let base = b"POST /a?b HTTP/1.1\r\nHost: a.example\r\nX-Y: v w\r\nContent-Length: 1\r\n\r\nz";
    let mut corpus = Vec::new();
    for place in 0..base.len() - 1 {
        for byte in
            [0, 1, 8, 9, 10, 11, 12, 13, 27, 31, 32, 34, 35, 37, 44, 46, 47, 48, 58, 59, 64, 65, 91, 92, 96]
                .into_iter()
                .chain([123, 127, 128, 133, 160, 194, 255])
        {
            let mut inserted = base.to_vec();
            inserted.insert(place, byte);
            let mut replaced = base.to_vec();
            replaced[place] = byte;
            corpus.extend([inserted, replaced]);
        }
        let mut removed = base.to_vec();
        removed.remove(place);
        corpus.push(removed);
    }
    corpus
}

/// What has led servers to read a head in two ways, or might.
pub fn classics() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let lines = [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: chunked ",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer_Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 1",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "Content-Length: 1",
        "Content-Length: 01",
        "Content-Length: +1",
        "Content-Length: -1",
        "Content-Length: 1,1",
        "Content-Length: 1\r\nContent-Length: 1",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length:",
        "Content-Length: 0x1",
        "Content-Length: 18446744073709551617",
        "Content-Length: 9223372036854775808",
        "Content-Length: 1 ",
        "Content-Length: 1\r\n 1",
        "X: a\r\n b",
        "X : a",
        "X\t: a",
        ": a",
        "X",
        "Host: b",
        "Connection: close",
        "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Connection: Transfer-Encoding",
        "Connection: Host",
        "Expect: 100-continue",
        "Expect: x",
        "Upgrade: h2c\r\nConnection: upgrade, http2-settings",
        "X: \u{e9}",
        "\u{e9}: x",
        "X: \0",
        "Trailer: Host",
        "TE: trailers",
        "Cookie: a=b; c",
        "Range: bytes=0-0",
    ];
    for line in lines {
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let body = if line.to_ascii_lowercase().contains("chunked") { "0\r\n\r\n" } else { "z" };
            corpus.push(format!("POST / {version}\r\nHost: a\r\n{line}\r\n\r\n{body}").into_bytes());
        }
    }
    let hosts = [
        "a",
        "A.Example",
        "a:80",
        "a:0",
        "a:65535",
        "a:65536",
        "a:",
        ":80",
        "a.",
        "a..",
        "a..b",
        ".a",
        "a b",
        "a,b",
        "a/b",
        "a?b",
        "a#b",
        "a@b",
        "a%41",
        "a_b",
        "a~b",
        "[::1]",
        "[::1]:80",
        "[::1",
        "[::1]x",
        "[1.2.3.4]",
        "127.0.0.1",
        "a\\b",
        "a;b",
        "a'b",
        "(a)",
        "*",
        "-a",
        "a-",
        "",
    ];
    for host in hosts {
        corpus.push(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes());
        corpus.push(format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes());
        corpus.push(format!("GET http://a/ HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes());
    }
    let targets = [
        "/",
        "//",
        "/./",
        "/a/../b",
        "/..",
        "/../a",
        "/%2e%2e/a",
        "/%2f",
        "/%00",
        "/%zz",
        "/%",
        "/a%20b",
        "/a;b=c",
        "/a\\b",
        "/<>",
        "/\"",
        "/{}",
        "/|",
        "/^",
        "/`",
        "/?",
        "/??",
        "/?a#b",
        "/#",
        "/a%c0%ae",
        "*",
        "a",
        "http://a",
        "http://a?b",
        "HTTP://a/",
        "https://a/",
        "ftp://a/",
        "a:80",
        "http:///",
        "http://a:b/",
        "/\u{7f}",
        "/~",
        "/:",
        "/@",
        "/a:80/",
    ];
    for target in targets {
        for method in ["GET", "OPTIONS", "CONNECT", "PATCH", "get", "FOO", "G-T", "G_T", "PRI"] {
            corpus.push(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes());
        }
    }
    for version in [
        "HTTP/1.1",
        "HTTP/1.0",
        "HTTP/1.2",
        "HTTP/2.0",
        "HTTP/0.9",
        "HTTP/11",
        "HTTP/1.10",
        "http/1.1",
        "HTTPS/1.1",
        "HTTP/1.1 ",
    ] {
        corpus.push(format!("GET / {version}\r\nHost: a\r\n\r\n").into_bytes());
    }
    for end in ["\n\n", "\r\n\n", "\n\r\n", "\r\r\n", "\r\n\r\r\n"] {
        corpus.push(format!("GET / HTTP/1.1\r\nHost: a{end}").into_bytes());
    }
    for start in ["\r\n", "\n", "\r\n\r\n", " ", "\t", "\0"] {
        corpus.push(format!("{start}GET / HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes());
    }
    corpus
}
