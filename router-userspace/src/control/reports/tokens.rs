//! Which pools a token is for. A reload exchanges all tokens at once.

use arc_swap::ArcSwap;

use crate::config::PoolToken;

/// The tokens of all pools. They are not shown by `Debug`.
#[derive(Debug, Default)]
pub struct Tokens(ArcSwap<Vec<PoolToken>>);

impl Tokens {
    pub fn new(tokens: Vec<PoolToken>) -> Self {
        Self(ArcSwap::from_pointee(tokens))
    }

    pub fn replace(&self, tokens: Vec<PoolToken>) {
        self.0.store(tokens.into());
    }

    /// The pools whose token this is. Every token is compared, and each to its end, so that how long it takes tells nothing.
    pub fn pools(&self, token: &[u8]) -> Vec<String> {
        let tokens = self.0.load();
        tokens.iter().filter(|own| own.token.is(token)).map(|own| own.pool.clone()).collect()
    }
}
