import { whole } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { liveArgument, nativeOf } from '../border/owner.js'
import type { Engine } from './engine.js'

/** @internal A sequence: its number, and its cache. */
export interface SequenceHandle {
  readonly engine: Engine
  readonly id: number
}

/** @internal The number of a sequence of this cache, given as such or as its object. */
export function seqOf(engine: Engine, argument: string, seq: unknown): number {
  const { sequence } = engine
  if (nativeOf(seq, sequence) === undefined) return whole(argument, seq)
  const found = liveArgument<SequenceHandle>(argument, seq, sequence)
  if (found.engine !== engine) throw invalid(argument, seq, 'a sequence of this cache')
  return found.id
}

/** @internal Nothing is what an empty sequence has, and what one that is not there would; the latter is refused. */
export function absent(engine: Engine, id: number): 0 {
  engine.native.checkSequence(id)
  return 0
}
