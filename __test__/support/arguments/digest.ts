import {
  BlockPool,
  BlockTable,
  type CacheStats,
  type Kv,
  KvCache,
  memoryStats,
  PagedKvCache,
  PrefixMatch,
  RollbackCache,
  RollbackMark,
  RotatingCache,
  RotatingKvCache,
  RotatingSnapshot,
  Sequence,
  Snapshot,
  Step,
  Tensor,
} from '../../../index.js'
import { OnnxModel, OnnxPast, OnnxSequence } from '../../../onnx.js'
import { TextModel } from '../../../text.js'
import { CachedModel } from '../../../transformers.js'

/** Costs, without copies and without memory that waits for garbage collection. */
function costs({ bufferBytes, limitBytes, growths, compactions }: CacheStats): unknown {
  return { bufferBytes, limitBytes, growths, compactions }
}

function tensor(view: Tensor | null): unknown {
  if (view === null) return null
  const { dtype, isStale, keyPositions } = view
  return { dtype, shape: view.shape, isStale, keyPositions, elements: isStale ? null : Array.from(view.toArray()) }
}

function pair(shown: Tensor | Kv | null): unknown {
  return shown === null || shown instanceof Tensor ? tensor(shown) : [tensor(shown.k), tensor(shown.v)]
}

function rotating(cache: RotatingCache | RotatingKvCache): unknown {
  const { currentSeqLen, capacitySeqLen, retainedLen, dtype, maxSeqLen, sinks, dim } = cache
  const shown = [cache.currentData(), cache.lastAppendResult(), cache.allData()].map(pair)
  return {
    currentSeqLen,
    capacitySeqLen,
    retainedLen,
    dtype,
    maxSeqLen,
    sinks,
    dim,
    shown,
    ...(costs(cache.stats()) as object),
  }
}

function paged(cache: PagedKvCache): unknown {
  const { freeCount, totalCount, numLayers } = cache
  const sequences = cache.sequenceIds().map(id => {
    const length = cache.sequenceLength(id)
    const slots = Array.from({ length: length * numLayers }, (_, slot) => {
      try {
        const { key, value } = cache.readKv(id, slot % numLayers, Math.floor(slot / numLayers))
        return [Array.from(key), Array.from(value)]
      } catch (error) {
        return (error as { code: string }).code
      }
    })
    return { id, length, capacity: cache.sequenceCapacity(id), slots }
  })
  const { cachedBlocks, activeBlocks, evictions, pools } = cache.stats()
  return {
    freeCount,
    totalCount,
    groups: cache.groups,
    pools,
    cachedBlocks,
    activeBlocks,
    evictions,
    sequences,
    ...(costs(cache.stats()) as object),
  }
}

function state(object: unknown): unknown {
  if (object instanceof Tensor) return tensor(object)
  if (object instanceof KvCache) {
    const { seqLen, capacity } = object
    return {
      seqLen,
      capacity,
      raw: [tensor(object.kCacheRaw), tensor(object.vCacheRaw)],
      ...(costs(object.stats()) as object),
    }
  }
  if (object instanceof RotatingCache || object instanceof RotatingKvCache) return rotating(object)
  if (object instanceof RollbackCache) {
    const { totalLen, committedLen } = object
    return { totalLen, committedLen, current: pair(object.current()), ...(costs(object.stats()) as object) }
  }
  if (object instanceof PagedKvCache) return paged(object)
  if (object instanceof OnnxModel || object instanceof CachedModel) return paged(object.cache)
  if (object instanceof TextModel) return paged(object.model.cache)
  if (object instanceof OnnxPast) return object.length
  if (object instanceof OnnxSequence) return [object.id, object.length, Array.from(object.tokens), pair(object.kv(0))]
  if (object instanceof Sequence)
    return [object.id, object.length, object.committedLength, object.capacity, pair(object.kv(0))]
  if (object instanceof Step) return [object.sequences, object.offsets, object.length]
  if (object instanceof Snapshot || object instanceof PrefixMatch) return object.length
  if (object instanceof BlockPool) return [object.freeCount, object.totalCount, object.utilization]
  if (object instanceof BlockTable)
    return [0, 1].map(layer => [object.numBlocks(layer), object.getBlock(layer, 0), object.getBlock(layer, 1)])
  if (object instanceof RollbackMark) return object.committedLen
  if (object instanceof RotatingSnapshot)
    return [object.currentSeqLen, object.maxSeqLen, object.retainedLen, object.sinks, object.dim]
  return null
}

/** Describes everything observable of an object and of the process, as text to compare. */
export function digest(object: unknown): string {
  return JSON.stringify([state(object), memoryStats().limitBytes])
}
