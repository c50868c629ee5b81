//! Products with weights, compared with sums in 64-bit floats, for all kernels that the machine can run.

use half::{bf16, f16};
use kvtide_core::Code;
use kvtide_tensor::DType;
use kvtide_tensor::linear::{PackedWeights, WeightOrder, Weights, multiply};
use kvtide_tensor::runtime::{Kernels, with_host, with_kernels};
use proptest::sample::select;

#[path = "../../kvtide-core/tests/support/mod.rs"]
mod support;

const ORDERS: [WeightOrder; 2] = [WeightOrder::Rows, WeightOrder::Columns];

/// Numbers from -1 to 1 that repeat late.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |index: usize| (index + seed).wrapping_mul(0x9e37_79b9) >> 7 & 0xffff;
    (0..count).map(|index| number(index) as f32 / 32768.0 - 1.0).collect()
}

/// The bytes of weights, behind one byte that leaves them unaligned, and the numbers that they stand for.
fn encoded(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut bytes, mut rounded) = (vec![0], Vec::new());
    for &value in values {
        match dtype {
            DType::F16 => {
                bytes.extend(f16::from_f32(value).to_ne_bytes());
                rounded.push(f16::from_f32(value).to_f32());
            }
            DType::BF16 => {
                bytes.extend(bf16::from_f32(value).to_ne_bytes());
                rounded.push(bf16::from_f32(value).to_f32());
            }
            _ => {
                bytes.extend(value.to_ne_bytes());
                rounded.push(value);
            }
        }
    }
    (bytes, rounded)
}

fn product(rows: &[f32], weights: &Weights<'_>) -> Vec<f32> {
    let mut out = room(rows, weights);
    multiply(rows, weights, &mut out).unwrap();
    out
}

/// The same with packed weights.
fn packed_product(rows: &[f32], weights: &Weights<'_>) -> Vec<f32> {
    let mut out = room(rows, weights);
    PackedWeights::pack(weights).unwrap().multiply(rows, &mut out).unwrap();
    out
}

fn room(rows: &[f32], weights: &Weights<'_>) -> Vec<f32> {
    vec![f32::NAN; rows.len().checked_div(weights.inner).unwrap_or(0) * weights.columns]
}

/// Threads of the standard library.
fn scoped(count: usize, call: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
}

/// Fails unless all kernels give the sums of 64-bit floats, on one thread and on three.
fn check(dtype: DType, order: WeightOrder, [count, inner, columns]: [usize; 3], seed: usize) {
    let rows = numbers(count * inner, seed);
    let (bytes, values) = encoded(dtype, &numbers(inner * columns, seed + 77));
    let weights = Weights { dtype, bytes: &bytes[1..], inner, columns, order };
    let cases = Kernels::supported().flat_map(|kernels| [(kernels, false), (kernels, true)]);
    for (kernels, is_packed) in cases {
        let multiply = || if is_packed { packed_product(&rows, &weights) } else { product(&rows, &weights) };
        let [one, three] =
            [1, 3].map(|threads| with_kernels(kernels, || with_host(threads, scoped, multiply)).unwrap());
        assert_eq!(one.len(), count * columns);
        for (place, (&found, other)) in one.iter().zip(&three).enumerate() {
            let (row, column) = (place / columns, place % columns);
            let terms = (0..inner).map(|index| {
                let weight = match order {
                    WeightOrder::Rows => values[index * columns + column],
                    WeightOrder::Columns => values[column * inner + index],
                };
                f64::from(rows[row * inner + index]) * f64::from(weight)
            });
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let error = (f64::from(found) - sum).abs();
            let form = if is_packed { "packed" } else { "in place" };
            let named =
                format!("{kernels:?} {dtype:?} {order:?} {form}, row {row} of {count}, column {column} of {columns}");
            assert!(error <= 4e-6 * (1.0 + size), "{named}: {found}, expected {sum}");
            assert_eq!(found.to_bits(), other.to_bits(), "{named}: on three threads");
        }
    }
}

#[test]
fn products_of_any_sizes_are_sums_of_products() {
    let sizes = (
        select(&[DType::F32, DType::F16, DType::BF16][..]),
        select(&ORDERS[..]),
        select(&[1usize, 2, 3, 4, 5, 8, 11, 12, 13, 17, 25, 40][..]),
        1..70usize,
        1..150usize,
        0..1000usize,
    );
    support::run("products", 150, sizes, |(dtype, order, count, inner, columns, seed)| {
        check(dtype, order, [count, inner, columns], seed);
        Ok(())
    });
}

