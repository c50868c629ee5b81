// Getters and methods of typed arrays, read from their common prototype when this module is loaded. Later changes of the prototype, and an array's own
// properties, cannot replace them, so a check sees the array that the addon gets.
const typedArrays = Object.getPrototypeOf(Uint8Array.prototype) as object

/** @internal A getter of typed arrays of any realm. An array's own properties cannot shadow it. */
export function intrinsic<T>(name: string | symbol): (value: unknown) => T {
  const get = Object.getOwnPropertyDescriptor(typedArrays, name)?.get as (this: unknown) => T
  return value => get.call(value)
}

/** @internal The kind of a typed array; `undefined` for other values. */
export const arrayKind: (value: unknown) => string | undefined = intrinsic(Symbol.toStringTag)

/** @internal The method `at` of typed arrays, which an array's own properties cannot shadow. */
export const at = Reflect.get(typedArrays, 'at') as (this: ArrayBufferView, place: number) => unknown
