//! Words in memory that the kernel programs and the daemon share.
//!
//! Each word has one writer, and no word's meaning depends on another being written at the same moment; relaxed atomic
//! access is therefore enough. The BPF target has no 32-bit atomics in `core`, but every aligned access of it is one instruction.

macro_rules! shared {
    ($name:ident, $int:ty, $atomic:ident) => {
        #[doc = concat!("A shared `", stringify!($int), "`.")]
        #[cfg(not(target_arch = "bpf"))]
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(core::sync::atomic::$atomic);

        #[cfg(not(target_arch = "bpf"))]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(core::sync::atomic::$atomic::new(value))
            }

            #[inline(always)]
            pub fn get(&self) -> $int {
                self.0.load(core::sync::atomic::Ordering::Relaxed)
            }

            #[inline(always)]
            pub fn set(&self, value: $int) {
                self.0.store(value, core::sync::atomic::Ordering::Relaxed);
            }

            /// Sets a word that is 0, unless another CPU was first; returns what the word holds.
            pub fn fix_once(&self, value: $int) -> $int {
                use core::sync::atomic::Ordering::Relaxed;
                match self.0.compare_exchange(0, value, Relaxed, Relaxed) {
                    Ok(_) => value,
                    Err(first) => first,
                }
            }
        }

        #[cfg(not(target_arch = "bpf"))]
        impl $name {
            /// Sets a word that is `old`, after everything written before; returns what it was.
            pub fn swap_if(&self, old: $int, new: $int) -> $int {
                use core::sync::atomic::Ordering::{AcqRel, Acquire};
                match self.0.compare_exchange(old, new, AcqRel, Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }

            /// Adds, wrapping around, to a word that others add to as well.
            pub fn add(&self, count: $int) {
                self.0.fetch_add(count, core::sync::atomic::Ordering::AcqRel);
            }

            /// Sets a word so that whoever sees the new value sees everything written before.
            pub fn publish(&self, value: $int) {
                self.0.store(value, core::sync::atomic::Ordering::Release);
            }
        }

        /// A copy of what the word holds now.
        impl Clone for $name {
            fn clone(&self) -> Self {
                Self::new(self.get())
            }
        }

        #[doc = concat!("A shared `", stringify!($int), "`.")]
        #[cfg(target_arch = "bpf")]
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(core::cell::UnsafeCell<$int>);

        // SAFETY: aligned loads and stores of this width are single instructions in BPF.
        #[cfg(target_arch = "bpf")]
        unsafe impl Sync for $name {}

        #[cfg(target_arch = "bpf")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(core::cell::UnsafeCell::new(value))
            }

            #[inline(always)]
            pub fn get(&self) -> $int {
                // SAFETY: valid and aligned, being a reference; see the `Sync` note.
                unsafe { self.0.get().read_volatile() }
            }

            #[inline(always)]
            pub fn set(&self, value: $int) {
                // SAFETY: as in `get`.
                unsafe { self.0.get().write_volatile(value) }
            }

            #[inline(always)]
            pub fn as_ptr(&self) -> *mut $int {
                self.0.get()
            }
        }
    };
}

shared!(Shared16, u16, AtomicU16);
shared!(Shared32, u32, AtomicU32);
shared!(Shared64, u64, AtomicU64);

const _: () = assert!(size_of::<Shared16>() == 2 && size_of::<Shared32>() == 4 && size_of::<Shared64>() == 8);
