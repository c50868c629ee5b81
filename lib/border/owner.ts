import { invalid, KvTideError } from './errors.js'

/** What makes objects that only this package may make. */
export const INTERNAL: unique symbol = Symbol('kvtide')

/** A class whose objects keep a native one. */
export type Class = abstract new (...args: never[]) => Owner

let look: (value: object, owner: Class) => object | undefined
let isEnded: (value: Owner) => boolean
let nameOf: (value: Owner) => string
let end: (value: Owner) => void

/**
 * An object that keeps a native one. The native one is private: it can neither be read nor put there from outside, and it
 * remembers which class it was made for, so that no other object passes for it.
 */
export abstract class Owner {
  readonly #native: object
  readonly #class: Class
  #ended = false

  static {
    isEnded = value => value.#ended
    nameOf = value => value.#class.name
    end = value => {
      value.#ended = true
    }
    look = (value, owner) => {
      if (!(#native in value)) return undefined
      const made = value.#class
      return made === owner || made.prototype instanceof owner ? value.#native : undefined
    }
  }

  /** @internal */
  constructor(token: unknown, native: object, owner: Class) {
    checkInternal(token, 'the base class', 'a class of this package instead')
    this.#native = native
    this.#class = owner
  }

  /** Ends it, and gives back what only it needs. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, Owner)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, Owner)
  }
}

/** The native object of `value`, or nothing when it is not an object that `owner` made. */
export function nativeOf<N extends object>(value: unknown, owner: Class): N | undefined {
  return typeof value === 'object' && value !== null ? (look(value, owner) as N | undefined) : undefined
}

/** The native object of an argument, refused when it is something else. */
export function nativeArgument<N extends object>(argument: string, value: unknown, owner: Class): N {
  const native = nativeOf<N>(value, owner)
  if (native === undefined) throw invalid(argument, value, `a ${owner.name}`)
  return native
}

/** The native object of an argument, refused when it was disposed of. */
export function liveArgument<N extends object>(argument: string, value: unknown, owner: Class): N {
  const native = nativeArgument<N>(argument, value, owner)
  if (isEnded(value as Owner)) {
    const object = nameOf(value as Owner)
    throw new KvTideError('DISPOSED', `the ${object} was disposed of`, { object })
  }
  return native
}

/** The native object of `this`, refused when it was disposed of: before anything else of the call is looked at. */
export function nativeThis<N extends object>(self: unknown, owner: Class): N {
  return liveArgument('this', self, owner)
}

/** Ends `this`: from now on every call on it is refused. A second time does nothing. */
export function endThis(self: unknown, owner: Class): void {
  const native = nativeArgument<{ dispose(): void }>('this', self, owner)
  end(self as Owner)
  native.dispose()
}

/** Refuses a constructor that was not called by this package. */
export function checkInternal(token: unknown, name: string, how: string): void {
  if (token !== INTERNAL) throw invalid(`arguments of new ${name}()`, token, how)
}

/** Gives an object under construction its properties that never change. */
export function settle<T extends object, K extends keyof T>(self: T, values: Pick<T, K>): void {
  for (const name of Object.keys(values) as K[]) {
    Object.defineProperty(self, name, { value: values[name], enumerable: true })
  }
}
