//! One hash for all tables of this route: cheap, and with a random seed where somebody might aim at a bucket.
//!
//! Two rounds of multiply and fold over the address and a word. The same function runs in the daemon, which finds and removes what the kernel
//! programs have inserted.

/// Seeds the choice of an instance: the same on every router, so that two routers place a client alike.
pub const RING_SEED: u32 = 0x7265_6e67;
/// Tells the hash of answers from that of clients.
pub const REPLY_SALT: u32 = 0x9e37_79b9;

const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;
const THIRD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of an address and a word beside it (a port and what it belongs to).
#[inline(always)]
pub fn of(seed: u32, address: &[u32; 4], word: u32) -> u64 {
    let seed = (seed as u64 | (seed as u64) << 32) ^ THIRD;
    let mut hash = ((address[0] as u64) << 32 | word as u64) ^ seed;
    if address[1] | address[2] | address[3] != 0 {
        hash = (hash ^ (hash >> 32)).wrapping_mul(THIRD) ^ ((address[1] as u64) << 32 | address[2] as u64);
        hash = (hash ^ (hash >> 29)).wrapping_mul(SECOND) ^ address[3] as u64;
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(FIRST);
    hash = (hash ^ (hash >> 27)).wrapping_mul(SECOND);
    hash ^ (hash >> 31)
}

/// Maps a hash evenly onto `0..count`.
#[inline(always)]
pub const fn scale(hash: u32, count: u32) -> u32 {
    ((hash as u64 * count as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_clients_spread_evenly() {
        const BUCKETS: usize = 64;
        for seed in [0, 1, RING_SEED] {
            let mut counts = [0u32; BUCKETS];
            for client in 0..64_000u32 {
                let address = [u32::from_ne_bytes((0x0a00_0000 + client / 16).to_be_bytes()), 0, 0, 0];
                let hash = of(seed, &address, (1024 + client as u16 % 16).to_be().into());
                counts[scale((hash >> 32) as u32, BUCKETS as u32) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn every_part_of_an_ipv6_address_counts() {
        let hash = |address| of(7, &address, 9);
        let base = hash([1, 2, 3, 4]);
        for other in [[0, 2, 3, 4], [1, 0, 3, 4], [1, 2, 0, 4], [1, 2, 3, 0], [2, 1, 3, 4]] {
            assert_ne!(hash(other), base);
        }
    }
}