#[test]
fn long_rows_and_many_rows_and_columns_are_divided() {
    for order in ORDERS {
        for sizes in [[1, 700, 300], [3, 300, 1100], [13, 530, 70], [300, 20, 33], [515, 257, 65], [1, 3, 2000]] {
            check(DType::F32, order, sizes, 5);
        }
        check(DType::F16, order, [2, 520, 300], 6);
        check(DType::BF16, order, [259, 30, 258], 7);
        check(DType::F16, order, [25, 600, 290], 8);
        check(DType::F16, order, [130, 600, 290], 9);
    }
}

#[test]
fn a_row_gives_the_same_bits_alone_and_among_others() {
    let (inner, columns) = (300, 130);
    let rows = numbers(300 * inner, 2);
    for (multiply, dtype) in [
        (product as fn(&[f32], &Weights<'_>) -> Vec<f32>, DType::F32),
        (packed_product, DType::F32),
        (packed_product, DType::F16),
    ] {
        let (bytes, _) = encoded(dtype, &numbers(inner * columns, 1));
        let weights = Weights { dtype, bytes: &bytes[1..], inner, columns, order: WeightOrder::Rows };
        let alone = multiply(&rows[..inner], &weights);
        for count in [2, 3, 4, 5, 12, 13, 24, 25, 128, 129, 256, 300] {
            let among = multiply(&rows[..count * inner], &weights);
            assert!(among[..columns] == alone, "{count} rows");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_stay_in_their_column() {
    let (inner, columns) = (40, 70);
    for order in ORDERS {
        let mut values = numbers(inner * columns, 3);
        let place = |index: usize, column: usize| match order {
            WeightOrder::Rows => index * columns + column,
            WeightOrder::Columns => column * inner + index,
        };
        values[place(7, 20)] = f32::NAN;
        values[place(39, 69)] = f32::INFINITY;
        let (bytes, _) = encoded(DType::F32, &values);
        let weights = Weights { dtype: DType::F32, bytes: &bytes[1..], inner, columns, order };
        for kernels in Kernels::supported() {
            for count in [1, 4, 12, 30] {
                let rows = numbers(count * inner, 4);
                let both = || [product(&rows, &weights), packed_product(&rows, &weights)].concat();
                let out = with_kernels(kernels, both).unwrap();
                for (index, value) in out.iter().enumerate() {
                    let is_bad = [20, 69].contains(&(index % columns));
                    assert_eq!(value.is_finite(), !is_bad, "{kernels:?} {order:?} {count} rows: {index}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_multiplied_with_nothing() {
    for order in ORDERS {
        let weights = |inner, columns| Weights { dtype: DType::F32, bytes: &[], inner, columns, order };
        multiply(&[], &weights(0, 0), &mut []).unwrap();
        multiply(&[], &weights(0, 5), &mut []).unwrap();
        multiply(&[1.0; 6], &weights(3, 0), &mut []).unwrap();
        let mut out = [f32::NAN; 10];
        multiply(&[], &weights(0, 5), &mut out).unwrap();
        assert_eq!(out, [0.0; 10]);
        // Dimensions whose product with the size of an element is no usize.
        for (inner, columns) in [(usize::MAX, 0), (0, usize::MAX)] {
            let packed = PackedWeights::pack(&weights(inner, columns)).unwrap();
            assert_eq!((packed.inner(), packed.columns()), (inner, columns));
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let bytes = [0u8; 24];
    let weights = Weights { dtype: DType::F32, bytes: &bytes, inner: 2, columns: 3, order: WeightOrder::Rows };
    let refused = |rows: usize, weights: Weights<'_>, out: usize, argument: &str| {
        let mut room = vec![7.0; out];
        let error = multiply(&vec![0.0; rows], &weights, &mut room).unwrap_err();
        assert!(error.to_string().contains(argument), "{error}");
        assert!(room.iter().all(|&value| value == 7.0));
        error.code()
    };
    assert_eq!(refused(3, weights, 3, "rows"), Code::ShapeMismatch);
    assert_eq!(refused(4, weights, 5, "out"), Code::ShapeMismatch);
    assert_eq!(refused(2, Weights { bytes: &bytes[1..], ..weights }, 3, "weights"), Code::ShapeMismatch);
    assert_eq!(refused(2, Weights { inner: usize::MAX, ..weights }, 3, "weights"), Code::ShapeMismatch);
    assert_eq!(refused(2, Weights { dtype: DType::U8, ..weights }, 3, "dtype"), Code::InvalidArgument);
}
