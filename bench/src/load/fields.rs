//! The header blocks of calls, HPACK by hand (RFC 7541 §6).
//!
//! The first call of a method on a connection puts its fields into the server's dynamic table, as real clients do, and
//! every later call names them by index: six bytes. A server that announces a smaller table than the usual gets
//! literals each time.

/// The dynamic table that HTTP/2 starts with; our few fields fit it well.
const TABLE_BYTES: u32 = 4096;
/// Index of the newest entry of the dynamic table.
const NEWEST: usize = 62;
/// Entries, counted from the oldest, of the fields that all methods share: :authority, content-type, te.
const SHARED: [usize; 3] = [0, 2, 3];
/// The entry of the first call's :path, between them since it comes before fields without a colon.
const FIRST_PATH: usize = 1;

pub struct Fields {
    authority: String,
    indexed: bool,
    /// Entries in the table.
    inserted: usize,
    /// Per path, its entry.
    entries: Vec<Option<usize>>,
    /// Per path, the block of later calls.
    blocks: Vec<[u8; 6]>,
}

impl Fields {
    /// For a server that announced a table of `table_bytes`.
    pub fn new(authority: String, paths: usize, table_bytes: u32) -> Self {
        Self {
            authority,
            indexed: table_bytes >= TABLE_BYTES,
            inserted: 0,
            entries: vec![None; paths],
            blocks: vec![[0; 6]; paths],
        }
    }

    /// Appends the block of a call of `path`, the one numbered `which`.
    #[inline]
    pub fn write(&mut self, out: &mut Vec<u8>, which: usize, path: &str) {
        if self.entries[which].is_some() {
            out.extend_from_slice(&self.blocks[which]);
        } else {
            self.introduce(out, which, path);
        }
    }

    fn introduce(&mut self, out: &mut Vec<u8>, which: usize, path: &str) {
        let first = self.inserted == 0;
        out.extend_from_slice(&[0x83, 0x86]);
        if first {
            push_name(out, 1, self.indexed);
            push_string(out, &self.authority);
        }
        push_name(out, 4, self.indexed);
        push_string(out, path);
        if first {
            push_name(out, 31, self.indexed);
            push_string(out, "application/grpc");
            push_name(out, 0, self.indexed);
            push_string(out, "te");
            push_string(out, "trailers");
        }
        if !self.indexed {
            return;
        }
        self.entries[which] = Some(if first { FIRST_PATH } else { self.inserted });
        self.inserted += if first { SHARED.len() + 1 } else { 1 };
        if !first {
            out.extend(SHARED.map(|entry| index(self.inserted, entry)));
        }
        for (entry, block) in self.entries.iter().zip(&mut self.blocks) {
            let Some(entry) = *entry else { continue };
            let [authority, content, te] = SHARED.map(|shared| index(self.inserted, shared));
            *block = [0x83, 0x86, index(self.inserted, entry), authority, content, te];
        }
    }
}

/// The byte that names an entry of a table of `inserted` entries.
fn index(inserted: usize, entry: usize) -> u8 {
    let index = NEWEST + (inserted - 1 - entry);
    assert!(index < 127, "an index of one byte");
    0x80 | index as u8
}

/// A literal's first byte or bytes: `name` is an entry of the static table, 0 for a name that follows.
fn push_name(block: &mut Vec<u8>, name: u8, index: bool) {
    match (index, name) {
        (true, _) => block.push(0x40 | name),
        (false, ..15) => block.push(name),
        (false, _) => block.extend_from_slice(&[0x0f, name - 15]),
    }
}

fn push_string(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127, "{text:?} is too long for a length of one byte");
    block.push(text.len() as u8);
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringd::http::HeaderList;
    use ringd::http::hpack::Decoder;

    #[test]
    fn blocks_decode_to_what_was_asked() {
        for table in [4096, 0] {
            let mut fields = Fields::new("127.0.0.1:2379".into(), 3, table);
            let mut decoder = Decoder::new(table as usize);
            let mut list = HeaderList::new(4096);
            for which in [1, 1, 0, 1, 2, 0, 2, 1] {
                let path = ["/a.B/C", "/d.E/F", "/g.H/I"][which];
                let mut block = Vec::new();
                fields.write(&mut block, which, path);
                decoder.decode(&block, &mut list).unwrap();
                assert_eq!((list.method(), list.scheme()), (&b"POST"[..], &b"http"[..]));
                assert_eq!(list.path(), path.as_bytes());
                assert_eq!(list.authority(), Some(&b"127.0.0.1:2379"[..]));
                assert_eq!(list.get("content-type"), Some(&b"application/grpc"[..]));
                assert_eq!(list.get("te"), Some(&b"trailers"[..]));
            }
            let mut block = Vec::new();
            fields.write(&mut block, 2, "/g.H/I");
            assert_eq!(block.len() == 6, table > 0);
        }
    }
}
