//! Header blocks of a peer, RFC 7541 §6: the decoder with its dynamic table.

use super::table::Table;
use super::{STATIC_TABLE, huffman, read_integer};
use crate::http::headers::{Class, HeaderList, is_valid_field};

/// Why a header block cannot be decoded. The table is lost with it: the connection has to end (COMPRESSION_ERROR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    #[error("header block ends inside a field")]
    Truncated,
    #[error("header block refers to table entry {0}, which does not exist")]
    NoSuchEntry(usize),
    #[error("header block has an invalid Huffman string")]
    Huffman,
    #[error("header table size update to {0}, above the size announced in SETTINGS")]
    SizeAboveSetting(usize),
    #[error("header table size update behind a field")]
    LateSizeUpdate,
}

/// Blocks up to this length are remembered, so that the same block again costs a comparison.
const REPEAT_BYTES: usize = 48;

/// The receiving half of HPACK for one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// What our SETTINGS_HEADER_TABLE_SIZE allows the peer.
    allowed: usize,
    /// The last block, if it read the table only, and the table's generation then.
    repeat: Vec<u8>,
    repeat_generation: u32,
}

impl Decoder {
    /// A decoder whose table may grow to `table_size` bytes, the value announced to the peer.
    pub fn new(table_size: usize) -> Self {
        Self {
            table: Table::new(table_size),
            allowed: table_size,
            repeat: Vec::new(),
            repeat_generation: 0,
        }
    }

    /// Decodes a whole block into `list`, which is cleared first — or left as it is when it already holds this very
    /// block: clients repeat their requests' blocks, and one that only reads the table means the same again as long as
    /// nobody wrote the table. So `list` has to be the same list each time, unchanged in between.
    ///
    /// Returns whether the list was decoded anew.
    pub fn decode(&mut self, block: &[u8], list: &mut HeaderList) -> Result<bool, HpackError> {
        if !block.is_empty() && self.repeat == block && self.repeat_generation == self.table.generation() {
            return Ok(false);
        }
        self.repeat.clear();
        list.clear();
        let generation = self.table.generation();
        self.decode_fields(block, list)?;
        if block.len() <= REPEAT_BYTES && generation == self.table.generation() && !list.is_truncated() {
            self.repeat.extend_from_slice(block);
            self.repeat_generation = generation;
        }
        Ok(true)
    }

    /// Forgets the remembered block, when the caller changed the list.
    pub fn forget(&mut self) {
        self.repeat.clear();
    }

    fn decode_fields(&mut self, block: &[u8], list: &mut HeaderList) -> Result<(), HpackError> {
        let mut position = 0;
        let mut fields = 0usize;
        while let Some(first) = block.get(position) {
            match first {
                0x80.. => {
                    let index = read_integer(block, &mut position, 7).ok_or(HpackError::Truncated)?;
                    self.indexed(index, list)?;
                }
                0x40..=0x7f => self.literal(block, &mut position, 6, true, list)?,
                0x20..=0x3f => {
                    if fields > 0 {
                        return Err(HpackError::LateSizeUpdate);
                    }
                    let size = read_integer(block, &mut position, 5).ok_or(HpackError::Truncated)?;
                    if size > self.allowed {
                        return Err(HpackError::SizeAboveSetting(size));
                    }
                    self.table.resize(size);
                    continue;
                }
                _ => self.literal(block, &mut position, 4, false, list)?,
            }
            fields += 1;
        }
        Ok(())
    }

    #[inline]
    fn indexed(&self, index: usize, list: &mut HeaderList) -> Result<(), HpackError> {
        let (class, valid, name, value) = self.entry(index)?;
        if list.admit(name.len(), value.len()) {
            list.push(class, valid, name, value);
        }
        Ok(())
    }

    #[inline]
    /// Class, validity, name and value of the entry at `index`.
    #[expect(clippy::type_complexity)]
    fn entry(&self, index: usize) -> Result<(Class, bool, &[u8], &[u8]), HpackError> {
        let place = index.checked_sub(1).ok_or(HpackError::NoSuchEntry(0))?;
        if let Some((name, value)) = STATIC_TABLE.get(place) {
            return Ok((STATIC_CLASSES[place], true, name.as_bytes(), value.as_bytes()));
        }
        let (entry, name, value) = self
            .table
            .get(place - STATIC_TABLE.len())
            .ok_or(HpackError::NoSuchEntry(index))?;
        Ok((entry.class, entry.valid, name, value))
    }

