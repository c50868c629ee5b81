import type { BlockStore, BlockStoreCall, StoreEntry } from '../../index.js'

/** A store of one's own, in a map, whose answers a test may keep back. */
export class Shelf implements BlockStore {
  values: Map<string, Uint8Array> = new Map()
  /** The calls that came, with their signals. */
  readonly calls: { readonly name: string; readonly signal: AbortSignal }[] = []
  readonly removed: string[] = []
  /** Called before each answer, which waits for what it answers. */
  before: ((name: string) => unknown) | undefined

  async #called<T>(name: string, { signal }: BlockStoreCall, answer: () => T): Promise<T> {
    this.calls.push({ name, signal })
    await this.before?.(name)
    return answer()
  }

  getMany(keys: readonly string[], call: BlockStoreCall): Promise<(Uint8Array | undefined)[]> {
    return this.#called('getMany', call, () => keys.map(key => this.values.get(key)))
  }

  putMany(entries: readonly StoreEntry[], call: BlockStoreCall): Promise<void> {
    return this.#called('putMany', call, () => entries.forEach(({ key, value }) => this.values.set(key, value.slice())))
  }

  hasMany(keys: readonly string[], call: BlockStoreCall): Promise<boolean[]> {
    return this.#called('hasMany', call, () => keys.map(key => this.values.has(key)))
  }

  removeMany(keys: readonly string[], call: BlockStoreCall): Promise<void> {
    return this.#called('removeMany', call, () => {
      this.removed.push(...keys)
      for (const key of keys) this.values.delete(key)
    })
  }
}
