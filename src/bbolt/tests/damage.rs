//! Damaged files: each kind of damage is named with its place, and nothing loops or panics.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const PAGE: usize = 4096;

fn whole() -> Vec<u8> {
    let contents = Contents::from([
        (b"empty".to_vec(), BTreeMap::new()),
        (b"key".to_vec(), records(40_000, |at| (at % 200) as usize)),
        (b"large".to_vec(), records(5, |at| at as usize * 30_000)),
    ]);
    written(&contents).unwrap()
}

fn failure(file: &[u8]) -> String {
    contents(&mut &file[..]).unwrap_err().to_string()
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The first page that is a branch, and the root of the second bucket, which is one too.
fn branches(file: &[u8]) -> Vec<usize> {
    let pages = (3..file.len() / PAGE).filter(|page| {
        let page = &file[page * PAGE..];
        page[8] == 1 && page[9] == 0 && u32::from_le_bytes(page[12..16].try_into().unwrap()) == 0
    });
    // Pages inside of large values hold other bytes than these.
    pages
        .filter(|page| file[page * PAGE..][..8] == (*page as u64).to_le_bytes())
        .collect()
}

/// Writes the bytes at the place, and expects an error with this page and reason.
fn expect(whole: &[u8], at: usize, bytes: &[u8], page: u64, reason: &str) {
    let mut file = whole.to_vec();
    put(&mut file, at, bytes);
    let message = failure(&file);
    let place = format!("test.db is damaged in page {page}, at offset ");
    assert!(
        message.starts_with(&place) && message.contains(reason),
        "{message}, not {reason}"
    );
}

#[test]
fn damage_of_leaves_is_named_with_its_place() {
    let whole = whole();
    let cases: &[(usize, &[u8], &str)] = &[
        (0, &[9], "another page's number"),
        (8, &[0x10], "neither branch nor leaf"),
        (10, &[0xff; 2], "more elements than room"),
        (12, &[0xff; 4], "beyond the file"),
        (16, &[2], "unknown kind"),
        (16, &[1], "value is too short"),
        (20, &[0xff; 2], "beyond its page"),
        (24, &[0], "a key is empty"),
        (24, &[0xff; 4], "a key is too long"),
        (28, &[0xff; 4], "a value is too long"),
    ];
    for (at, bytes, reason) in cases {
        expect(&whole, 3 * PAGE + at, bytes, 3, reason);
    }
}

#[test]
fn damage_of_branches_is_named_with_its_place() {
    let whole = whole();
    let branches = branches(&whole);
    let (low, top) = (branches[0] as u64, *branches.last().unwrap());
    assert_ne!(branches[0], top, "the tree has three levels");
    let at = branches[0] * PAGE;
    expect(&whole, at + 10, &[0, 0], low, "without children");
    let child = |page: u64, reason| expect(&whole, at + 24, &page.to_le_bytes(), page, reason);
    child(1 << 40, "outside of the file");
    child(1, "outside of the file");
    child(low, "not between the keys");
    child(11, "not between the keys");
}

#[test]
fn keys_have_to_ascend() {
    let keys = ["k1", "k2", "k3"].map(|key| (key.into(), b"v".to_vec()));
    let file = written(&Contents::from([(b"b".to_vec(), keys.into())])).unwrap();
    let at = file.windows(2).position(|bytes| bytes == b"k2").unwrap() + 1;
    for last in [b'1', b'0', b'3', b'4'] {
        let mut file = file.clone();
        file[at] = last;
        assert!(failure(&file).contains("not between the keys"));
    }
}

/// A branch whose only child is itself violates no order.
#[test]
fn a_loop_ends() {
    let mut file = written(&Contents::from([(b"b".to_vec(), records(400, |_| 90))])).unwrap();
    let branch = branches(&file)[0];
    put(&mut file, branch * PAGE + 10, &[1, 0]);
    put(&mut file, branch * PAGE + 24, &(branch as u64).to_le_bytes());
    assert!(failure(&file).contains("too deep"));
}

#[test]
fn the_newer_sound_meta_page_counts() {
    let whole = whole();
    let wanted = contents(&mut &whole[..]).unwrap();
    for page in [0, 1] {
        let mut file = whole.clone();
        file[page * PAGE + 40] ^= 1;
        assert!(contents(&mut &file[..]).unwrap() == wanted, "without meta page {page}");
        let opened = File::open(&mut &file[..], "test.db").unwrap();
        assert_eq!(opened.transaction(), 1 + page as u64);
    }
    let mut file = whole.clone();
    file[PAGE + 40] ^= 1;
    file[16] ^= 1;
    let message = failure(&file);
    let both = "of meta page 0 it is no bbolt meta page, of meta page 1 its checksum is wrong";
    assert!(message.contains(both), "{message}");
    assert!(failure(b"").contains("the file ends before it"));
    let cut = failure(&whole[..whole.len() - 1]);
    assert!(
        cut.contains("is cut") && cut.contains(&whole.len().to_string()),
        "{cut}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_changed_file_does_no_harm(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), heads_only in any::<bool>(),
    ) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            written(&Contents::from([
                (b"a".to_vec(), records(900, |at| (at % 90) as usize)),
                (b"b".to_vec(), records(3, |at| at as usize * 5_000)),
                (b"c".to_vec(), BTreeMap::new()),
            ])).unwrap()
        });
        let mut file = WHOLE.clone();
        for (at, byte) in changes {
            let mut at = at.index(file.len());
            if heads_only {
                at = at / PAGE * PAGE + at % 64;
            }
            file[at] = byte;
        }
        crate::bbolt::fuzz::file(&file);
        crate::bbolt::fuzz::sealed_file(&file);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..10_000)) {
        crate::bbolt::fuzz::file(&bytes);
    }
}
