// Recognises model files that are not ONNX graphs, so that `kvtide inspect` can say what the file is and what to do. Reads at most 24 bytes of the file.
import { readRegular } from '../loading/regular-file.js'

/** Other formats of model files, recognised by their first bytes, and advice for each. */
const FORMATS: readonly {
  readonly name: string
  readonly begins: (head: Buffer) => boolean
  readonly advice: string
}[] = [
  {
    name: 'a GGUF file of llama.cpp',
    begins: head => head.subarray(0, 4).toString('latin1') === 'GGUF',
    advice: 'export the original model to ONNX',
  },
  {
    name: 'a safetensors file, which has weights and no graph',
    begins: isSafetensors,
    advice: 'export the model to ONNX, with `optimum-cli export onnx` for instance',
  },
  {
    name: 'a zip archive, as PyTorch saves weights',
    begins: head => head.readUInt32LE(0) === 0x04034b50,
    advice: 'export the model to ONNX, with `optimum-cli export onnx` for instance',
  },
  {
    name: 'a text file, perhaps a config.json or a pointer of Git LFS',
    begins: head => /^(?:\s*\{|version https:\/\/git-lfs)/.test(head.toString('latin1')),
    advice: 'pass the model.onnx; `git lfs pull` downloads the file of a pointer; `kvtide plan` reads a config.json',
  },
]

const HEAD_BYTES = 24

/** A safetensors file begins with the length of its header in 64 bits, and the header is JSON. */
function isSafetensors(head: Buffer): boolean {
  return head.readUInt32LE(4) === 0 && head.readUInt32LE(0) > 1 && head[8] === 0x7b
}

/** Returns the format of a file that is not an ONNX graph, and advice; `undefined` for an unknown format. */
export function otherFormat(file: string): { readonly name: string; readonly advice: string } | undefined {
  const head = Buffer.alloc(HEAD_BYTES)
  try {
    readRegular(file, HEAD_BYTES).head.copy(head)
  } catch {
    return undefined
  }
  return FORMATS.find(format => format.begins(head))
}
