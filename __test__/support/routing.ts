// Routers that follow a cache: the ends of a publisher, prompts of a small world, and the comparison of a router with the cache that it follows.
import type { ExecutionContext } from 'ava'

import type { EventPublisher, PagedKvCache, PrefixRouter, PublishOptions } from '../../index.js'
import { until } from './until.js'

export const LOOPBACK: PublishOptions = { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' }

/** The endpoints of a publisher, to follow it. */
export const followed = ({
  endpoint,
  replayEndpoint,
}: EventPublisher): { endpoint: string; replayEndpoint: string } => ({
  endpoint,
  replayEndpoint: replayEndpoint as string,
})

/** A prompt of a small world, in which prompts share beginnings. Its last token is never cached. */
export function branching(random: () => number, blockSize: number): number[] {
  const tokens: number[] = []
  for (let block = 0, blocks = 1 + random() * 8; block < blocks; block++) {
    const branch = block % 3 === 0 ? Math.floor(random() * 3) : 0
    for (let token = 0; token < blockSize; token++) tokens.push(1 + branch * 100 + block * blockSize + token)
  }
  return [...tokens, 7]
}

/** The number of tokens that a cache finds of a prompt. */
type Found = (cache: PagedKvCache, tokens: readonly number[]) => number

/** The prompts of which a router promises other blocks than the cache of the worker finds: their tokens, and both numbers of blocks. */
export const differingBy =
  (found: Found) =>
  (router: PrefixRouter, worker: string, cache: PagedKvCache, prompts: readonly number[][]): number[][] => {
    const has = (tokens: readonly number[]): number =>
      router.lengths(cache.keys(tokens)).find(of => of.worker === worker)?.blocks ?? 0
    return prompts
      .map(tokens => [tokens.length, has(tokens), found(cache, tokens) / cache.blockSize])
      .filter(([, routed, own]) => routed !== own)
  }

/** Waits until a worker is known to have what its cache has of all prompts. */
export const agreesBy = (found: Found) => {
  const differing = differingBy(found)
  return async (
    t: ExecutionContext,
    router: PrefixRouter,
    worker: string,
    cache: PagedKvCache,
    prompts: readonly number[][],
    what: string,
  ): Promise<void> => {
    const isSame = await until(() => differing(router, worker, cache, prompts).length === 0)
    t.true(isSame, `${what}: ${JSON.stringify(differing(router, worker, cache, prompts))}`)
  }
}
