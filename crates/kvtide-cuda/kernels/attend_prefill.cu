// Prefill: many queries of a sequence over all its tokens, a chunk of tokens at a time.
//
// grid   tiles of 64 rows, and their shares x KV heads; a row is a query and one of the heads that share its KV head
//
// Bound by tensor cores: each key is multiplied with 64 rows. Tiles of keys that no row attends to are skipped, and only
// tiles at an edge are checked key by key. Rows with the most keys begin first, so that none of them ends alone.
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_prefill, true)
