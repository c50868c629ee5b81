// Decode: a step's few queries over everything that a sequence keeps.
//
//   grid   sequences x heads of keys x splits; all query heads of a group, and all queries of a step, share each load
//
// Meant to be bound by memory. Counted, not measured: at head dim 128 in bf16 a warp has 8 KiB of keys and values for 32 multiplications of tiles, 16 loads of four
// matrices, and about as many instructions again for the softmax: a seventh of what a multiprocessor issues while they arrive.
// Low-bit pages are widened once in shared memory, which takes half of what it issues. Two or three tiles are under way at any
// time, two blocks a multiprocessor. Rows that lie a page apart cost a look into the table for each row and thread.
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_decode, false)
