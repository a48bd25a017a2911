//! Byte buffers that connections borrow only while they hold bytes.
//!
//! Each worker keeps a few free ones: ten thousand idle connections hold no buffer at all, and a busy one takes and
//! returns the same warm one.

use std::cell::RefCell;
use std::mem::MaybeUninit;

/// Capacity in bytes of a buffer from the pool.
pub const CAPACITY: usize = 64 * 1024;
/// Free buffers kept per worker; more are given back to the allocator.
const KEPT: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes on their way: appended behind, consumed in front.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Buffer {
    /// An empty buffer of [`CAPACITY`] bytes.
    pub fn take() -> Self {
        let free = FREE.with(|free| free.borrow_mut().pop());
        Self { bytes: free.unwrap_or_else(|| Vec::with_capacity(CAPACITY)), consumed: 0 }
    }

    /// What has been appended and not consumed.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    pub fn is_empty(&self) -> bool {
        self.consumed == self.bytes.len()
    }

    /// Removes the first `count` pending bytes.
    pub fn consume(&mut self, count: usize) {
        self.consumed += count;
        debug_assert!(self.consumed <= self.bytes.len());
    }

    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Room that [`Self::filled`] may declare filled.
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.bytes.spare_capacity_mut()
    }

    /// Appends `count` bytes that have been written to [`Self::spare`].
    ///
    /// # Safety
    /// The first `count` bytes of `spare()` have been initialised.
    pub unsafe fn filled(&mut self, count: usize) {
        debug_assert!(count <= self.bytes.capacity() - self.bytes.len());
        // SAFETY: the caller has initialised these bytes, and they lie within the capacity.
        unsafe { self.bytes.set_len(self.bytes.len() + count) }
    }

    /// The same buffer, holding `bytes` instead of what it held.
    pub fn refilled(mut self, bytes: &[u8]) -> Self {
        self.bytes.clear();
        self.consumed = 0;
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Gives access for appending by means of [`std::io::Write`] and the like.
    pub fn as_vec(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() != CAPACITY {
            return;
        }
        bytes.clear();
        // A thread that is ending keeps none.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT {
                free.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_comes_back_empty() {
        let mut buffer = Buffer::take();
        buffer.append(b"hello");
        buffer.consume(2);
        assert_eq!(buffer.pending(), b"llo");
        let place = buffer.bytes.as_ptr();
        drop(buffer);
        let again = Buffer::take();
        assert_eq!(again.bytes.as_ptr(), place, "the warm one comes first");
        assert!(again.is_empty() && again.bytes.capacity() == CAPACITY);
    }

    #[test]
    fn a_buffer_that_has_grown_is_not_kept() {
        let mut buffer = Buffer::take();
        buffer.append(&vec![1; CAPACITY + 1]);
        drop(buffer);
        FREE.with(|free| assert!(free.borrow().iter().all(|bytes| bytes.capacity() == CAPACITY)));
    }
}
