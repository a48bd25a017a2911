//! The secrets with which instances show for which pool they may report.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

/// Shorter secrets can be guessed.
const MIN_BYTES: usize = 16;
/// Longest token file that is read.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read token_file {}: {source}; it must be a file that the daemon's user can read", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("token_file {} holds no token; write one into it, such as the output of: openssl rand -hex 32", .0.display())]
    Empty(PathBuf),
    #[error(
        "line {line} of token_file {} is not a token: 16 or more letters, digits, or any of -._~+/= are wanted; write the output of: openssl rand -hex 32",
        .path.display()
    )]
    Unusable { path: PathBuf, line: usize },
}

/// The tokens of all pools. They are not shown by `Debug`.
#[derive(Default)]
pub struct Tokens(Vec<(String, Vec<u8>)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(pool, _)| pool)).finish()
    }
}

impl Tokens {
    /// Reads the token file of each pool: one token a line.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<Self, TokenError> {
        let mut tokens = Self::default();
        for (pool, path) in files {
            let read = || {
                use io::Read as _;
                let mut text = String::new();
                std::fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
                Ok(text)
            };
            let text = read().map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
            let before = tokens.0.len();
            for (line, token) in (1..).zip(text.lines().map(str::trim)) {
                let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
                if token.is_empty() {
                    continue;
                }
                if token.len() < MIN_BYTES || !token.bytes().all(allowed) {
                    return Err(TokenError::Unusable { path: path.to_owned(), line });
                }
                tokens.0.push((pool.to_owned(), token.as_bytes().to_vec()));
            }
            if tokens.0.len() == before {
                return Err(TokenError::Empty(path.to_owned()));
            }
        }
        Ok(tokens)
    }

    /// The pools whose token this is. How long it takes does not tell how much of a token was right: every token is
    /// compared, and each to its end.
    pub fn pools(&self, token: &[u8]) -> Vec<&str> {
        let fits = |(_, own): &&(String, Vec<u8>)| bool::from(own.as_slice().ct_eq(token));
        self.0.iter().filter(fits).map(|(pool, _)| pool.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("router-token-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn each_line_is_a_token_so_that_it_can_be_changed_without_a_gap() {
        let web = file("two", "0123456789abcdef\n\n fedcba9876543210 \n");
        let maps = file("one", "0123456789abcdefg");
        let tokens = Tokens::read([("web", web.as_path()), ("maps", maps.as_path())]).unwrap();
        for path in [web, maps] {
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(tokens.pools(b"0123456789abcdef"), ["web"]);
        assert_eq!(tokens.pools(b"fedcba9876543210"), ["web"]);
        assert_eq!(tokens.pools(b"0123456789abcdefg"), ["maps"]);
        for wrong in [&b""[..], b"0123456789abcde", b"0123456789ABCDEF", b"0123456789abcdefgh"] {
            assert!(tokens.pools(wrong).is_empty());
        }
        assert!(!format!("{tokens:?}").contains("0123"), "secrets are not shown");
    }

    #[test]
    fn a_token_file_that_protects_nothing_is_refused() {
        let said = |text: &str| {
            let path = file("bad", text);
            let error = Tokens::read([("web", path.as_path())]).unwrap_err().to_string();
            std::fs::remove_file(path).unwrap();
            error
        };
        assert!(said("\n\n").contains("holds no token"));
        assert!(said("short").contains("line 1 of token_file"));
        assert!(said("0123456789abcdef\nwith space in between").contains("line 2 of token_file"));
        let missing = Tokens::read([("web", Path::new("/nonexistent/token"))]).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read token_file /nonexistent/token"));
    }
}
