//! Products with weights of 4 bits, compared with sums in 64-bit floats, for all kernels that the machine can run.

use kvtide_core::Code;
use kvtide_tensor::linear::{Activation, BlockCodes, BlockWeights, Gate, Precision};
use kvtide_tensor::runtime::{Kernels, with_host, with_kernels};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Weights in parts, with numbers that repeat late.
#[derive(Debug)]
struct Parts {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zero_points: Option<Vec<u8>>,
    inner: usize,
    columns: usize,
    block: usize,
}

fn mixed(index: usize, seed: usize) -> usize {
    (index + seed).wrapping_mul(0x9e37_79b9) >> 7
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| (mixed(index, seed) & 0xffff) as f32 / 32768.0 - 1.0).collect()
}

impl Parts {
    fn new([inner, columns, block]: [usize; 3], has_zeros: bool, seed: usize) -> Self {
        let blocks = inner.div_ceil(block);
        let bytes = |count: usize, seed: usize| (0..count).map(|index| mixed(index, seed) as u8).collect();
        Parts {
            codes: bytes(columns * blocks * block / 2, seed),
            scales: numbers(columns * blocks, seed + 1),
            zero_points: has_zeros.then(|| bytes(columns * blocks.div_ceil(2), seed + 2)),
            inner,
            columns,
            block,
        }
    }

    fn codes(&self) -> BlockCodes<'_> {
        let &Parts { inner, columns, block, .. } = self;
        let zero_points = self.zero_points.as_deref();
        BlockCodes { codes: &self.codes, scales: &self.scales, zero_points, inner, columns, block }
    }

    /// The number that a code stands for.
    fn weight(&self, index: usize, column: usize) -> f64 {
        let blocks = self.inner.div_ceil(self.block);
        let half = |byte: u8, index: usize| f64::from(byte >> (4 * (index % 2)) & 15);
        let place = index / self.block;
        let code = half(self.codes[column * blocks * self.block / 2 + index / 2], index);
        let zeros = self.zero_points.as_ref();
        let zero = zeros.map_or(8.0, |zeros| half(zeros[column * blocks.div_ceil(2) + place / 2], place));
        (code - zero) * f64::from(self.scales[column * blocks + place])
    }

    /// A row as it is, or as the bytes of its blocks stand for it.
    fn row(&self, row: &[f32], precision: Precision) -> Vec<f64> {
        if precision == Precision::Floats {
            return row.iter().copied().map(f64::from).collect();
        }
        let of = |block: &[f32]| {
            let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let byte = |value: &f32| f64::from((value * factor).round_ties_even()) * f64::from(largest / 127.0);
            block.iter().map(byte).collect::<Vec<_>>()
        };
        row.chunks(self.block).flat_map(of).collect()
    }
}

fn product(weights: &BlockWeights, rows: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.len() / weights.inner() * weights.columns()];
    weights.multiply(rows, &mut out).unwrap();
    out
}

/// Threads of the standard library.
fn scoped(count: usize, call: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Fails unless all kernels give the sums of 64-bit floats, with the same bits on any number of threads.
fn check(parts: &Parts, precision: Precision, count: usize, seed: usize) {
    let weights = BlockWeights::pack(&parts.codes(), precision, None).unwrap();
    let &Parts { inner, columns, .. } = parts;
    let rows = numbers(count * inner, seed);
    let expected = with_kernels(Kernels::Portable, || product(&weights, &rows)).unwrap();
    for (row, products) in rows.chunks(inner).zip(expected.chunks(columns)) {
        let row = parts.row(row, precision);
        for (column, &found) in products.iter().enumerate() {
            let terms = row.iter().enumerate().map(|(index, value)| value * parts.weight(index, column));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            assert!((f64::from(found) - sum).abs() <= 2e-6 * (1.0 + size), "column {column}: {found}, expected {sum}");
        }
    }
    for kernels in Kernels::supported() {
        for threads in [1, 3] {
            let found = with_kernels(kernels, || with_host(threads, scoped, || product(&weights, &rows))).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{kernels}, {threads} threads, {count} rows of {inner}");
        }
        let alone = rows.chunks(inner).flat_map(|row| product(&weights, row)).collect::<Vec<_>>();
        assert_eq!(bits(&alone), bits(&expected), "{kernels}: each row alone");
    }
}

fn forms() -> impl Iterator<Item = (Precision, bool)> {
    [Precision::Bytes, Precision::Floats].into_iter().flat_map(|precision| [(precision, false), (precision, true)])
}

#[test]
fn a_row_is_that_of_64_bit_floats_for_each_number_of_rows() {
    for (precision, has_zeros) in forms() {
        let parts = Parts::new([96, 40, 32], has_zeros, 3);
        for count in (1..=29).chain([130, 300]) {
            check(&parts, precision, count, count);
        }
    }
}

#[test]
fn a_gated_product_is_the_product_times_the_activated_one_of_its_gate() {
    let bent = |activation, x: f64| match activation {
        Activation::Silu => x,
        Activation::GeluTanh => 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x),
    };
    let activations = [Activation::Silu, Activation::GeluTanh];
    for ((precision, has_zeros), activation) in forms().zip(activations.into_iter().cycle()) {
        let [parts, gates] = [3, 7].map(|seed| Parts::new([96, 40, 32], has_zeros, seed));
        let gate = Gate { codes: gates.codes(), activation };
        let weights = BlockWeights::pack(&parts.codes(), precision, Some(gate)).unwrap();
        let apart = [&parts, &gates].map(|parts| BlockWeights::pack(&parts.codes(), precision, None).unwrap());
        for count in [1, 2, 8, 9, 140] {
            // Gates of all sizes: some are far from 0.
            let rows: Vec<f32> = numbers(count * 96, count).into_iter().map(|value| value * 3.0).collect();
            let expected = with_kernels(Kernels::Portable, || product(&weights, &rows)).unwrap();
            let [products, gates] = [0, 1].map(|of| product(&apart[of], &rows));
            for ((&found, product), x) in expected.iter().zip(products).zip(gates) {
                let activated = f64::from(x) / (1.0 + (-bent(activation, f64::from(x))).exp());
                let sum = f64::from(product) * activated;
                assert!((f64::from(found) - sum).abs() <= 1e-5 * (1e-2 + sum.abs()), "{x}: {found}, expected {sum}");
            }
            for kernels in Kernels::supported() {
                for threads in [1, 3] {
                    let found =
                        with_kernels(kernels, || with_host(threads, scoped, || product(&weights, &rows))).unwrap();
                    assert_eq!(bits(&found), bits(&expected), "{kernels}, {threads} threads, {count} rows");
                }
            }
        }
    }
}

