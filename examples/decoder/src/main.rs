//! Decodes greedily from the command line: `decoder <folder> <tokens, separated by commas> [number to add]`.

use std::path::Path;
use std::process::ExitCode;

use decoder::{Decoder, Sequences, greedy};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom};

const USAGE: &str = "decoder <folder with config.json and model.safetensors> <tokens as 1,2,3> [number to add, 16]";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(tokens) => {
            println!("{tokens:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let (folder, tokens, count) = match arguments {
        [folder, tokens] => (folder, tokens, 16),
        [folder, tokens, count] => (folder, tokens, count.parse::<usize>().map_err(|_| USAGE)?.max(1)),
        _ => return Err(USAGE.into()),
    };
    let prompt =
        tokens.split(',').map(|token| token.trim().parse()).collect::<Result<Vec<u32>, _>>().map_err(|_| USAGE)?;
    let decoder = Decoder::read(Path::new(folder))?;
    let model = &decoder.config().model;
    let blocks = (prompt.len() + count).div_ceil(16) as u32;
    let room = PoolRoom::Blocks(vec![blocks; model.groups().len()]);
    let mut cache = PagedKvCache::of_model(PagedModelOptions::new(model.clone(), room))?;
    let id = cache.create_sequence()?;
    let mut cache = Sequences::new(&mut cache, &[id]);
    let hidden = decoder.forward(&prompt, &mut cache)?;
    let decoded = greedy(&decoder, &mut cache, decoder.last_logits(&hidden)?, count)?;
    Ok(decoded.tokens.concat())
}
