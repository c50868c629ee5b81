//! Pseudo-random numbers, and rows of them in every format and back.

use kvtide_cuda::RowFormat;

/// A stream of numbers between -1 and 1.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    pub fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// The half float whose bits these are.
fn of_half(bits: u16) -> f64 {
    let (sign, exponent, mantissa) =
        (if bits >> 15 == 1 { -1.0 } else { 1.0 }, bits >> 10 & 31, f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 => f64::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2f64.powi(i32::from(exponent) - 15),
    };
    sign * magnitude
}

/// The bits of a half float near a number: the search goes over all of them, in order.
fn to_half(value: f64) -> u16 {
    let found = (0..0x7c00u16).collect::<Vec<_>>().partition_point(|&bits| of_half(bits) < value.abs());
    let below = found.saturating_sub(1) as u16;
    let nearer = if value.abs() - of_half(below) < of_half(found as u16) - value.abs() { below } else { found as u16 };
    nearer | if value < 0.0 { 0x8000 } else { 0 }
}

fn of_f8(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude =
        if exponent == 0 { mantissa * 2f64.powi(-9) } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The place of code `index` in a row of nibbles: its byte, and true for the high nibble.
fn nibble(dim: usize, index: usize) -> (usize, bool) {
    let start = index / 32 * 32;
    let half = (dim - start).min(32).div_ceil(2);
    (start / 2 + (index - start) % half, index - start >= half)
}

/// A row of numbers that a format can show: its codes, and for low-bit ones what turns them into numbers.
pub fn encode(format: RowFormat, row: &[f32], scales: &dyn Fn(usize) -> [f64; 2]) -> Vec<u8> {
    let code = |index: usize, low: f64, high: f64| {
        let [scale, minimum] = scales(index);
        ((f64::from(row[index]) - minimum) / scale).round().clamp(low, high) as i64
    };
    match format {
        RowFormat::F32 => row.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        RowFormat::Bf16 => row.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_ne_bytes()).collect(),
        RowFormat::F16 => {
            row.iter().flat_map(|&value| to_half(f64::from((value * 512.0).round() / 512.0)).to_ne_bytes()).collect()
        }
        RowFormat::F8E4M3 => {
            row.iter().map(|value| ((value.abs() * 55.0) as u8) | (u8::from(*value < 0.0) << 7)).collect()
        }
        RowFormat::Q8 => (0..row.len()).map(|index| code(index, -127.0, 127.0) as i8 as u8).collect(),
        RowFormat::Q4 => {
            let mut bytes = vec![0u8; row.len().div_ceil(2)];
            for index in 0..row.len() {
                let (byte, high) = nibble(row.len(), index);
                bytes[byte] |= (code(index, 0.0, 15.0) as u8) << if high { 4 } else { 0 };
            }
            bytes
        }
    }
}

/// The numbers of a row's codes.
pub fn decode(format: RowFormat, codes: &[u8], dim: usize, scales: &dyn Fn(usize) -> [f64; 2]) -> Vec<f64> {
    let pair = |index: usize| u16::from_ne_bytes([codes[2 * index], codes[2 * index + 1]]);
    let scaled = |index: usize, code: f64| code * scales(index)[0] + scales(index)[1];
    let of = |index: usize| match format {
        RowFormat::F32 => f32::from_ne_bytes(codes[4 * index..4 * index + 4].try_into().unwrap()).into(),
        RowFormat::Bf16 => f32::from_bits(u32::from(pair(index)) << 16).into(),
        RowFormat::F16 => of_half(pair(index)),
        RowFormat::F8E4M3 => of_f8(codes[index]),
        RowFormat::Q8 => scaled(index, f64::from(codes[index] as i8)),
        RowFormat::Q4 => {
            let (byte, high) = nibble(dim, index);
            scaled(index, f64::from(codes[byte] >> if high { 4 } else { 0 } & 15))
        }
    };
    (0..dim).map(of).collect()
}

/// A scale of bytes near a number: its bits, the upper half of a float's, and itself.
pub fn scale(value: f64) -> (u16, f64) {
    let bits = ((value as f32).to_bits() >> 16) as u16;
    (bits, f32::from_bits(u32::from(bits) << 16).into())
}

/// Scale and minimum of nibbles near these numbers: the word of both, 14 bits of one behind 18 of the other, and themselves.
pub fn word(scale: f64, minimum: f64) -> (u32, [f64; 2]) {
    let [scale, minimum] = [(scale as f32).to_bits() >> 17, (minimum as f32).to_bits() >> 14];
    (minimum << 14 | scale, [f32::from_bits(scale << 17).into(), f32::from_bits(minimum << 14).into()])
}

/// The largest difference; NaN where one of two is.
pub fn off(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let distance = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() };
    actual.iter().zip(expected).map(distance).fold(0.0, |most, of| if of > most || of.is_nan() { of } else { most })
}

/// The matrix that keys are rotated with, times a row.
pub fn rotated(row: &[f64]) -> Vec<f64> {
    let size = 1usize << row.len().trailing_zeros();
    let at = |place: usize| {
        let start = place / size * size;
        let sign = |index: usize| if ((place - start) & index).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..size).map(|index| sign(index) * row[start + index]).sum::<f64>() / (size as f64).sqrt()
    };
    (0..row.len()).map(at).collect()
}
