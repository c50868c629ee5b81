// The rules of sequences whose layers keep states, for a cache without: what cannot be taken back there is refused here, although this cache could do it. So a
// model's answers show whether its scheduler computes again what those rules cost.
import { KvTideError } from '../../../index.js'
import { AnyTransaction } from '../../../lib/contiguous/kv-transaction.js'
import { stateOf } from '../../../lib/onnx/sequence-state.js'
import { Sequence } from '../../../lib/paged/sequence.js'

/** The refusals so far. */
interface Refused {
  truncations: number
  commits: number
}

function refusal(requested: number, seqLen: number, below: number): KvTideError {
  const reason = 'layers keep a state of other positions'
  const details = { requested, seqLen, reason, below }
  return new KvTideError('CANNOT_ROLL_BACK', `cannot truncate to ${requested}: ${reason}`, details)
}

/**
 * Keeps the rules until it is disposed of: a sequence is truncated to nothing, or to a multiple of `every`, and a transaction keeps all of its tokens or none.
 * Applies to all sequences of models in this thread.
 */
export function stateRules(every: number): Refused & Disposable {
  const refused = { truncations: 0, commits: 0 }
  const { truncate } = Sequence.prototype
  const { commit } = AnyTransaction.prototype
  const held = Object.getOwnPropertyDescriptor(Sequence.prototype, 'length')?.get as (this: Sequence) => number
  Sequence.prototype.truncate = function truncateToState(this: Sequence, length: number): void {
    const seqLen = held.call(this)
    if (length < seqLen && length % every !== 0 && stateOf(this)?.hasTransaction === false) {
      refused.truncations += 1
      throw refusal(length, seqLen, length - (length % every))
    }
    truncate.call(this, length)
  }
  AnyTransaction.prototype.commit = function commitWhole(this: AnyTransaction, count?: number): void {
    const { length } = this
    if (count !== undefined && count > 0 && count < length) {
      refused.commits += 1
      throw refusal(count, length, 0)
    }
    commit.call(this, count)
  }
  return Object.assign(refused, {
    [Symbol.dispose]: () => {
      Sequence.prototype.truncate = truncate
      AnyTransaction.prototype.commit = commit
    },
  })
}
