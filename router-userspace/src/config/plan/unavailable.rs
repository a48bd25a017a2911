//! What happens when nobody can serve: pools that exist, and no way that leads back to a pool that was tried.

use std::collections::HashMap;

use super::super::file::{self, File};
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::super::suggest::closest;
use crate::core::pool::{self, PoolId};

/// The pools by name.
pub(super) struct PoolNames<'f> {
    numbers: HashMap<&'f str, PoolId>,
    file: &'f File,
}

impl<'f> PoolNames<'f> {
    pub fn of(file: &'f File) -> Self {
        let named = file
            .pools
            .iter()
            .zip(0..)
            .filter_map(|(pool, number)| Some((pool.name.as_ref()?, PoolId(number))));
        Self { numbers: named.map(|(name, id)| (name.value.as_str(), id)).collect(), file }
    }

    /// The pool that is named at `place`; `who` names it.
    pub fn find(
        &self,
        name: &str,
        place: &Placed<impl Sized>,
        who: &str,
        report: &Report<'_>,
    ) -> Option<PoolId> {
        let found = self.numbers.get(name).copied();
        if found.is_none() {
            let message = format!("{who} names pool `{name}`, which does not exist");
            let mut known: Vec<&str> = self.numbers.keys().copied().collect();
            known.sort_unstable();
            let help = match closest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => "add a [[pool]] with this name".to_owned(),
                None => format!("known pools: {}", known.join(", ")),
            };
            report.add(Problem::at(place.span.clone(), message).help(help));
        }
        found
    }

    /// The reaction that `who` asks for after the pools `before` were tried.
    pub fn resolve(
        &self,
        asked: Option<&Placed<file::OnUnavailable>>,
        before: &[PoolId],
        who: &str,
        report: &Report<'_>,
    ) -> Option<pool::OnUnavailable> {
        let asked = asked?;
        Some(match &asked.value {
            file::OnUnavailable::Status503 => pool::OnUnavailable::Status503,
            file::OnUnavailable::Reset => pool::OnUnavailable::Reset,
            file::OnUnavailable::Silent => pool::OnUnavailable::Silent,
            file::OnUnavailable::Queue(patience) => pool::OnUnavailable::Queue { patience: *patience },
            file::OnUnavailable::Pool(name) => {
                let next = self.find(name, asked, who, report)?;
                if let Some(way) = self.way_back(next, before) {
                    let message = format!("{who} leads back to a pool that was tried: {way}");
                    let help = "let the last pool of the way answer \"503\", \"reset\" or \"silent\", or name another pool";
                    report.add(Problem::at(asked.span.clone(), message).help(help));
                }
                pool::OnUnavailable::Pool(next)
            }
        })
    }

    /// The way from `next` on, as names, if it comes to one of the pools that were tried `before`. A cycle among other pools is
    /// reported where it is written.
    fn way_back(&self, next: PoolId, before: &[PoolId]) -> Option<String> {
        let mut way = before.first().map(|&pool| self.name(pool)).into_iter().collect::<Vec<_>>();
        let mut seen = Vec::new();
        let mut next = Some(next);
        while let Some(pool) = next.filter(|pool| !seen.contains(pool)) {
            way.push(self.name(pool));
            if before.contains(&pool) {
                return Some(way.join(" → "));
            }
            seen.push(pool);
            next = match self.file.pools[usize::from(pool.0)]
                .on_unavailable
                .as_ref()
                .map(|asked| &asked.value)
            {
                Some(file::OnUnavailable::Pool(name)) => self.numbers.get(name.as_str()).copied(),
                _ => None,
            };
        }
        None
    }

    fn name(&self, pool: PoolId) -> &'f str {
        self.file.pools[usize::from(pool.0)].name.as_ref().map_or("?", |name| &name.value)
    }

    /// Every pool's number, in order.
    pub fn all(&self) -> Vec<PoolId> {
        (0..self.file.pools.len()).map(|number| PoolId(number as u16)).collect()
    }
}
