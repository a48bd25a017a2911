//! Which worker is told of a client: that of the processor which meets its first packet. A host spreads packets over its processors already, and a worker wakes
//! soonest where the packet is. Whatever follows goes to the same one.

/// The ring, of so many that are read.
#[inline(always)]
pub fn of(processor: u32, rings: u32) -> u8 {
    if rings == 0 { 0 } else { (processor % rings) as u8 }
}
