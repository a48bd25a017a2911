//! `flows`: connections that travel through the kernel.

use std::io::Write;

use super::Failure;
use super::arguments::FlowFilter;
use super::client::Client;
use super::table::{Cell, Table, bytes, duration};
use crate::control::protocol::{FlowQuery, Flows};

pub(super) fn run(
    client: &Client,
    filter: &FlowFilter,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let query = FlowQuery {
        instance: filter.instance.clone(),
        client: filter.client.clone(),
        listener: filter.listener.clone(),
        count: filter.count.then_some(1),
        limit: Some(filter.limit as usize),
    };
    // Encoding strings and numbers as a query cannot fail.
    let query = serde_urlencoded::to_string(&query).unwrap_or_default();
    let answer = client.get::<Flows>(&format!("/v1/flows?{query}"))?;
    if answer.print_json(json, out)? {
        return Ok(());
    }
    let Flows { count, flows } = answer.value;
    let Some(flows) = flows else {
        writeln!(out, "{count}")?;
        return Ok(());
    };
    let titles = [
        "CLIENT",
        "LISTENER",
        "RULE",
        "INSTANCE",
        "SOURCE",
        "STATE",
        ">AGE",
        ">IDLE",
        ">TO INSTANCE",
        ">TO CLIENT",
    ];
    let mut table = Table::new(&titles);
    for flow in &flows {
        table.row(vec![
            Cell::new(flow.client),
            Cell::new(flow.listener.clone().unwrap_or_else(|| flow.vip.to_string())),
            Cell::optional(flow.rule.as_ref()),
            Cell::new(flow.instance.clone().unwrap_or_else(|| flow.instance_address.to_string())),
            Cell::new(flow.source),
            Cell::new(&flow.state),
            Cell::number(duration(flow.age_seconds)),
            Cell::number(duration(flow.idle_seconds)),
            Cell::number(bytes(flow.bytes_to_instance)),
            Cell::number(bytes(flow.bytes_to_client)),
        ]);
    }
    table.print(out)?;
    if flows.len() < count {
        writeln!(
            out,
            "{} of {count} flows; --limit shows more, --instance, --client and --listener fewer",
            flows.len()
        )?;
    }
    Ok(())
}
