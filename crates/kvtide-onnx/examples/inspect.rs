//! Prints what a rewrite finds in a model: `cargo run --release -p kvtide-onnx --example inspect -- model.onnx`.

use kvtide_onnx::{FileSource, Model, Options, Rewritten};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("the path of a model is missing")?;
    let source = FileSource::open(path)?;
    let rewritten = Rewritten::new(&source, &Model::read(&source)?, &Options::default())?;
    println!("{}", rewritten.inspection());
    Ok(())
}
