//! The secrets with which instances show for which pool they may report: one a line of a pool's token file.

use std::fmt;
use std::path::PathBuf;

use subtle::ConstantTimeEq;

use super::super::reader::{Placed, Report};
use super::super::secret_file::{self, Unusable};

/// Shorter secrets can be guessed.
const MIN_BYTES: usize = 16;

const HOW_TO_MAKE: &str = "make one with: (umask 077; openssl rand -hex 32 > FILE)";

/// A secret. It is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// How long it takes does not tell how much of `other` was right.
    pub fn is(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// Every token of the file, or `None` after a problem.
pub(super) fn read(file: &Placed<PathBuf>, report: &Report<'_>) -> Option<Vec<Token>> {
    secret_file::read(file, ("token file", HOW_TO_MAKE), report, tokens)
}

fn tokens(lines: &mut dyn Iterator<Item = (usize, &str)>) -> Result<Vec<Token>, Unusable> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let token = |(number, line): (usize, &str)| {
        if line.len() < MIN_BYTES || !line.bytes().all(allowed) {
            let wanted = format!("{MIN_BYTES} or more letters, digits, or any of -._~+/=");
            return Err(Unusable::new(format!("has no token in line {number}: {wanted}"), HOW_TO_MAKE));
        }
        Ok(Token(line.as_bytes().to_vec()))
    };
    let tokens = lines.map(token).collect::<Result<Vec<_>, _>>()?;
    if tokens.is_empty() { Err(Unusable::new("holds no token", HOW_TO_MAKE)) } else { Ok(tokens) }
}