#[test]
fn many_columns_are_shared_among_threads() {
    for precision in [Precision::Bytes, Precision::Floats] {
        check(&Parts::new([576, 1000, 32], false, 1), precision, 2, 5);
        check(&Parts::new([64, 2000, 64], true, 1), precision, 150, 5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn sizes_of_all_kinds(
        count in 1_usize..40,
        inner in 1_usize..300,
        columns in 1_usize..80,
        block in select(vec![8_usize, 16, 32, 64, 128, 256]),
        has_zeros: bool,
        precision in select(vec![Precision::Bytes, Precision::Floats]),
        seed in 0_usize..1000,
    ) {
        check(&Parts::new([inner, columns, block], has_zeros, seed), precision, count, seed + 9);
    }

    #[test]
    fn rows_of_all_magnitudes(
        row in vec(any::<f32>(), 64),
        precision in select(vec![Precision::Bytes, Precision::Floats]),
    ) {
        let weights = BlockWeights::pack(&Parts::new([64, 16, 16], true, 7).codes(), precision, None).unwrap();
        let expected = with_kernels(Kernels::Portable, || product(&weights, &row)).unwrap();
        for kernels in Kernels::supported() {
            let found = with_kernels(kernels, || product(&weights, &row)).unwrap();
            let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
            prop_assert!(same, "{}: {:?} and {:?}", kernels, found, expected);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_stay_in_their_row() {
    let parts = Parts::new([64, 16, 32], false, 2);
    let all = [Precision::Bytes, Precision::Floats].into_iter();
    for (precision, kernels) in all.flat_map(|precision| Kernels::supported().map(move |kernels| (precision, kernels)))
    {
        let weights = &BlockWeights::pack(&parts.codes(), precision, None).unwrap();
        // A float keeps its infinity; a scale of bytes does not.
        let is_lost = |number: &f32| if precision == Precision::Bytes { !number.is_nan() } else { number.is_finite() };
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = numbers(3 * 64, 5);
            rows[64 + 40] = number;
            let found = with_kernels(kernels, || product(weights, &rows)).unwrap();
            assert!(!found[16..32].iter().any(is_lost), "{kernels}: {number} is lost");
            assert!([&found[..16], &found[32..]].concat().iter().all(|number| number.is_finite()), "{kernels}");
        }
        let zeros = with_kernels(kernels, || product(weights, &[0.0; 64])).unwrap();
        assert_eq!(zeros, [0.0; 16]);
    }
}

#[test]
fn nothing_to_multiply_is_nothing() {
    let none = BlockWeights::pack(&Parts::new([0, 3, 32], false, 0).codes(), Precision::Bytes, None).unwrap();
    let mut out = [1.0; 6];
    none.multiply(&[], &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);
    let narrow = BlockWeights::pack(&Parts::new([4, 0, 32], true, 0).codes(), Precision::Bytes, None).unwrap();
    narrow.multiply(&[1.0; 8], &mut []).unwrap();
}

#[test]
fn parts_of_other_sizes_are_refused() {
    let parts = Parts::new([64, 4, 32], true, 0);
    let good = parts.codes();
    let wrong = [
        BlockCodes { codes: &good.codes[1..], ..good },
        BlockCodes { scales: &good.scales[1..], ..good },
        BlockCodes { zero_points: Some(&[]), ..good },
        BlockCodes { block: 0, ..good },
        BlockCodes { block: 12, ..good },
        BlockCodes { columns: 5, ..good },
        BlockCodes { inner: usize::MAX, ..good },
        BlockCodes { columns: usize::MAX, ..good },
    ];
    for codes in wrong {
        let error = BlockWeights::pack(&codes, Precision::Bytes, None).err().expect("wrong sizes");
        assert!([Code::ShapeMismatch, Code::InvalidArgument].contains(&error.code()), "{error}");
    }
    for gate in [Parts::new([64, 5, 32], true, 0), Parts::new([64, 4, 32], false, 0), Parts::new([64, 4, 64], true, 0)]
    {
        let gate = Gate { codes: gate.codes(), activation: Activation::Silu };
        let error = BlockWeights::pack(&good, Precision::Bytes, Some(gate)).err().expect("a gate of another size");
        assert_eq!(error.code(), Code::ShapeMismatch, "{error}");
    }
    let weights = BlockWeights::pack(&good, Precision::Bytes, None).unwrap();
    for (rows, out) in [(64, 3), (63, 4), (128, 4), (0, 4)] {
        let error = weights.multiply(&vec![0.0; rows], &mut vec![0.0; out]).unwrap_err();
        assert_eq!(error.code(), Code::ShapeMismatch, "{rows} and {out}: {error}");
    }
}
