//! How much smaller values get, and how fast: random numbers, smooth ones, and those of a file of f32.

use half::f16;
use kvtide_bench::{Amount, Lane, Result, Role, measure as rounds};
use kvtide_remote::{compress, decompress};

use crate::show;

const NUMBERS: usize = 1 << 20;

/// Numbers of the normal distribution, from a generator that starts the same each time.
fn normal() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32 + 0.5) / (1 << 24) as f32
    };
    (0..NUMBERS).map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos()).collect()
}

/// Rows of 64 whose numbers change slowly from one to the next.
fn smooth() -> Vec<f32> {
    (0..NUMBERS).map(|index| ((index % 64) as f32 * 0.7).sin() + ((index / 64) as f32 * 1e-3).cos()).collect()
}

fn read(path: &str) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
}

pub fn measure(file: Option<&str>) -> Result<()> {
    let mut kinds = vec![("normal".to_owned(), normal()), ("smooth".to_owned(), smooth())];
    if let Some(path) = file {
        kinds.push((path.to_owned(), read(path)?));
    }
    for (name, numbers) in kinds {
        let singles: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let halves: Vec<u8> = numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect();
        one(&format!("{name}, f32"), &singles, 4)?;
        one(&format!("{name}, f16"), &halves, 2)?;
    }
    Ok(())
}

fn one(name: &str, value: &[u8], element_bytes: usize) -> Result<()> {
    let mut lanes = Vec::new();
    let mut ratios = Vec::new();
    for bytes in [1, element_bytes] {
        let compressed = compress(value, bytes).ok_or("no memory")?;
        ratios.push(format!("{:.3}", compressed.len() as f64 / value.len() as f64));
        let amount = Amount::moved(value.len(), 0);
        let there =
            Lane::making(Role::Ours, format!("compress, planes of {bytes}"), 1, move || Ok(compress(value, bytes)));
        let back = Lane::making(Role::Ours, format!("decompress, planes of {bytes}"), 1, move || {
            Ok(decompress(compressed.clone(), value.len()).ok_or("not the value")?)
        });
        lanes.extend([there.of(amount), back.of(amount)]);
    }
    show(&format!("{name}: of its size {} as it is, {} in planes", ratios[0], ratios[1]), &rounds(lanes, 15)?);
    Ok(())
}
