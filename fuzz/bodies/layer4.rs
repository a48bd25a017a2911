//! Any packets of Layer-4 listeners, whatever the tables and whatever has come before, over both versions of IP: carried rightly or left alone, by TC and by
//! XDP alike, and the tables stay whole.

use crate::bench::case::Case;
use crate::bench::check::carry_and_check;
use crate::bench::ip::Ip;

pub fn check(bytes: &[u8]) {
    let case = Case::draw(bytes);
    for ip in Ip::BOTH {
        case.play(ip, &mut case.tables(ip), |tables, frame| carry_and_check(tables, frame));
    }
}
