//! Entry point for fuzzers: arbitrary bytes as a file.

use super::format::{META, Meta, PAGE_HEADER};
use super::{Bucket, Content, File, ReadError};

/// Elements that are visited at most: buckets inside of buckets multiply.
const ELEMENTS_MAX: usize = 100_000;

/// Opens the bytes as a file and walks everything it leads to. Whether the file was sound. What is visited has to be in
/// order and to lie in the file.
pub fn file(bytes: &[u8]) -> bool {
    let Ok(file) = File::open(&mut &bytes[..], "fuzz.db") else {
        return false;
    };
    let mut left = ELEMENTS_MAX;
    walk(&file, &file.root(), bytes, &mut left).is_ok()
}

/// As [`file`], with the first meta page's checksum made right.
pub fn sealed_file(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let meta = bytes
        .get_mut(PAGE_HEADER..)
        .and_then(|rest| rest.first_chunk_mut::<META>());
    meta.map(Meta::seal);
    file(&bytes)
}

fn walk(file: &File, bucket: &Bucket, mut bytes: &[u8], left: &mut usize) -> Result<(), ReadError> {
    let mut cursor = file.cursor(bucket);
    let mut last = Vec::new();
    loop {
        let nested = match cursor.next(&mut bytes)? {
            None => return Ok(()),
            Some(element) => {
                assert!(last.as_slice() < element.key, "keys ascend");
                last = element.key.to_vec();
                match element.content {
                    Content::Bucket(bucket) => Some(bucket),
                    Content::Value(value) => {
                        assert!(value.len() <= bytes.len(), "a value lies in the file");
                        None
                    }
                }
            }
        };
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        if let Some(bucket) = nested {
            walk(file, &bucket, bytes, left)?;
        }
    }
}
