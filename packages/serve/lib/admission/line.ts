// Admission: a bounded number of answers is computed at once, a bounded number of requests waits, and tenants share both fairly.
//
// - A request runs at once if there are places and nothing waits.
// - A place that becomes free goes to the tenant with the fewest running answers of those that wait, to its oldest request. Of equal tenants, the one that was
//   served longest ago is next.
// - If the line is full, a request of a tenant that has fewer waiting requests than another by at least two displaces the newest request of the tenant with the
//   most. A tenant that is refused because of its own requests gets 429, any other 503. Both say when to retry.
//
// Each operation costs O(tenants that wait).
import { overloaded } from '../refusal.js'

/** A request in the line. */
interface Waiting {
  readonly tenant: string
  readonly places: number
  readonly resolve: (place: Place) => void
  readonly reject: (reason: unknown) => void
}

/** The requests of one tenant. */
interface Share {
  readonly waiting: Waiting[]
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

/** A request for places. */
export interface AskedPlaces {
  readonly tenant: string
  /** The number of answers that it computes at once. */
  readonly places: number
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
  #admissions = 0
  /** The average time of a request from its admission to its end, in seconds. */
  #seconds = 1
  #isClosed = false

  /** `tenants` is the number of tenants that there are: a line for a single one does not answer 429. */
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

  /** Admits a request once it has its places; more than there are count as all. */
  admit({ tenant, places, signal }: AskedPlaces): Promise<Place> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw this.#closed()
      signal.throwIfAborted()
      const entry: Waiting = { tenant, places: Math.min(places, this.#runningMax), resolve, reject }
      const share = this.#shareOf(tenant)
      // Nothing waits while there are places, except for requests that need more of them.
      if (this.#waiting === 0 && this.#running + entry.places <= this.#runningMax) return this.#enter(entry, share)
      if (this.#waiting >= this.#waitingMax) this.#makeRoom(tenant, share)
      this.#waiting += 1
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
    const found = this.#shares.get(tenant) ?? { waiting: [], running: 0, served: 0 }
    this.#shares.set(tenant, found)
    return found
  }

  /** Makes room in the full line for a request, or refuses it. */
  #makeRoom(tenant: string, share: Share): void {
    let [heaviest, most] = [tenant, share.waiting.length + 1]
    for (const [name, { waiting }] of this.#shares) if (waiting.length > most) [heaviest, most] = [name, waiting.length]
    if (heaviest === tenant) {
      const isOwn = this.#tenants > 1 && share.waiting.length + share.running > 0
      this.#forget(tenant, share)
      throw this.#full(isOwn)
    }
    const newest = this.#shareOf(heaviest).waiting.at(-1) as Waiting
    this.#withdraw(newest, this.#full(true))
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
    this.#waiting -= 1
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
      this.#waiting -= 1
      this.#enter(entry, next)
    }
  }
}

function isBefore(one: Share, other: Share): boolean {
  return one.running === other.running ? one.served < other.served : one.running < other.running
}
