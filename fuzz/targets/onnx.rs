//! ONNX protobufs: read, rewritten and cut into parts, or refused.
#![no_main]

use kvtide_onnx::{ElementType, Model, Options, Rewritten, Weights};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let bytes = &bytes.to_vec();
    let Ok(model) = Model::read(bytes) else { return };
    let _ = (model.inputs(), model.outputs(), model.context_length());
    let _ = model.check_weights(bytes);
    let _ = model.samples(bytes);
    let _ = model.new_rows_suffix(&["present.0.key"]);
    let options = Options {
        logit_rows: kind & 1 != 0,
        windows: (kind & 2 != 0).then(|| vec![Some(u32::from(kind)); 1]),
        embedded: if kind & 4 != 0 { vec!["inputs_embeds".to_owned()] } else { Vec::new() },
        block_products: kind & 8 != 0,
        packed_products: if kind & 16 != 0 { vec![ElementType::F32, ElementType::F16] } else { Vec::new() },
    };
    let Ok(rewritten) = Rewritten::new(bytes, &model, &options) else { return };
    let _ = (rewritten.layers(), rewritten.states(), rewritten.context_length(), rewritten.long_rope());
    let _ = rewritten.parts(bytes);
    for model in [rewritten.model(), rewritten.fused()] {
        if let Ok(written) = model.to_bytes(bytes, Weights::Inline) {
            Model::read(&written).expect("a model that was written");
        }
    }
});
