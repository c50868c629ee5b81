// A reason not to go on that the person at the keyboard can do something about: shown without a stack.

/** Why the CUDA build cannot be made. */
export class Refusal extends Error {}
