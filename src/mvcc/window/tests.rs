//! The window against a sorted map, beside a writer, and by example.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn fields<'a>(key: &'a [u8], value: &'a [u8], main: i64) -> KeyValueView<'a> {
    KeyValueView {
        key,
        create_revision: main,
        mod_revision: main,
        version: 1,
        value,
        lease: 0,
    }
}

fn filled(records: i64) -> WindowWriter {
    let mut window = WindowWriter::new(1);
    let value = vec![b'v'; 10_000];
    for main in 2..2 + records {
        for sub in 0..3 {
            let previous = (main > 2).then(|| Revision::new(main - 1, sub));
            window.append(Revision::new(main, sub), previous, false, &fields(b"key", &value, main));
        }
    }
    window
}

#[test]
fn finds_records_across_blocks() {
    let window = filled(200);
    let view = window.view();
    for main in 2..202 {
        let record = view.get(Revision::new(main, 1)).unwrap();
        assert_eq!(record.fields().mod_revision, main);
        assert_eq!(record.key(), b"key");
        assert_eq!(record.previous, (main > 2).then(|| Revision::new(main - 1, 1)));
    }
    assert!(view.get(Revision::new(2, 3)).is_none());
    assert!(view.get(Revision::new(202, 0)).is_none());
    assert_eq!(view.scan(Revision::new(100, 2)).count(), 1 + 101 * 3);
    assert_eq!(view.scan(Revision::ZERO).count(), 600);
}

#[test]
fn a_view_shows_nothing_newer() {
    let mut window = filled(2);
    let view = window.view();
    window.append(Revision::new(4, 0), None, false, &fields(b"k", b"v", 4));
    assert_eq!(view.scan(Revision::ZERO).count(), 6);
    assert!(view.get(Revision::new(4, 0)).is_none());
    assert_eq!(window.view().scan(Revision::ZERO).count(), 7);
}

#[test]
fn a_tombstone_is_stored_as_its_key() {
    let mut window = WindowWriter::new(1);
    let event = KeyValueView {
        key: b"gone",
        mod_revision: 2,
        ..Default::default()
    };
    window.append(Revision::new(2, 0), None, true, &event);
    let view = window.view();
    let record = view.get(Revision::new(2, 0)).unwrap();
    assert!(record.tombstone);
    assert_eq!(record.stored(), b"\x0a\x04gone");
    assert_eq!(record.event(), b"\x0a\x04gone\x18\x02");
}

#[test]
fn trims_whole_blocks_that_the_pages_hold() {
    let mut window = filled(200);
    let before = window.view();
    let bytes = window.bytes();
    window.trim(1, 0);
    assert_eq!(window.bytes(), bytes, "nothing is held by the pages");
    window.trim(100, 0);
    let view = window.view();
    assert!(
        view.first_main() > 2 && view.first_main() <= 101,
        "{}",
        view.first_main()
    );
    for main in view.first_main()..202 {
        assert!((0..3).all(|sub| view.get(Revision::new(main, sub)).is_some()));
    }
    assert_eq!(
        before.scan(Revision::ZERO).count(),
        600,
        "an older view keeps its blocks"
    );
    window.trim(i64::MAX, usize::MAX);
    assert_eq!(window.view().first_main(), view.first_main());
}

fn mains(view: &WindowView, from: Revision) -> Vec<(i64, u32)> {
    view.scan(from)
        .map(|record| (record.revision.main, record.revision.sub))
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write { records: u32, bytes: usize },
    Trim { keep: usize, behind: i64 },
    View,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u32..5, 0usize..400_000).prop_map(|(records, bytes)| Step::Write { records, bytes }),
        1 => (0usize..4 << 20, 0i64..20).prop_map(|(keep, behind)| Step::Trim { keep, behind }),
        1 => Just(Step::View),
    ]
}

type Model = BTreeMap<(i64, u32), usize>;

fn assert_equal(view: &WindowView, model: &Model, first_main: i64) {
    assert_eq!(view.first_main(), first_main);
    for from in [(0, 0), (first_main, 0), (first_main + 1, 1), (first_main + 3, 0)] {
        let from = from.max((first_main, 0));
        let expected: Vec<_> = model.range(from..).map(|(revision, _)| *revision).collect();
        assert_eq!(mains(view, Revision::new(from.0, from.1)), expected);
    }
    for (&(main, sub), &bytes) in model.range((first_main, 0)..) {
        let record = view.get(Revision::new(main, sub)).unwrap();
        assert_eq!(
            (record.fields().value.len(), record.fields().mod_revision),
            (bytes, main)
        );
        assert!(view.get(Revision::new(main, sub + 5)).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn holds_against_a_sorted_map(steps in prop::collection::vec(step(), 1..40)) {
        let mut writer = WindowWriter::new(1);
        let mut model = Model::new();
        let mut views = Vec::new();
        let mut main = 1;
        for step in steps {
            match step {
                Step::Write { records, bytes } => {
                    main += 1;
                    for sub in 0..records {
                        writer.append(Revision::new(main, sub), None, false, &fields(b"key", &vec![3; bytes], main));
                        model.insert((main, sub), bytes);
                    }
                }
                Step::Trim { keep, behind } => {
                    let before = writer.view().first_main();
                    writer.trim(main - behind, keep);
                    let trimmed = writer.view().first_main() > before;
                    prop_assert!(!trimmed || writer.view().first_main() <= main - behind + 1);
                }
                Step::View => views.push((writer.view(), model.clone(), writer.view().first_main())),
            }
            assert_equal(&writer.view(), &model, writer.view().first_main());
        }
        for (view, model, first_main) in views {
            assert_equal(&view, &model, first_main);
        }
    }
}

/// Readers look into every view they are given while the writer appends and trims.
#[test]
fn stress_views_beside_the_writer() {
    let (sender, receiver) = std::sync::mpsc::channel::<WindowView>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for view in receiver {
                let last = view.last();
                let mut expected = view.first_main();
                for record in view.scan(Revision::new(expected, 0)) {
                    let fields = record.fields();
                    assert_eq!((record.revision.main, fields.mod_revision), (expected, expected));
                    assert!(fields.value.iter().all(|byte| *byte == expected as u8));
                    assert_eq!(view.get(record.revision).unwrap().event(), record.event());
                    expected += 1;
                }
                assert_eq!(expected, last.main + 1);
            }
        });
        let mut writer = WindowWriter::new(1);
        for main in 2..1_500i64 {
            let value = vec![main as u8; (main as usize * 7919) % 6_000];
            writer.append(Revision::new(main, 0), None, false, &fields(b"key", &value, main));
            if main % 16 == 0 {
                writer.trim(main, 4 << 20);
                sender.send(writer.view()).unwrap();
            }
        }
        drop(sender);
    });
}
