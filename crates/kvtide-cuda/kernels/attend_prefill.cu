// Prefill: many queries of a sequence over everything it keeps, a chunk of tokens at a time.
//
//   grid   tiles of 64 rows, and their shares x heads of keys; a row is a query and one of the heads that share its head of keys
//
// Bound by tensor cores: each key is multiplied with 64 rows. Tiles of keys that no row sees are skipped, and only those on an edge
// are looked at key by key. Rows that see the most begin first, so that none of them ends alone.
#include "attend/tensor.cuh"

ATTEND_KERNELS(attend_prefill, true)
