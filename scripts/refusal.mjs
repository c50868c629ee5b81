// A reason not to go on that the person at the keyboard can do something about: shown without a stack.

/** Why something cannot be made. */
export class Refusal extends Error {}

/** A program or a server that is not there: what needs it is skipped, by its name. */
export class Missing extends Refusal {}

/** Runs `work`, and says what it refuses. */
export async function refusable(what, work) {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    console.error(`${what}: ${error.message}`)
    process.exitCode = 1
  }
}
