import test, { type ExecutionContext } from 'ava'

import { mappedFiles, platformOf } from '../../../lib/loading/platform.js'

export const PLATFORM: string = platformOf(process.platform, process.arch, mappedFiles()).name

/** True if onnxruntime-node has no binary for this system. */
export const ABSENT: boolean = PLATFORM.endsWith('-musl') || PLATFORM === 'darwin-x64'

/** A test that needs onnxruntime-node: reported as SKIPPED if there is none for this system. */
export function onnxTest(
  title: string,
  run: (t: ExecutionContext) => unknown,
  declare: (title: string, run: (t: ExecutionContext) => unknown) => void = test,
): void {
  if (ABSENT) test.skip(`SKIPPED: onnxruntime-node has nothing for ${PLATFORM}: ${title}`, run)
  else declare(title, run)
}
