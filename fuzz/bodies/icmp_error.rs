//! Any ICMP errors about any flow's packets, over both versions of IP: carried as a plain model says, or left alone; and no mark moves.

use crate::bench::check::carry_as_the_model_says;
use crate::bench::error::ErrorCase;
use crate::bench::ip::Ip;

pub fn check(bytes: &[u8]) {
    let case = ErrorCase::draw(bytes);
    for ip in Ip::BOTH {
        let table = case.flow.table(ip);
        for error in &case.errors {
            carry_as_the_model_says(&table, &error.frame(ip, &case.flow));
        }
    }
}
