// Planted faults of models of ONNX graphs: steps that fail, grammars, images, encodings, and checkpoints of states.
import { ava } from './checks.mjs'

const SCHEDULER = 'lib/onnx/scheduler.ts'
const SPANS = 'lib/onnx/spans.ts'
const CROSS = 'lib/onnx/cross-cache.ts'
const CROSSINGS = 'lib/onnx/crossings.ts'
const ENCODING = 'lib/onnx/encoding.ts'

const faults = title => ava('__test__/onnx/faults.test.ts', title)
const grammars = title => ava('__test__/onnx/grammar.test.ts', title)
const embeds = title => ava('__test__/onnx/embeds.test.ts', title)
const encoders = title => ava('__test__/onnx/encoder-decoder.test.ts', title)
const checkpoints = title => ava('__test__/onnx/checkpoints.test.ts', title)

export const models = [
  {
    name: 'failed-step',
    fault: 'a step that fails stays committed',
    file: SCHEDULER,
    from: '      logits = await this.#backend.run({ step, sequences, offsets, ids, positions, rows, embeds })\n      step.commit()\n',
    to: '      const running = this.#backend.run({ step, sequences, offsets, ids, positions, rows, embeds })\n      logits = await running.finally(() => step.commit())\n',
    check: faults('parts: a step that fails when its layers are written is undone, *'),
  },
  {
    name: 'failed-neighbours',
    fault: 'a sequence whose step fails takes the others of the step with it',
    file: SCHEDULER,
    from: '    if (parts.length === 1) {\n      this.#drop((parts[0] as StepPart).task, this.#isEnded ? disposed() : error)\n      return 0\n    }',
    to: '    if (parts.length > 0) {\n      for (const { task } of parts) this.#drop(task, this.#isEnded ? disposed() : error)\n      return 0\n    }',
    check: faults('parts: a step that fails when its layers are written is undone, *'),
  },
  {
    name: 'logits-shape',
    fault: 'logits of another number of rows are taken',
    file: 'lib/onnx/logits.ts',
    from: 'isList && (rows === count || rows === 1) && bits',
    to: 'isList && bits',
    check: ava('__test__/onnx/pruned.test.ts', 'rows are read as a shape says, and none is made up'),
  },
  {
    name: 'step-token',
    fault: 'a token at the end of the vocabulary is taken',
    file: 'lib/onnx/token-log.ts',
    from: 'id => id >= vocabulary)',
    to: 'id => id > vocabulary)',
    check: faults('parts: a token outside of the vocabulary fails alone, *'),
  },
  {
    name: 'grammar-kinds',
    fault: 'of two grammars, the second one is ignored',
    file: 'lib/sampling/grammar.ts',
    from: 'if (given.length !== 1) throw',
    to: 'if (given.length === 0) throw',
    check: grammars('a grammar is of one kind'),
  },
  {
    name: 'image-key',
    fault: 'a prompt finds blocks of another image',
    file: SPANS,
    from: '    { start, end, key },\n',
    to: '',
    check: embeds('*, plain: a prefix with a picture is found with the same picture only'),
  },
  {
    name: 'image-ids',
    fault: 'the ids of an image become others',
    file: SPANS,
    from: 'if (ids[at - first] === own[at - start]) continue',
    to: 'continue',
    check: embeds('the ids of a picture cannot become others'),
  },
  {
    name: 'image-rows',
    fault: 'a prompt that is computed in pieces has the first rows of its image again',
    file: SPANS,
    from: 'data.subarray((first - start) * width, (last - start) * width)',
    to: 'data.subarray(0, (last - first) * width)',
    check: ava('__test__/onnx/spans.test.ts'),
  },
  {
    name: 'encoding-key',
    fault: 'a prompt finds blocks that were computed for another encoding',
    file: ENCODING,
    from: "Buffer.from(encoding.key, 'hex')",
    to: "Buffer.from(encoding.key.slice(0, 0), 'hex')",
    check: encoders('*: no prefix is found for another encoding, and the same states are the same encoding'),
  },
  {
    name: 'encoding-mask',
    fault: 'an encoding with a mask has the key of the one without',
    file: ENCODING,
    from: '    if (mask !== undefined) hash.update(mask)\n',
    to: '',
    check: ava('__test__/onnx/cross-cache.test.ts', 'a mask hides frames: an encoding with one is another one'),
  },
  {
    name: 'cross-failed',
    fault: 'keys and values of an encoding count as computed after a step that failed',
    file: CROSS,
    from: '        for (const entry of added) this.#forget(entry)\n',
    to: '        this.#evict()\n',
    check: ava('__test__/onnx/cross-cache.test.ts', 'encodings that were used longest ago are dropped, *'),
  },
  {
    name: 'cross-eviction',
    fault: 'the encoding that was used last is dropped first',
    file: CROSS,
    from: 'for (const entry of this.#entries.values()) {\n      if',
    to: 'for (const entry of [...this.#entries.values()].toReversed()) {\n      if',
    check: ava('__test__/onnx/cross-cache.test.ts', 'encodings that were used longest ago are dropped, *'),
  },
  {
    name: 'crossing-mask',
    fault: 'a decoder attends to the padding of an encoding',
    file: CROSSINGS,
    from: '    const mask = this.#maskOf(states)\n',
    to: '    const mask = states.mask?.subarray(0, 0) && undefined\n',
    check: encoders('marian on graph: logits are those of transformers, *'),
  },
  {
    name: 'crossing-number',
    fault: 'each sequence of a step attends to the encoding of the first one',
    file: 'lib/onnx/graph.ts',
    from: 'return Uint32Array.from(encodings.numbers)',
    to: 'return Uint32Array.from(encodings.numbers, () => encodings.numbers[0] as number)',
    check: encoders('whisper on graph: tokens are those of transformers, *'),
  },
  {
    name: 'crossed-rows',
    fault: 'the heads of several queries are in the wrong order',
    file: 'lib/onnx/crossed-rows.ts',
    from: 'out.set(turned(found, numHeads, end - start), start',
    to: 'out.set(found, start',
    check: encoders('whisper on parts: logits are those of transformers, *'),
  },
  {
    name: 'checkpoint-junction',
    fault: 'no checkpoint is taken where a prompt starts to differ from earlier ones',
    file: 'lib/onnx/checkpoints.ts',
    from: 'const given = [seen, ...named, ...near]',
    to: 'const given = [...named, ...near]',
    check: checkpoints('20,000 random prompts: *'),
  },
  {
    name: 'checkpoint-salt',
    fault: 'prompts of another salt count as seen before',
    file: 'lib/onnx/seen-prompts.ts',
    from: '        for (const byte of named.key) mix(byte)\n',
    to: '',
    check: checkpoints('prompts that were seen: *'),
  },
  {
    name: 'long-rope',
    fault: 'a long sequence finds blocks of short ones',
    file: 'lib/onnx/long-rope.ts',
    from: '{ ...prompt, extra: [...(prompt.extra ?? []), LONG] } : prompt',
    to: 'prompt : prompt',
    check: ava('__test__/onnx/long-rope.test.ts', 'prefixes are found by sequences of the same side only'),
  },
]
