//! Which of many strings are prefixes of a given one, found with one binary search.
//!
//! Sorted, every string stands behind its own prefixes. So all prefixes of a text are also prefixes of the greatest
//! string that is not greater than the text, and a link from each string to its longest proper prefix finds them all.

/// No shorter prefix.
const NONE: u32 = u32::MAX;

/// A set of byte strings, each with a value.
#[derive(Clone, Debug)]
pub(super) struct Prefixes<V> {
    entries: Box<[Entry<V>]>,
}

#[derive(Clone, Debug)]
struct Entry<V> {
    text: Box<[u8]>,
    value: V,
    /// The longest proper prefix of `text` in the set.
    shorter: u32,
}

impl<V> Prefixes<V> {
    /// The texts are different from each other.
    pub(super) fn new(texts: impl IntoIterator<Item = (Box<[u8]>, V)>) -> Self {
        let entry = |(text, value)| Entry { text, value, shorter: NONE };
        let mut entries: Vec<Entry<V>> = texts.into_iter().map(entry).collect();
        entries.sort_by(|a, b| a.text.cmp(&b.text));
        // The prefixes of the entry before, longest last.
        let mut open: Vec<u32> = Vec::new();
        for index in 0..entries.len() {
            while let Some(&last) = open.last()
                && !entries[index].text.starts_with(&entries[last as usize].text)
            {
                open.pop();
            }
            entries[index].shorter = open.last().copied().unwrap_or(NONE);
            open.push(index as u32);
        }
        Self { entries: entries.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The values of all strings with which `text` begins, longest first.
    pub(super) fn of<'a>(&'a self, text: &[u8]) -> impl Iterator<Item = &'a V> + use<'a, V> {
        let greater = self.entries.partition_point(|entry| *entry.text <= *text);
        let mut next = greater.checked_sub(1);
        let common = next.map_or(0, |index| common_length(&self.entries[index].text, text));
        std::iter::from_fn(move || {
            loop {
                let entry = &self.entries[next?];
                next = (entry.shorter != NONE).then_some(entry.shorter as usize);
                if entry.text.len() <= common {
                    return Some(&entry.value);
                }
            }
        })
    }
}

fn common_length(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_the_same_as_by_looking_at_each(
            texts in proptest::collection::btree_set("[ab]{0,5}", 0..30),
            text in "[ab]{0,7}",
        ) {
            let set = Prefixes::new(texts.iter().map(|text| (text.as_bytes().into(), text.clone())));
            let mut plainly: Vec<&String> = texts.iter().filter(|one| text.starts_with(one.as_str())).collect();
            plainly.sort_by_key(|text| std::cmp::Reverse(text.len()));
            prop_assert_eq!(set.of(text.as_bytes()).collect::<Vec<_>>(), plainly);
        }
    }
}
