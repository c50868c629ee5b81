// Decode: a step's few queries over all tokens of a sequence.
//
// grid   shares of sequences x KV heads; all query heads of a group, and all queries of a step, share each load
//
// Designed to be bound by memory bandwidth. Counted, not measured: at head dim 128 in bf16, a warp has 8 KiB of keys and
// values for 32 tile multiplications, 16 loads of four matrices, and about as many instructions again for the softmax: a
// seventh of what a multiprocessor issues while they arrive. Low-bit pages are widened once in shared memory, which takes
// half of the issued instructions. Two or three tiles are in flight at any time, with two blocks per multiprocessor. The
// address of a row is looked up once, a tile ahead. Each sequence is divided into as many shares as its length requires
// (src/attend/plan.rs).
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_decode, false)
