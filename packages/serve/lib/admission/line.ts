// Admission: a bounded number of answers is computed at once, a bounded number of requests waits, and tenants share both fairly.
//
// - A request runs at once if there are places and nothing waits.
// - A place that becomes free goes to the tenant with the fewest running answers of those that wait, to its oldest request. Of equal tenants, the one that was
//   served longest ago is next.
// - A waiting request takes one spot of the line for each 256 KiB of its body, so that the memory of all waiting requests is bounded.
// - If the line is full, a request displaces the newest requests of a tenant that keeps at least as many spots as the request's own tenant gets. A tenant that is
//   refused because of its own requests gets 429, any other 503. Both say when to retry.
//
// Each operation costs O(tenants that wait); displacing costs O(requests that wait).
import { overloaded } from '../refusal.js'

/** A request in the line. */
interface Waiting {
  readonly tenant: string
  readonly places: number
  /** The number of spots that it takes while it waits. */
  readonly spots: number
  readonly resolve: (place: Place) => void
  readonly reject: (reason: unknown) => void
}

/** The requests of one tenant. */
interface Share {
  readonly waiting: Waiting[]
  /** The number of spots that the waiting requests take. */
  spots: number
  running: number
  /** The number of the last admission. */
  served: number
}

/** An admitted request. Disposing of it admits others. */
export class Place implements Disposable {
  /** The number of answers that may be computed at once. */
  readonly count: number
  #leave: (() => void) | undefined

  constructor(count: number, leave: () => void) {
    this.count = count
    this.#leave = leave
  }

  [Symbol.dispose](): void {
    const leave = this.#leave
    this.#leave = undefined
    leave?.()
  }
}

/** The weight of the newest duration in the average. */
const NEWEST = 0.2
/** The bounds of `Retry-After` in seconds. */
const RETRY_MAX = 60
/** Bytes of a body for which a waiting request takes one spot. */
const SPOT_BYTES = 2 ** 18

/** A request for places. */
export interface AskedPlaces {
  readonly tenant: string
  /** The number of answers that it computes at once. */
  readonly places: number
  /** The size of its body; 0 by default. */
  readonly bytes?: number
  readonly signal: AbortSignal
}

/** Admits requests. */
export class Line {
  readonly #runningMax: number
  readonly #waitingMax: number
  readonly #tenants: number
  readonly #shares = new Map<string, Share>()
  readonly #now: () => number
  #running = 0
  #waiting = 0
  /** The number of spots that all waiting requests take. */
  #spots = 0
  #admissions = 0
  /** The average time of a request from its admission to its end, in seconds. */
  #seconds = 1
  #isClosed = false

  /** `waitingMax` is the number of spots. `tenants` is the number of tenants that there are: a line for a single one does not answer 429. */
  constructor(runningMax: number, waitingMax: number, tenants = 1, now: () => number = () => performance.now()) {
    this.#runningMax = runningMax
    this.#waitingMax = waitingMax
    this.#tenants = tenants
    this.#now = now
  }

  /** The number of answers that are computed. */
  get running(): number {
    return this.#running
  }

  /** The number of requests that wait. */
  get waiting(): number {
    return this.#waiting
  }

