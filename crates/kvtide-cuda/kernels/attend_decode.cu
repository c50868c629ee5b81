// Decode: a step's few queries over all tokens of a sequence.
//
// grid   shares of sequences x KV heads; all query heads of a group, and all queries of a step, share each load
//
// Bound by memory bandwidth over bf16 and f16 pages, by instructions over low-bit pages: on an H200, a tile of 64 keys at head
// dim 128 takes a warp about 800 instructions in bf16, and 1,500 in q8, of which widening is two fifths. A copy of 16 bytes takes
// about seven instructions: the address of a row is looked up once, a tile ahead, and each thread copies the same unit of many
// rows. Two or three tiles are in flight at any time, with two blocks per multiprocessor. Each sequence is divided into as many
// shares as its length requires (src/attend/plan.rs).
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_decode, false)
