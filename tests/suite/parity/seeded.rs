//! Randomness that repeats.

/// Bytes that are the same in every run (splitmix64).
pub struct Seeded(pub u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        let words = self.next() % 160;
        (0..words).flat_map(|_| self.next().to_ne_bytes()).collect()
    }
}
