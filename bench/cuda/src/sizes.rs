//! The sizes of workloads: those of a server, and small ones for the CPU that emulates a GPU.

/// Sizes of all workloads. Rows are bf16.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Heads of K and V, and of queries.
    pub kv_heads: usize,
    pub query_heads: usize,
    pub dim: usize,
    pub block: usize,
    pub layers: usize,
    /// The number of tokens of the prompt that is written, scattered and gathered.
    pub prompt: usize,
    /// The bytes of bf16 in each of the other moves and quantisations.
    pub carried: usize,
    pub sequences: usize,
    pub keys: usize,
    /// Layers of the pool that attention reads from, in turn.
    pub pool_layers: usize,
    /// The number of queries of a prompt's chunk, and the number of chunks computed at once.
    pub chunk: usize,
    pub chunks: usize,
    /// The side of the matrices that show the device's peak rate.
    pub matrix: usize,
    /// The number of pieces of work per round, for work that takes microseconds.
    pub times: usize,
}

impl Sizes {
    /// Sizes of a server: 32 layers of 8 heads, a prompt of 8.6 GB.
    pub const FULL: Sizes = Sizes {
        kv_heads: 8,
        query_heads: 32,
        dim: 128,
        block: 16,
        layers: 32,
        prompt: 65_536,
        carried: 1 << 30,
        sequences: 64,
        keys: 8192,
        pool_layers: 4,
        chunk: 2048,
        chunks: 4,
        matrix: 8192,
        times: 64,
    };

    /// Small sizes that cover every path, with a last block that is not full.
    pub const SMALL: Sizes = Sizes {
        kv_heads: 2,
        query_heads: 8,
        dim: 64,
        block: 16,
        layers: 3,
        prompt: 56,
        carried: 1 << 16,
        sequences: 3,
        keys: 96,
        pool_layers: 2,
        chunk: 40,
        chunks: 2,
        matrix: 32,
        times: 2,
    };

    pub fn row(&self) -> usize {
        2 * self.dim
    }

    /// Bytes of K, or of V, of the prompt in all layers.
    pub fn prompt_part(&self) -> usize {
        self.layers * self.prompt * self.kv_heads * self.row()
    }

    /// Bytes of K, or of V, of all keys of a step's sequences in one layer.
    pub fn keys_part(&self) -> usize {
        self.sequences * self.kv_heads * self.keys * self.row()
    }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn a_prompt_has_what_its_elements_take() {
        let Sizes { prompt, layers, kv_heads, dim, .. } = Sizes::FULL;
        assert_eq!(2 * Sizes::FULL.prompt_part(), prompt * layers * kv_heads * dim * 2 * 2);
        assert_eq!(2 * Sizes::FULL.prompt_part(), 8_589_934_592);
        assert_eq!(2 * Sizes::FULL.keys_part(), 2_147_483_648);
    }

    #[test]
    fn blocks_of_keys_and_of_what_is_quantised_are_whole() {
        for sizes in [Sizes::FULL, Sizes::SMALL] {
            assert!(
                sizes.keys.is_multiple_of(sizes.block) && sizes.chunk <= sizes.keys && sizes.chunks <= sizes.sequences
            );
            assert!(sizes.carried.is_multiple_of(2 * sizes.block * sizes.kv_heads * sizes.row()));
        }
        assert!(!Sizes::SMALL.prompt.is_multiple_of(Sizes::SMALL.block), "the path of blocks that are not full");
    }
}
