//! Tests of the room: what is written is read again, and nothing that is read does harm.

mod damage;
mod model;

use super::{Content, File, Measure, ReadError, Source, WriteError, Writer};
use std::collections::BTreeMap;

/// Buckets, keys and values.
pub(crate) type Contents = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The file of these contents, made in two passes, taking bytes as soon as there are any.
pub(crate) fn written(contents: &Contents) -> Result<Vec<u8>, WriteError> {
    let mut measure = Measure::new();
    for (name, bucket) in contents {
        measure.bucket(name)?;
        for (key, value) in bucket {
            measure.put(key, value.len())?;
        }
    }
    let plan = measure.finish();
    let mut writer = Writer::new(plan.clone());
    let mut file = Vec::new();
    for (name, bucket) in contents {
        writer.bucket(name)?;
        for (key, value) in bucket {
            writer.put(key, value)?;
            assert!(writer.ready().is_multiple_of(4096));
            file.append(&mut writer.take());
        }
    }
    file.append(&mut writer.finish()?);
    assert_eq!(file.len() as u64, plan.length());
    Ok(file)
}

/// What a file holds, two levels of buckets deep.
pub(crate) fn contents(source: &mut dyn Source) -> Result<Contents, ReadError> {
    let file = File::open(source, "test.db")?;
    let mut contents = Contents::new();
    let mut buckets = file.cursor(&file.root());
    while let Some(element) = buckets.next(source)? {
        let Content::Bucket(bucket) = element.content else {
            panic!("the root has a value")
        };
        let keys = contents.entry(element.key.to_vec()).or_default();
        let mut cursor = file.cursor(&bucket);
        while let Some(element) = cursor.next(source)? {
            let Content::Value(value) = element.content else {
                continue;
            };
            keys.insert(element.key.to_vec(), value.to_vec());
        }
    }
    Ok(contents)
}

/// A bucket with `count` keys of 17 bytes, as etcd's records have.
pub(crate) fn records(count: u64, value_length: impl Fn(u64) -> usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let record = |at: u64| {
        let key = [&at.to_be_bytes()[..], b"_", &[0; 8]].concat();
        (key, vec![at as u8; value_length(at)])
    };
    (0..count).map(record).collect()
}