    /// A literal field: its name by index or as a string, its value as a string. Both are decoded into the list's
    /// buffer, from where the table takes its copy.
    fn literal(
        &mut self,
        block: &[u8],
        position: &mut usize,
        prefix: u32,
        insert: bool,
        list: &mut HeaderList,
    ) -> Result<(), HpackError> {
        let index = read_integer(block, position, prefix).ok_or(HpackError::Truncated)?;
        let start = list.buffer().len();
        let known = if index == 0 {
            read_string(block, position, list.buffer())?;
            None
        } else {
            let (class, _, name, _) = self.entry(index)?;
            list.buffer().extend_from_slice(name);
            Some(class)
        };
        let name_length = list.buffer().len() - start;
        read_string(block, position, list.buffer())?;
        let (name, value) = list.buffer()[start..].split_at(name_length);
        let class = known.unwrap_or_else(|| Class::of(name));
        let valid = is_valid_field(name, value);
        if insert {
            self.table.insert(&list.buffer()[start..], name_length, class, valid);
        }
        list.admit_and_commit(class, valid, start, name_length);
        Ok(())
    }
}

/// Appends the string at `*position` to `out`.
fn read_string(block: &[u8], position: &mut usize, out: &mut Vec<u8>) -> Result<(), HpackError> {
    let encoded = block.get(*position).ok_or(HpackError::Truncated)? & 0x80 != 0;
    let length = read_integer(block, position, 7).ok_or(HpackError::Truncated)?;
    let end = *position + length;
    let bytes = block.get(*position..end).ok_or(HpackError::Truncated)?;
    *position = end;
    if encoded {
        huffman::decode(bytes, out).map_err(|_| HpackError::Huffman)
    } else {
        out.extend_from_slice(bytes);
        Ok(())
    }
}

