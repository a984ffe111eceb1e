//! The static and the dynamic table (RFC 7541, section 2.3 and appendix A).

use std::collections::VecDeque;

/// The static table; its first entry has index 1.
pub(super) static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// What an entry costs beyond its bytes (RFC 7541, section 4.1).
pub(super) const OVERHEAD: usize = 32;

#[derive(Debug)]
struct Entry {
    /// The name, and behind it the value.
    bytes: Box<[u8]>,
    name: usize,
}

/// The peer's dynamic table as its header blocks build it.
#[derive(Debug)]
pub(super) struct Dynamic {
    /// Newest first.
    entries: VecDeque<Entry>,
    size: usize,
    capacity: usize,
}

impl Dynamic {
    pub(super) fn new(capacity: usize) -> Self {
        Dynamic { entries: VecDeque::new(), size: 0, capacity }
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink_to(capacity);
    }

    /// An entry larger than the table empties it (RFC 7541, section 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + OVERHEAD;
        self.shrink_to(self.capacity.saturating_sub(size));
        if size <= self.capacity {
            self.size += size;
            self.entries.push_front(Entry { bytes: [name, value].concat().into(), name: name.len() });
        }
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.bytes.len() + OVERHEAD;
        }
    }

    /// The field at an index of both tables together: 1 is the first of the static one.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.entries.get(index - STATIC.len())?;
        entry.bytes.split_at_checked(entry.name)
    }
}
