//! Maglev tables (Eisenbud et al., NSDI 2016, §3.4): which member each of a prime number of places belongs to.
//!
//! Every member has a permutation of all places, made from its name alone: it begins at an offset and goes on by a skip. The members take turns, as often
//! as their weights say, and each takes the first place of its permutation that is still empty. So the places are shared evenly, and when a
//! member comes or goes nearly all places of the others stay theirs.

use super::consistent_hash::stable_hash;

/// A place that nobody fills: nobody has a weight.
pub const NOBODY: u32 = u32::MAX;

/// One who fills places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Makes its permutation; different for each.
    pub name: &'a str,
    /// Its share compared with the others'; with 0 it gets nothing.
    pub weight: u32,
}

/// The places of a table, as indexes into `members`. Members take turns in the order of their names, so the table does not depend on their order here.
///
/// # Panics
/// If `size` is less than 2. It has to be a prime; otherwise the table may never be filled.
pub fn fill(size: usize, members: &[Member<'_>]) -> Box<[u32]> {
    let mut order: Vec<u32> =
        (0..).zip(members).filter(|(_, member)| member.weight > 0).map(|(number, _)| number).collect();
    order.sort_by_key(|&number| members[number as usize].name);
    let mut places = vec![NOBODY; size].into_boxed_slice();
    let heaviest = members.iter().map(|member| u64::from(member.weight)).max().unwrap_or(0);
    let mut fillers: Vec<_> =
        order.iter().map(|&number| Filler::new(&members[number as usize], size)).collect();
    let mut empty = if order.is_empty() { 0 } else { size };
    'rounds: while empty > 0 {
        for (filler, &number) in fillers.iter_mut().zip(&order) {
            filler.credit += filler.weight;
            if filler.credit < heaviest {
                continue;
            }
            filler.credit -= heaviest;
            let place = filler.next_empty(&places);
            places[place] = number;
            empty -= 1;
            if empty == 0 {
                break 'rounds;
            }
        }
    }
    places
}

/// Whether a number is a prime, as the size of a table has to be.
pub fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= u64::from(number))
            .all(|divisor| u64::from(number) % divisor != 0)
}

/// The next prime that is not smaller.
pub fn prime_from(number: u32) -> u32 {
    (number..).find(|&number| is_prime(number)).unwrap_or(4_294_967_291)
}

/// One member on its way through the places.
struct Filler {
    weight: u64,
    credit: u64,
    next: usize,
    skip: usize,
}

impl Filler {
    fn new(member: &Member<'_>, size: usize) -> Self {
        let name = stable_hash(member.name.as_bytes());
        let size = size as u64;
        Self {
            weight: u64::from(member.weight),
            credit: 0,
            next: (name % size) as usize,
            // Not 0, and the size is a prime: every place is reached.
            skip: (name.rotate_left(32) % (size - 1) + 1) as usize,
        }
    }

    fn next_empty(&mut self, places: &[u32]) -> usize {
        loop {
            let place = self.next;
            self.next += self.skip;
            if self.next >= places.len() {
                self.next -= places.len();
            }
            if places[place] == NOBODY {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 65_537;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("instance{number}")).collect()
    }

    fn members<'a>(names: &'a [String], weight: impl Fn(usize) -> u32) -> Vec<Member<'a>> {
        names.iter().enumerate().map(|(number, name)| Member { name, weight: weight(number) }).collect()
    }

    fn counts(places: &[u32], members: usize) -> Vec<usize> {
        let mut counts = vec![0; members];
        places.iter().for_each(|&member| counts[member as usize] += 1);
        counts
    }

    #[test]
    fn places_are_shared_as_the_weights_say_to_within_one_percent() {
        let names = names(20);
        let weight = |number: usize| [100, 200, 50, 1_000, 75][number % 5];
        let members = members(&names, weight);
        let total: u32 = members.iter().map(|member| member.weight).sum();
        for (member, count) in members.iter().zip(counts(&fill(SIZE, &members), 20)) {
            let fair = SIZE as f64 * f64::from(member.weight) / f64::from(total);
            assert!((count as f64 - fair).abs() <= fair / 100.0, "{member:?} has {count} of {fair:.0}");
        }
    }

    #[test]
    fn removing_one_of_a_hundred_moves_at_most_two_percent_of_the_others_and_adding_it_back_restores_all() {
        let names = names(100);
        let all = members(&names, |_| 100);
        let before = fill(SIZE, &all);
        for removed in [0, 17, 50, 99] {
            let without = members(&names, |number| if number == removed { 0 } else { 100 });
            let after = fill(SIZE, &without);
            let others = before.iter().zip(&after).filter(|(old, _)| **old != removed as u32);
            let moved = others.clone().filter(|(old, new)| old != new).count();
            let share = moved as f64 / others.count() as f64;
            println!("without instance{removed}: {:.2} % of the others' places moved", share * 100.0);
            assert!(share <= 0.02, "{share}");
            assert!(after.iter().all(|&member| member != removed as u32));
        }
        assert_eq!(fill(SIZE, &all), before);
    }

    #[test]
    fn primes_are_told_from_other_numbers() {
        for prime in [2, 3, 251, 65_537, 655_373, 5_000_011] {
            assert!(is_prime(prime), "{prime}");
        }
        for other in [0, 1, 4, 65_535, 65_536, 655_371] {
            assert!(!is_prime(other), "{other}");
        }
        assert_eq!(prime_from(65_530), 65_537);
    }

    proptest! {
        #[test]
        fn the_order_of_members_does_not_matter(
            weights in prop::collection::vec(0u32..300, 1..12),
            shift in 0usize..12,
        ) {
            let names = names(weights.len());
            let straight = members(&names, |number| weights[number]);
            let mut turned = straight.clone();
            turned.rotate_left(shift % weights.len());
            let name = |members: &[Member<'_>], place: u32| members.get(place as usize).map(|member| member.name.to_owned());
            let (one, other) = (fill(1_009, &straight), fill(1_009, &turned));
            for (one, other) in one.iter().zip(&other) {
                prop_assert_eq!(name(&straight, *one), name(&turned, *other));
            }
        }
    }
}