static STATIC_CLASSES: [Class; STATIC_TABLE.len()] = {
    let mut classes = [Class::Other; STATIC_TABLE.len()];
    let mut index = 0;
    while index < STATIC_TABLE.len() {
        classes[index] = Class::of(STATIC_TABLE[index].0.as_bytes());
        index += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::hex;

    /// Pseudo-header fields are kept apart and `:status` is refused in requests; for the RFC's examples all are
    /// listed together again.
    fn listed(list: &HeaderList) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let pseudo = [
            (":method", list.method()),
            (":scheme", list.scheme()),
            (":path", list.path()),
            (":authority", list.authority().unwrap_or_default()),
        ];
        let pseudo = pseudo.into_iter().filter(|(_, value)| !value.is_empty());
        pseudo
            .map(|(name, value)| (name.to_string(), text(value)))
            .chain(list.iter().map(|(name, value)| (text(name), text(value))))
            .collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    /// A block, the list it stands for, the table's size afterwards.
    type Step<'a> = (&'a str, &'a [(&'a str, &'a str)], usize);

    fn run(table_size: usize, steps: &[Step<'_>]) {
        let mut decoder = Decoder::new(table_size);
        let mut list = HeaderList::new(65_536);
        for (block, expected, size) in steps {
            decoder.decode(&hex(block), &mut list).unwrap();
            assert_eq!(listed(&list), pairs(expected), "{block}");
            assert_eq!(decoder.table.size(), *size, "{block}");
        }
    }

    #[test]
    fn literals_and_indices_of_rfc_7541_appendix_c_2() {
        run(
            4096,
            &[
                (
                    "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
                    &[("custom-key", "custom-header")],
                    55,
                ),
                ("040c2f73616d706c652f70617468", &[(":path", "/sample/path")], 55),
                ("100870617373776f726406736563726574", &[("password", "secret")], 55),
                ("82", &[(":method", "GET")], 55),
            ],
        );
    }

    const REQUESTS: [&[(&str, &str)]; 3] = [
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
            ("cache-control", "no-cache"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ],
    ];

    #[test]
    fn requests_of_rfc_7541_appendix_c_3_and_c_4() {
        run(
            4096,
            &[
                ("828684410f7777772e6578616d706c652e636f6d", REQUESTS[0], 57),
                ("828684be58086e6f2d6361636865", REQUESTS[1], 110),
                (
                    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
                    REQUESTS[2],
                    164,
                ),
            ],
        );
        run(
            4096,
            &[
                ("828684418cf1e3c2e5f23a6ba0ab90f4ff", REQUESTS[0], 57),
                ("828684be5886a8eb10649cbf", REQUESTS[1], 110),
                ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", REQUESTS[2], 164),
            ],
        );
    }

    /// Responses carry `:status`, which a request's list refuses; what is left of the examples is the table's work.
    #[test]
    fn responses_of_rfc_7541_appendix_c_5_and_c_6_evict_as_the_rfc_says() {
        let first: &[(&str, &str)] = &[
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ];
        let third: &[(&str, &str)] = &[
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
            ("location", "https://www.example.com"),
            ("content-encoding", "gzip"),
            ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ];
        run(
            256,
            &[
                (
                    "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e17\
                     68747470733a2f2f7777772e6578616d706c652e636f6d",
                    first,
                    222,
                ),
                ("4803333037c1c0bf", first, 222),
                (
                    "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d41\
                     53444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b207665727369\
                     6f6e3d31",
                    third,
                    215,
                ),
            ],
        );
        run(
            256,
            &[
                (
                    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97\
                     c8e9ae82ae43d3",
                    first,
                    222,
                ),
                ("4883640effc1c0bf", first, 222),
                (
                    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd\
                     5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                    third,
                    215,
                ),
            ],
        );
    }

    fn error(block: &str) -> HpackError {
        Decoder::new(4096)
            .decode(&hex(block), &mut HeaderList::new(1000))
            .unwrap_err()
    }

    #[test]
    fn broken_blocks_are_refused_by_name() {
        assert_eq!(error("80"), HpackError::NoSuchEntry(0));
        assert_eq!(error("be"), HpackError::NoSuchEntry(62));
        assert_eq!(error("7e0161"), HpackError::NoSuchEntry(62));
        assert_eq!(error("ff"), HpackError::Truncated);
        assert_eq!(error("40"), HpackError::Truncated);
        assert_eq!(error("400261"), HpackError::Truncated);
        assert_eq!(error("408100"), HpackError::Huffman);
        assert_eq!(error("8220"), HpackError::LateSizeUpdate);
        assert_eq!(error("3fe21f"), HpackError::SizeAboveSetting(4097));
        assert_eq!(error("ffffffffffffff"), HpackError::Truncated);
    }

    #[test]
    fn a_size_update_cuts_the_table() {
        let mut decoder = Decoder::new(4096);
        let mut list = HeaderList::new(1000);
        decoder
            .decode(&hex("400161016240016301643fe11f"), &mut list)
            .unwrap_err();
        let mut decoder = Decoder::new(4096);
        decoder.decode(&hex("40016101624001630164"), &mut list).unwrap();
        decoder.decode(&hex("3f03be"), &mut list).unwrap();
        assert_eq!(listed(&list), pairs(&[("c", "d")]));
        assert_eq!(decoder.decode(&hex("bf"), &mut list), Err(HpackError::NoSuchEntry(63)));
        decoder.decode(&hex("203fe11f"), &mut list).unwrap();
        assert_eq!(decoder.decode(&hex("be"), &mut list), Err(HpackError::NoSuchEntry(62)));
    }

    #[test]
    fn a_repeated_block_is_recognised_only_while_the_table_stands() {
        let mut decoder = Decoder::new(4096);
        let mut list = HeaderList::new(1000);
        decoder.decode(&hex("40016101624001630164"), &mut list).unwrap();
        assert_eq!(decoder.decode(&hex("82be"), &mut list), Ok(true));
        assert_eq!(decoder.decode(&hex("82be"), &mut list), Ok(false));
        assert_eq!(list.get("c"), Some(&b"d"[..]));
        assert_eq!(decoder.decode(&hex("4001650166"), &mut list), Ok(true));
        assert_eq!(decoder.decode(&hex("82be"), &mut list), Ok(true));
        assert_eq!((list.get("c"), list.get("e")), (None, Some(&b"f"[..])));
        decoder.forget();
        assert_eq!(decoder.decode(&hex("82be"), &mut list), Ok(true));
    }

    #[test]
    fn fields_beyond_the_limit_still_enter_the_table() {
        let mut decoder = Decoder::new(4096);
        let mut list = HeaderList::new(40);
        decoder.decode(&hex("40016101624001630164"), &mut list).unwrap();
        assert!(list.is_truncated());
        assert_eq!(list.iter().count(), 1);
        decoder.decode(&hex("be"), &mut list).unwrap();
        assert_eq!(listed(&list), pairs(&[("c", "d")]));
    }

    #[test]
    fn a_block_of_references_to_one_large_entry_costs_its_own_length_only() {
        let mut decoder = Decoder::new(4096);
        let mut list = HeaderList::new(8192);
        let mut block = vec![0x40, 1, b'a', 0x7f, 0xe1, 0x1d];
        block.extend(std::iter::repeat_n(b'v', 0x7f + 0x61 + (0x1d << 7)));
        decoder.decode(&block, &mut list).unwrap();
        decoder.decode(&[0xbe; 60_000], &mut list).unwrap();
        assert!(list.is_truncated());
        assert!(list.buffer().len() <= 8192);
    }
}
