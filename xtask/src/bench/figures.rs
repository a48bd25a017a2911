//! Medians over the rounds, and ratios within each round: what disturbs the machine disturbs neighbours alike.

use serde::Serialize;

use super::contender::Contender;
use super::workload::{Measurement, Workload};

/// One contender at one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub workload: Workload,
    pub contender: Contender,
    pub unit: &'static str,
    /// Median, and the least and the greatest, over the rounds.
    pub rate: f64,
    pub least: f64,
    pub greatest: f64,
    /// Medians of what one GB, request or connection costs.
    pub cost_unit: &'static str,
    pub gateway_cost: f64,
    pub machine_cost: f64,
    /// Medians of the rate divided by the other contender's in the same round.
    pub to_routing: Option<f64>,
    pub to_haproxy_http: Option<f64>,
    /// Share of the connections that were handed off; `None` if the contender is not the router.
    pub handed_off: Option<f64>,
}

/// In the order of workloads and contenders; those without a single measurement are left out.
pub fn of(measurements: &[Measurement]) -> Vec<Figure> {
    let pairs = Workload::ALL.into_iter().flat_map(|workload| Contender::ALL.map(|one| (workload, one)));
    pairs.filter_map(|(workload, contender)| figure(measurements, workload, contender)).collect()
}

fn figure(measurements: &[Measurement], workload: Workload, contender: Contender) -> Option<Figure> {
    let own: Vec<&Measurement> =
        measurements.iter().filter(|one| one.workload == workload && one.contender == contender).collect();
    let over = |value: fn(&Measurement) -> f64| median(own.iter().map(|one| value(one)).collect());
    let rates = || own.iter().map(|one| one.rate());
    let (handed_off, requests) = own
        .iter()
        .filter_map(|one| one.handed_off)
        .fold((0, 0), |sum, turn| (sum.0 + turn.0, sum.1 + turn.1));
    Some(Figure {
        workload,
        contender,
        unit: workload.unit(),
        rate: over(Measurement::rate)?,
        least: rates().fold(f64::INFINITY, f64::min),
        greatest: rates().fold(0.0, f64::max),
        cost_unit: workload.cost_unit(),
        gateway_cost: over(Measurement::gateway_cost)?,
        machine_cost: over(Measurement::machine_cost)?,
        to_routing: ratio(measurements, workload, contender, Contender::Routing, Measurement::rate),
        to_haproxy_http: ratio(measurements, workload, contender, Contender::HaproxyHttp, Measurement::rate),
        handed_off: (requests > 0).then(|| handed_off as f64 / requests as f64),
    })
}

/// The median, over the rounds that have both, of one contender's value divided by another's.
pub fn ratio(
    measurements: &[Measurement],
    workload: Workload,
    contender: Contender,
    other: Contender,
    value: fn(&Measurement) -> f64,
) -> Option<f64> {
    let find = |round, contender| {
        let same =
            |one: &&Measurement| (one.round, one.workload, one.contender) == (round, workload, contender);
        measurements.iter().find(same)
    };
    let of_round = |one: &Measurement| Some(value(one) / value(find(one.round, other)?));
    let own = measurements.iter().filter(|one| one.workload == workload && one.contender == contender);
    median(own.filter_map(of_round).filter(|ratio| ratio.is_finite()).collect())
}

/// `None` of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn measurement(round: usize, contender: Contender, rate: u64) -> Measurement {
        Measurement {
            round,
            workload: Workload::KeepAlive,
            contender,
            amount: rate,
            seconds: 1.0,
            gateway_cpu: 0.5,
            machine_cpu: 1.0,
            handed_off: contender.is_router().then_some((rate / 2, rate)),
        }
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        // In the second round the machine was busy with something else.
        let measurements = [
            measurement(0, Contender::Routing, 1000),
            measurement(0, Contender::RouterAuto, 900),
            measurement(1, Contender::Routing, 100),
            measurement(1, Contender::RouterAuto, 90),
            measurement(2, Contender::Routing, 1100),
            measurement(2, Contender::RouterAuto, 990),
        ];
        let figures = of(&measurements);
        let [routing, auto] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!((routing.rate, routing.least, routing.greatest), (1000.0, 100.0, 1100.0));
        assert_eq!((routing.to_routing, routing.to_haproxy_http), (Some(1.0), None));
        assert!((auto.to_routing.unwrap() - 0.9).abs() < 1e-9);
        assert_eq!((routing.handed_off, auto.handed_off), (None, Some(0.5)));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
