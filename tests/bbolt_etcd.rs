//! Database files against etcd's own bbolt: it reads and goes on in what ringd wrote, ringd reads what it wrote.
//! `tests/bbolt-tool` is the Go program on bbolt; `go` builds it when the tests start.

use ringd::bbolt::{Bucket, Content, File, Measure, Writer};
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Runs the Go program and returns what it printed.
fn bbolt(command: &str, file: &Path, seed: Option<u64>) -> String {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bbolt-tool");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bbolt-tool");
        let mut build = Command::new("go");
        let build = build.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
        let built = build.output().expect("these tests need the Go toolchain");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    });
    let mut run = Command::new(program);
    run.arg(command).arg(file).args(seed.map(|seed| seed.to_string()));
    let output = run.output().expect("the program was just built");
    assert!(
        output.status.success(),
        "{command} {}: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a file holds, read by ringd, in the words of the Go program.
fn describe(path: &Path) -> String {
    let mut source = std::fs::File::open(path).unwrap();
    let file = File::open(&mut source, &path.display().to_string()).unwrap();
    let mut text = String::new();
    let mut cursor = file.cursor(&file.root());
    while let Some(element) = cursor.next(&mut source).unwrap() {
        let Content::Bucket(bucket) = element.content else {
            panic!("a value outside of a bucket")
        };
        let name = element.key.to_vec();
        describe_bucket(&file, &name, &bucket, &mut source, &mut text);
    }
    text
}

fn describe_bucket(file: &File, path: &[u8], bucket: &Bucket, source: &mut std::fs::File, text: &mut String) {
    let (mut count, mut sum) = (0, 0);
    let mut add = |bytes: &[u8]| {
        sum = crc32c::crc32c_append(sum, &(bytes.len() as u32).to_be_bytes());
        sum = crc32c::crc32c_append(sum, bytes);
    };
    let mut cursor = file.cursor(bucket);
    while let Some(element) = cursor.next(source).unwrap() {
        count += 1;
        add(element.key);
        match element.content {
            Content::Value(value) => add(value),
            Content::Bucket(inner) => {
                add(&[]);
                let path = [path, b"/", element.key].concat();
                describe_bucket(file, &path, &inner, source, text);
            }
        }
    }
    path.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
    writeln!(text, " {} {count} {sum:08x}", bucket.sequence).unwrap();
}

/// A bucket: its name, number of keys, their length, and lengths of values.
type Shape<'a> = (&'a str, u32, usize, Range<usize>);

/// Makes a file of ringd's.
fn write_file(path: &Path, buckets: &[Shape]) {
    let key = |at: u32, length: usize| [&at.to_be_bytes()[..], &vec![b'k'; length - 4]].concat();
    let value = |at: u32, lengths: &Range<usize>| vec![at as u8; lengths.start + at as usize * 7919 % lengths.len()];
    let mut measure = Measure::new();
    for (name, count, key_length, lengths) in buckets {
        measure.bucket(name.as_bytes()).unwrap();
        for at in 0..*count {
            measure.put(&key(at, *key_length), value(at, lengths).len()).unwrap();
        }
    }
    let mut writer = Writer::new(measure.finish());
    let mut bytes = Vec::new();
    for (name, count, key_length, lengths) in buckets {
        writer.bucket(name.as_bytes()).unwrap();
        for at in 0..*count {
            writer.put(&key(at, *key_length), &value(at, lengths)).unwrap();
            bytes.append(&mut writer.take());
        }
    }
    bytes.append(&mut writer.finish().unwrap());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn bbolt_reads_what_ringd_wrote_and_goes_on_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let shapes: &[&[Shape]] = &[
        &[],
        &[("key", 0, 17, 0..1)],
        &[("key", 1, 17, 0..1)],
        &[("key", 240, 17, 0..1), ("meta", 3, 5, 0..10)],
        // Three levels.
        &[
            ("key", 15_000, 17, 0..40),
            ("lease", 2_000, 8, 0..30),
            ("meta", 3, 5, 0..10),
        ],
        // Three levels.
        &[("key", 24_000, 17, 0..3_000), ("meta", 3, 5, 0..10)],
        &[("key", 300, 17, 0..200_000)],
        &[("long", 200, 30_000, 0..100), ("longer", 60, 32_768, 0..9_000)],
    ];
    for (number, shape) in shapes.iter().enumerate() {
        let path = directory.path().join(format!("{number}.db"));
        write_file(&path, shape);
        assert_eq!(bbolt("describe", &path, None), describe(&path), "shape {number}");
        for seed in 0..2 {
            bbolt("change", &path, Some(seed));
            assert_eq!(
                bbolt("describe", &path, None),
                describe(&path),
                "shape {number}, changed"
            );
        }
    }
}

#[test]
fn ringd_reads_what_bbolt_wrote() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        let path = directory.path().join(format!("{seed}.db"));
        bbolt("write", &path, Some(seed));
        let wanted = bbolt("describe", &path, None);
        assert!(wanted.lines().count() > 4, "{wanted}");
        assert_eq!(describe(&path), wanted, "seed {seed}");
    }
}

/// Every number of leaves around what fills a branch: none is left with one child.
#[test]
fn branches_of_every_size_are_sound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.db");
    for leaves in (120..128).chain(243..250) {
        // Two of these fill a leaf.
        write_file(&path, &[("key", leaves * 2, 17, 16_000..16_001)]);
        assert_eq!(bbolt("describe", &path, None), describe(&path), "{leaves} leaves");
        bbolt("change", &path, Some(u64::from(leaves)));
        assert_eq!(
            bbolt("describe", &path, None),
            describe(&path),
            "{leaves} leaves, changed"
        );
    }
}
