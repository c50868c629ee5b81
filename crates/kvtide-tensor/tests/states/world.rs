//! A cache of layers with states beside lists of tokens. The states of a sequence are the running hash of its tokens, and its
//! rows are its tokens: a state or a row at another place is seen.

use std::collections::BTreeMap;

use candle_core::{DType as Dtype, Device, Tensor};
use kvtide_core::model::{LayerDescription, ModelDescription, StateDType, StateTensor};
use kvtide_tensor::{
    Error, PagedKvCache, PagedModelOptions, PagedStep, PoolRoom, PromptOptions, Result, StepRun, StepTokens,
};

pub const BLOCK_SIZE: u32 = 4;

/// The states after these tokens, on top of those before.
pub fn follow(before: &[u8], tokens: &[u32]) -> Vec<u8> {
    let mut hash = u64::from_le_bytes(before[..8].try_into().expect("8 bytes"));
    for &token in tokens {
        hash = (hash ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    let bytes = (0..before.len() as u64).map(|at| (hash >> (at % 8 * 8)) as u8);
    if tokens.is_empty() { before.to_vec() } else { bytes.collect() }
}

/// Two layers with attention around one with two states; the last layer has a state beside its attention.
pub fn hybrid() -> ModelDescription {
    let tensor = |layer, name: &str, shape, dtype| StateTensor { layer, name: name.into(), shape, dtype };
    let states = vec![
        tensor(1, "conv", vec![3, 5], StateDType::F16),
        tensor(1, "ssm", vec![7, 3], StateDType::F32),
        tensor(2, "conv", vec![2], StateDType::BF16),
    ];
    let full = LayerDescription::full(1, 2);
    ModelDescription::new(vec![full, LayerDescription::state(), full]).unwrap().with_states(states).unwrap()
}

/// Layers without attention.
pub fn mamba() -> ModelDescription {
    let states = [0, 1].map(|layer| StateTensor { layer, name: "ssm".into(), shape: vec![33], dtype: StateDType::F32 });
    ModelDescription::new(vec![LayerDescription::state(); 2]).unwrap().with_states(states.into()).unwrap()
}

pub struct World {
    pub cache: PagedKvCache,
    pub tokens: BTreeMap<u64, Vec<u32>>,
    pub layers: Vec<u32>,
    pub bytes: usize,
}

impl World {
    pub fn new(model: ModelDescription, blocks: u32) -> Self {
        World::on(PagedModelOptions::new(model.clone(), PoolRoom::Blocks(vec![blocks; model.groups().len()])))
    }

    pub fn on(options: PagedModelOptions) -> Self {
        let layers = (0..options.model.layers().len() as u32).filter(|&layer| options.model.place(layer).is_some());
        let (layers, bytes) = (layers.collect(), options.model.state_layout().bytes as usize);
        let cache = PagedKvCache::of_model(PagedModelOptions { block_size: BLOCK_SIZE, ..options }).unwrap();
        World { cache, tokens: BTreeMap::new(), layers, bytes }
    }

    pub fn states(&self, tokens: &[u32]) -> Vec<u8> {
        follow(&vec![0; self.bytes], tokens)
    }

    pub fn create(&mut self) -> u64 {
        let id = self.cache.create_sequence().unwrap();
        self.tokens.insert(id, Vec::new());
        id
    }

    /// Begins a step with these tokens.
    pub fn begin(&mut self, of: &[(u64, &[u32])]) -> Result<PagedStep> {
        let sequences: Vec<u64> = of.iter().map(|(id, _)| *id).collect();
        let mut offsets = vec![0];
        of.iter().for_each(|(_, tokens)| offsets.push(offsets.last().unwrap() + tokens.len() as u32));
        self.cache.begin_step(StepTokens { sequences: &sequences, offsets: Some(&offsets), parents: None })
    }

    /// Writes all layers and states of a step, which reads the states from before it.
    pub fn write(&mut self, step: &mut PagedStep, of: &[(u64, &[u32])]) -> Result<()> {
        let kv = rows(of);
        for &layer in &self.layers {
            self.cache.write_layer(step, layer, &kv, &kv)?;
        }
        for (index, (id, tokens)) in of.iter().enumerate() {
            let before = self.cache.read_states(step, index)?;
            assert_eq!(before, self.states(&self.tokens[id]), "the states before the step of sequence {id}");
            if !tokens.is_empty() {
                self.cache.write_states(step, index, &follow(&before, tokens))?;
            }
        }
        Ok(())
    }

    /// As [`World::write`], with the calls of a run.
    pub fn run(&self, run: &mut StepRun, of: &[(u64, &[u32])]) -> Result<()> {
        let kv = rows(of);
        for &layer in &self.layers {
            run.write_layer(layer, &kv, &kv)?;
        }
        for (index, (id, tokens)) in of.iter().enumerate() {
            let before = run.read_states(index)?;
            assert_eq!(before, self.states(&self.tokens[id]), "the states before the run of sequence {id}");
            if !tokens.is_empty() {
                run.write_states(index, &follow(&before, tokens))?;
            }
        }
        Ok(())
    }

    pub fn commit(&mut self, mut step: PagedStep, of: &[(u64, &[u32])]) -> Result<()> {
        let ids: Vec<u32> = of.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        self.cache.commit_step(&mut step, Some(&ids))?;
        for (id, tokens) in of {
            self.tokens.get_mut(id).unwrap().extend(*tokens);
        }
        Ok(())
    }

    /// A whole step.
    pub fn step(&mut self, of: &[(u64, &[u32])]) -> Result<()> {
        let mut step = self.begin(of)?;
        self.write(&mut step, of)?;
        self.commit(step, of)
    }

    pub fn fork(&mut self, id: u64) -> u64 {
        let fork = self.cache.fork(id).unwrap();
        self.tokens.insert(fork, self.tokens[&id].clone());
        fork
    }

    pub fn drop(&mut self, id: u64) {
        self.cache.drop_sequence(id).unwrap();
        self.tokens.remove(&id);
    }

    /// Truncates a sequence; an error names lengths at which there are states.
    pub fn truncate(&mut self, id: u64, length: u32) -> Result<()> {
        let before = self.tokens[&id].len() as u32;
        match self.cache.truncate(id, length) {
            Ok(()) => {
                self.tokens.get_mut(&id).unwrap().truncate(length as usize);
                Ok(())
            }
            Err(refusal) => {
                if let Error::Plan(kvtide_core::Error::NoStateHere { below, above, .. }) = &refusal {
                    assert!(*below < u64::from(length) && below % u64::from(BLOCK_SIZE) == 0);
                    assert!(above.is_none_or(|above| above > u64::from(length) && above <= u64::from(before)));
                }
                Err(refusal)
            }
        }
    }

    /// A sequence that starts with what is cached of a prompt.
    pub fn find(&mut self, prompt: &[u32]) -> u64 {
        let found = self.cache.find_prefix(prompt, PromptOptions::default(), false).unwrap();
        let length = found.length() as usize;
        let id = self.cache.create_sequence_from(found).unwrap();
        self.tokens.insert(id, prompt[..length].to_vec());
        id
    }

    pub fn check(&mut self) {
        // Steps that were dropped are reclaimed first.
        self.cache.pools().unwrap();
        self.cache.check_invariants().unwrap();
        for (&id, tokens) in &self.tokens {
            assert_eq!(self.cache.sequence_length(id) as usize, tokens.len(), "the length of sequence {id}");
            let states = follow(&vec![0; self.bytes], tokens);
            assert_eq!(self.cache.states_of(id).unwrap(), states, "the states of sequence {id}");
            for &layer in &self.layers {
                let expected: Vec<f32> = tokens.iter().flat_map(|&token| [token as f32; 2]).collect();
                let kv = self.cache.gather(id, layer).unwrap();
                assert_eq!(kv.k.to_f32().unwrap(), expected, "the keys of sequence {id} in layer {layer}");
            }
        }
    }
}

fn rows(of: &[(u64, &[u32])]) -> Tensor {
    let rows: Vec<f32> = of.iter().flat_map(|(_, ids)| ids.iter().flat_map(|&token| [token as f32; 2])).collect();
    let tokens = rows.len() / 2;
    Tensor::from_vec(rows, (1, tokens, 2), &Device::Cpu).unwrap().to_dtype(Dtype::F32).unwrap()
}
