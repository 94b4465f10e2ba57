//! HPACK alone: 32 header blocks of a gRPC client decoded, by the same three clients as in `calls`; and the two blocks
//! of a unary answer encoded, after the connection's first.

use super::calls::{literal, repeated, with_timeout};
use super::clock::ThreadTime;
use criterion::{Criterion, Throughput};
use ringd::http::HeaderList;
use ringd::http::hpack::{Decoder, Encoder, Field};
use std::hint::black_box;

const BLOCKS: u32 = 32;
const TABLE_BYTES: usize = 4096;
const LIST_BYTES: usize = 16 << 10;

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    type Block = fn(u32) -> Vec<u8>;
    let mut group = criterion.benchmark_group("hpack");
    group.throughput(Throughput::Elements(BLOCKS.into()));
    for (name, block) in [
        ("decode-repeated", repeated as Block),
        ("decode-new-timeout", with_timeout as Block),
        ("decode-huffman", literal as Block),
    ] {
        let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
        let mut list = HeaderList::new(LIST_BYTES);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut decoder = Decoder::new(TABLE_BYTES);
                for block in &blocks {
                    decoder.decode(block, &mut list).expect("a header block");
                    black_box(&list);
                }
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    let headers = [Field::repeated("content-type", b"application/grpc")];
    let trailers = [
        Field::repeated("grpc-status", b"0"),
        Field::repeated("grpc-message", b""),
    ];
    let (mut encoder, mut out) = (Encoder::default(), Vec::with_capacity(256));
    group.bench_function("encode-answer", |bencher| {
        bencher.iter(|| {
            out.clear();
            encoder.encode_response(200, black_box(&headers), &mut out);
            encoder.encode_trailers(black_box(&trailers), &mut out);
            black_box(&out);
        });
    });
    group.finish();
}