  /** Admits a request once it has its places. A request for more places, or of more spots, than there are takes all of them. */
  admit({ tenant, places, bytes = 0, signal }: AskedPlaces): Promise<Place> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw this.#closed()
      signal.throwIfAborted()
      const spots = Math.max(1, Math.min(Math.ceil(bytes / SPOT_BYTES), this.#waitingMax))
      const entry: Waiting = { tenant, places: Math.min(places, this.#runningMax), spots, resolve, reject }
      const share = this.#shareOf(tenant)
      // Nothing waits while there are places, except for requests that need more of them.
      if (this.#waiting === 0 && this.#running + entry.places <= this.#runningMax) return this.#enter(entry, share)
      if (this.#spots + spots > this.#waitingMax) this.#makeRoom(entry, share)
      this.#take(share, entry, 1)
      share.waiting.push(entry)
      signal.addEventListener('abort', () => this.#withdraw(entry, signal.reason), { once: true })
      this.#advance()
    })
  }

  /** Refuses all requests that wait, and those that come. */
  close(): void {
    this.#isClosed = true
    for (const [tenant, { waiting }] of this.#shares)
      for (const entry of waiting.slice()) this.#withdraw(entry, this.#closed(), tenant)
  }

  #closed(): Error {
    return overloaded('the server is shutting down')
  }

  #shareOf(tenant: string): Share {
    const found = this.#shares.get(tenant) ?? { waiting: [], spots: 0, running: 0, served: 0 }
    this.#shares.set(tenant, found)
    return found
  }

  /** Counts a request that begins to wait, with a sign of 1, or that no longer waits, with -1. */
  #take(share: Share, { spots }: Waiting, sign: 1 | -1): void {
    this.#waiting += sign
    this.#spots += sign * spots
    share.spots += sign * spots
  }

  /** Makes room in the full line for a request, or refuses it and displaces none. */
  #makeRoom({ tenant, spots }: Waiting, share: Share): void {
    const displaced: Waiting[] = []
    const shares = [...this.#shares.values()].map(each => ({ waiting: each.waiting.slice(), spots: each.spots }))
    for (let lacking = this.#spots + spots - this.#waitingMax; lacking > 0;) {
      const heaviest = shares.reduce((most, other) => (keptBy(other) > keptBy(most) ? other : most))
      const newest = heaviest.waiting.at(-1)
      if (newest === undefined || keptBy(heaviest) < share.spots + spots) {
        const isOwn = this.#tenants > 1 && share.waiting.length + share.running > 0
        this.#forget(tenant, share)
        throw this.#full(isOwn)
      }
      heaviest.waiting.pop()
      heaviest.spots -= newest.spots
      lacking -= newest.spots
      displaced.push(newest)
    }
    for (const entry of displaced) this.#withdraw(entry, this.#full(true))
  }

  #full(isOwn: boolean): Error {
    const seconds = Math.min(RETRY_MAX, (this.#seconds * (this.#waiting + 1)) / this.#runningMax)
    return isOwn
      ? overloaded('too many requests with this API key are waiting', seconds, 429)
      : overloaded(`${this.#waiting} requests are waiting already`, seconds)
  }

  #withdraw(entry: Waiting, reason: unknown, tenant: string = entry.tenant): void {
    const share = this.#shares.get(tenant)
    const at = share?.waiting.indexOf(entry) ?? -1
    if (share === undefined || at < 0) return
    share.waiting.splice(at, 1)
    this.#take(share, entry, -1)
    this.#forget(tenant, share)
    entry.reject(reason)
    this.#advance()
  }

  #enter(entry: Waiting, share: Share): void {
    this.#running += entry.places
    share.running += entry.places
    this.#admissions += 1
    share.served = this.#admissions
    const start = this.#now()
    entry.resolve(
      new Place(entry.places, () => {
        this.#seconds += NEWEST * ((this.#now() - start) / 1000 - this.#seconds)
        this.#running -= entry.places
        share.running -= entry.places
        this.#forget(entry.tenant, share)
        this.#advance()
      }),
    )
  }

  /** Forgets a tenant that has no requests. */
  #forget(tenant: string, { waiting, running }: Share): void {
    if (waiting.length === 0 && running === 0) this.#shares.delete(tenant)
  }

  /** Admits those that have places now. A request that needs several is not overtaken by the same tenant's later ones, nor by others'. */
  #advance(): void {
    while (this.#waiting > 0) {
      const shares = [...this.#shares.values()].filter(({ waiting }) => waiting.length > 0)
      const next = shares.reduce((first, other) => (isBefore(other, first) ? other : first))
      const entry = next.waiting[0] as Waiting
      if (this.#running + entry.places > this.#runningMax) return
      next.waiting.shift()
      this.#take(next, entry, -1)
      this.#enter(entry, next)
    }
  }
}

/** The number of spots that a tenant keeps without its newest waiting request. */
function keptBy({ waiting, spots }: Pick<Share, 'waiting' | 'spots'>): number {
  return spots - (waiting.at(-1)?.spots ?? 0)
}

function isBefore(one: Share, other: Share): boolean {
  return one.running === other.running ? one.served < other.served : one.running < other.running
}
