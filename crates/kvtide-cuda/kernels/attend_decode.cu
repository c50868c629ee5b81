// Decode: a step's few queries over everything that a sequence keeps.
//
//   grid   shares of sequences x heads of keys; all query heads of a group, and all queries of a step, share each load
//
// Meant to be bound by memory. Counted, not measured: at head dim 128 in bf16 a warp has 8 KiB of keys and values for 32 multiplications of tiles, 16 loads of four
// matrices, and about as many instructions again for the softmax: a seventh of what a multiprocessor issues while they arrive.
// Low-bit pages are widened once in shared memory, which takes half of what it issues. Two or three tiles are under way at any
// time, two blocks a multiprocessor. Where a row lies is looked up once, a tile ahead. Each sequence is cut in as many shares as its length
// asks (src/attend/plan.rs).
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_decode, false)
