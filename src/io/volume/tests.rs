//! Tests of the volume.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Allocate(u64, u64),
    Punch(u64, u64),
    Truncate(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let offset = 0..20_000u64;
    prop_oneof![
        (offset.clone(), prop::collection::vec(0..2u8, 1..9000)).prop_map(|(at, bytes)| Change::Write(at, bytes)),
        (offset.clone(), 1..9000u64).prop_map(|(at, length)| Change::Write(at, vec![0; length as usize])),
        (offset.clone(), 1..9000u64).prop_map(|(at, length)| Change::Allocate(at, length)),
        (offset.clone(), 1..9000u64).prop_map(|(at, length)| Change::Punch(at, length)),
        offset.prop_map(Change::Truncate),
    ]
}

proptest! {
    #[test]
    fn contents_are_those_of_a_plain_vector(changes in prop::collection::vec(change(), 1..20)) {
        let (mut contents, mut model) = (Contents::default(), Vec::<u8>::new());
        for change in changes {
            match change {
                Change::Write(at, bytes) => {
                    contents.write(at, &bytes);
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Change::Allocate(at, length) => {
                    let before = contents.allocated();
                    let missing = contents.missing(at, length);
                    contents.allocate(at, length);
                    prop_assert_eq!(contents.allocated(), before + missing);
                    model.resize(model.len().max((at + length) as usize), 0);
                }
                Change::Punch(at, length) => {
                    contents.punch(at, length);
                    let end = model.len().min((at + length) as usize);
                    if (at as usize) < end {
                        model[at as usize..end].fill(0);
                    }
                }
                Change::Truncate(length) => {
                    contents.truncate(length);
                    model.resize(length as usize, 0);
                }
            }
            prop_assert!(contents.to_vec() == model);
            prop_assert!(contents.allocated() <= contents.length().next_multiple_of(BLOCK));
        }
    }
}

#[test]
fn punching_gives_space_back_and_a_full_volume_refuses() {
    let mut volume = Volume::new();
    volume.capacity = Some(4 * BLOCK);
    let Ok(Outcome::Opened { file, .. }) = volume.run(Operation::Open {
        path: "/a".into(),
        mode: OpenMode::CreateNew,
    }) else {
        panic!("not opened");
    };
    let allocate = |blocks| Operation::Allocate {
        file,
        offset: 0,
        length: blocks * BLOCK,
    };
    assert!(volume.run(allocate(5)).unwrap_err().is_no_space());
    volume.run(allocate(4)).unwrap();
    volume
        .run(Operation::PunchHole {
            file,
            offset: BLOCK,
            length: 2 * BLOCK,
        })
        .unwrap();
    assert_eq!(volume.allocated(), 2 * BLOCK);
    volume.run(Operation::Remove { path: "/a".into() }).unwrap();
    assert_eq!(volume.allocated(), 2 * BLOCK, "an open file keeps its blocks");
    volume.run(Operation::Close { file }).unwrap();
    assert_eq!(volume.allocated(), 0);
}
