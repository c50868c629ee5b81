/** The element of the page with this id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id)
  if (found === null) throw new Error(`the page has no ${id}`)
  return found as T
}

/** A new element. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  of: Partial<HTMLElementTagNameMap[K]>,
  ...children: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(tag), of)
  made.append(...children)
  return made
}
