//! "Did you mean": the known name nearest to one that is not known.

/// The candidate that differs least from `wanted`, if it is near enough to be a slip of the hand.
pub(super) fn closest<'a>(wanted: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing costs the product of both lengths: nobody mistypes a name of hundreds of characters.
    if wanted.len() > 64 {
        return None;
    }
    let folded = wanted.to_lowercase().replace('-', "_");
    let distance = |name: &str| strsim::osa_distance(&folded, &name.to_lowercase().replace('-', "_"));
    let (near, distance) = candidates
        .filter(|name| name.len() <= 64)
        .map(|name| (name, distance(name)))
        .min_by_key(|(_, d)| *d)?;
    (distance <= 1.max(wanted.chars().count() / 3)).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = || ["address", "name", "max_sessions"].into_iter();
        assert_eq!(closest("adress", known()), Some("address"));
        assert_eq!(closest("Max-Sessions", known()), Some("max_sessions"));
        assert_eq!(closest("nmae", known()), Some("name"));
        assert_eq!(closest("colour", known()), None);
        assert_eq!(closest(&"a".repeat(10_000), known()), None);
        assert_eq!(closest("x", std::iter::empty()), None);
    }
}
