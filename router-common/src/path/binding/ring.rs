//! Which worker is told of a client: always the same one, so that whatever a connection needs lies with one of them.

use super::super::family::Family;

/// The ring of a client, of so many that are read. Address and port as in the packet.
#[inline(always)]
pub fn of<I: Family>(client: [u32; 4], port: u16, rings: u32) -> u32 {
    let [a, b, c, d] = client;
    let address = if I::IS_IPV6 { a ^ b.rotate_left(8) ^ c.rotate_left(16) ^ d } else { a };
    // Fibonacci hashing: the upper bits depend on all of the number's.
    let mixed = (address ^ (port as u32).rotate_left(7)).wrapping_mul(0x9e37_79b1);
    ((mixed >> 16) * rings) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::binding::MAX_RINGS;
    use crate::wire::ipv4::Ipv4;
    use crate::wire::ipv6::Ipv6;

    /// How many of 4,096 clients each ring gets: one address with many ports, and many addresses with one port.
    fn shares<I: Family>(rings: usize) -> [[u32; MAX_RINGS]; 2] {
        let mut shares = [[0; MAX_RINGS]; 2];
        for number in 0..4_096u32 {
            let of_ports =
                of::<I>([0x0a4d_0102u32.to_be(); 4], (28_000 + number as u16).to_be(), rings as u32);
            let address = (0x0a4d_0000 + number).to_be();
            let of_addresses =
                of::<I>([0x77fd, 0, 0, address].map(|word| word | address), 80u16.to_be(), rings as u32);
            shares[0][of_ports as usize] += 1;
            shares[1][of_addresses as usize] += 1;
        }
        shares
    }

    #[test]
    fn clients_are_spread_over_the_rings_that_are_read_and_over_no_others() {
        for rings in 1..=MAX_RINGS {
            for shares in shares::<Ipv4>(rings).into_iter().chain(shares::<Ipv6>(rings)) {
                let fair = 4_096 / rings as u32;
                assert!(
                    shares[..rings].iter().all(|share| (fair / 2..=fair * 2).contains(share)),
                    "{shares:?}"
                );
                assert!(shares[rings..].iter().all(|share| *share == 0), "{shares:?}");
            }
        }
    }
}
