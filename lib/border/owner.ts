// The base class of all objects that own a native one. It guarantees that a method never runs on a foreign or a disposed object: both are refused with an
// error. Finding the native object costs one look at a private field.
import { invalid, KvTideError } from '../errors/errors.js'

/** Passed to constructors that only this package may call. */
export const INTERNAL: unique symbol = Symbol('kvtide')

/** A class whose objects own a native object. */
export type Class = abstract new (...args: never[]) => Owner

let look: (value: object, owner: Class) => object | undefined
let isEnded: (value: Owner) => boolean
let nameOf: (value: Owner) => string
let end: (value: Owner) => (() => void) | undefined

/**
 * An object that owns a native one. The native object is in a private field, which outside code cannot read or set. The owner
 * remembers the class that it was made for, so an object cannot pass for one of another class.
 */
export abstract class Owner {
  readonly #native: object
  readonly #class: Class
  readonly #onEnd: (() => void) | undefined
  #ended = false

  static {
    isEnded = value => value.#ended
    nameOf = value => value.#class.name
    end = value => {
      value.#ended = true
      return value.#onEnd
    }
    look = (value, owner) => {
      if (!(#native in value)) return undefined
      const made = value.#class
      return made === owner || made.prototype instanceof owner ? value.#native : undefined
    }
  }

  /** @internal `ended` is called when the object is disposed of. */
  constructor(token: unknown, native: object, owner: Class, ended?: () => void) {
    checkInternal(token, 'the base class', 'a class of this package instead')
    this.#native = native
    this.#class = owner
    this.#onEnd = ended
  }

  /** Disposes of the object and frees its memory. Later calls on it throw `DISPOSED`; a second `dispose()` does nothing. */
  dispose(): void {
    endThis(this, Owner)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, Owner)
  }
}

/** The native object of `value`; `undefined` if `value` is not an object of the class `owner`. */
export function nativeOf<N extends object>(value: unknown, owner: Class): N | undefined {
  return typeof value === 'object' && value !== null ? (look(value, owner) as N | undefined) : undefined
}

/** The native object of an argument, which is refused if it is not an object of the class `owner`. */
export function nativeArgument<N extends object>(argument: string, value: unknown, owner: Class): N {
  const native = nativeOf<N>(value, owner)
  if (native === undefined) throw invalid(argument, value, `a ${owner.name}`)
  return native
}

/** As {@link nativeArgument}, but also refuses an object that was disposed of. */
export function liveArgument<N extends object>(argument: string, value: unknown, owner: Class): N {
  const native = nativeArgument<N>(argument, value, owner)
  if (isEnded(value as Owner)) {
    const object = nameOf(value as Owner)
    throw new KvTideError('DISPOSED', `the ${object} was disposed of`, { object })
  }
  return native
}

/** The native object of `this`, which is refused if it was disposed of. Called before arguments are checked. */
export function nativeThis<N extends object>(self: unknown, owner: Class): N {
  return liveArgument('this', self, owner)
}

/** Checks `this` for classes without a native object: `isOwn` looks for one of their private fields. */
export function checkThis(self: unknown, isOwn: (value: object) => boolean, expected: string): void {
  if (typeof self !== 'object' || self === null || !isOwn(self)) throw invalid('this', self, expected)
}

/** Disposes of `this`: every later call on it is refused. A second call does nothing. */
export function endThis(self: unknown, owner: Class): void {
  const native = nativeArgument<{ dispose(): void }>('this', self, owner)
  const ended = end(self as Owner)
  native.dispose()
  ended?.()
}

/** @internal Returns the result of a call that takes over an object. Disposes of the object if the call throws. */
export function orDisposed<T>(owned: { dispose(): void }, call: () => T): T {
  try {
    return call()
  } catch (error) {
    owned.dispose()
    throw error
  }
}

/** Refuses a constructor call from outside of this package. */
export function checkInternal(token: unknown, name: string, how: string): void {
  if (token !== INTERNAL) throw invalid(`arguments of new ${name}()`, token, how)
}

/** Sets the read-only properties of an object under construction. */
export function settle<T extends object, K extends keyof T>(self: T, values: Pick<T, K>): void {
  for (const name of Object.keys(values) as K[]) {
    Object.defineProperty(self, name, { value: values[name], enumerable: true })
  }
}
