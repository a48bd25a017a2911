//! Packet headers as they lie in memory: arrays of bytes with alignment 1, in network byte order.

pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;

/// IANA's numbers, in IPv4's protocol and IPv6's next-header field.
pub const PROTOCOL_TCP: u8 = 6;
/// That of UDP.
pub const PROTOCOL_UDP: u8 = 17;
pub const PROTOCOL_ICMP: u8 = 1;
pub const PROTOCOL_ICMPV6: u8 = 58;

/// A type that may be laid over any bytes of a packet.
///
/// # Safety
/// `repr(C)` with alignment 1, no padding, and valid for every bit pattern.
pub unsafe trait Wire: Copy {}

// SAFETY: one value behind the other, which leaves no gaps at alignment 1.
unsafe impl<T: Wire, const N: usize> Wire for [T; N] {}

/// The bytes of a header.
#[inline(always)]
pub fn bytes_of<T: Wire>(header: &T) -> &[u8] {
    // SAFETY: `Wire` types are bytes without gaps, and the reference covers all of them.
    unsafe { core::slice::from_raw_parts((&raw const *header).cast(), size_of::<T>()) }
}

macro_rules! net_integer {
    ($(#[$meta:meta])* $name:ident, $int:ty, $len:literal) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct $name(pub [u8; $len]);

        // SAFETY: a byte array.
        unsafe impl Wire for $name {}

        impl $name {
            /// The value in host byte order.
            #[inline(always)]
            pub fn get(&self) -> $int {
                <$int>::from_be(self.raw())
            }

            /// Stores a value given in host byte order.
            #[inline(always)]
            pub fn set(&mut self, value: $int) {
                self.set_raw(value.to_be());
            }

            /// The bytes as they lie in memory.
            #[inline(always)]
            pub fn raw(&self) -> $int {
                #[cfg(target_arch = "bpf")]
                // SAFETY: the reference is valid for reads; kernels that JIT with efficient unaligned access accept
                // any alignment in packet memory, and a byte-wise load costs a third more time per packet.
                return unsafe { *(self as *const Self as *const $int) };
                #[cfg(not(target_arch = "bpf"))]
                return <$int>::from_ne_bytes(self.0);
            }

            /// Stores the bytes as they shall lie in memory.
            #[inline(always)]
            pub fn set_raw(&mut self, value: $int) {
                #[cfg(target_arch = "bpf")]
                // SAFETY: as in `raw`; the reference is valid for writes.
                unsafe {
                    *(self as *mut Self as *mut $int) = value
                };
                #[cfg(not(target_arch = "bpf"))]
                {
                    self.0 = value.to_ne_bytes();
                }
            }
        }
    };
}

net_integer!(
    /// A 16-bit integer in network byte order.
    Net16, u16, 2
);
net_integer!(
    /// A 32-bit integer in network byte order.
    Net32, u32, 4
);
