import test, { type ExecutionContext } from 'ava'

import { type ModelDescription, PagedKvCache } from '../../../index.js'
import { LentRun } from '../../../lib/sequences/lent-run.js'
import { onnxTest } from './available.js'

/** True if caches keep the states of layers, and steps on other threads write them. */
function keepsStates(): boolean {
  if (!('writeStates' in LentRun.prototype)) return false
  try {
    const layers = [{ kind: 'state', tensors: [{ name: 'conv', shape: [1], dtype: 'f32' }] }]
    new PagedKvCache({ model: { layers } as unknown as ModelDescription, capacity: 4 }).dispose()
    return true
  } catch {
    return false
  }
}

const KEPT = keepsStates()

/** A test of a cache with states: reported as SKIPPED where caches keep none. */
export function statesTest(title: string, run: (t: ExecutionContext) => unknown): void {
  if (KEPT) onnxTest(title, run)
  else test.skip(`SKIPPED: caches keep no states: ${title}`, run)
}
