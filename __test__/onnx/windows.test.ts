// The windows of layers, as a config declares them, also that of a family that kvtide does not know.
import test from 'ava'

import { configWindows } from '../../lib/onnx/windows.js'

const config = (fields: object): string =>
  JSON.stringify({ num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2, hidden_size: 64, ...fields })

const all = [9, 9, 9, 9]
const none = [null, null, null, null]

const READ: readonly (readonly [name: string, fields: object, windows: readonly (number | null)[] | undefined])[] = [
  ['starcoder2 slides in all layers', { model_type: 'starcoder2', sliding_window: 9 }, all],
  ['mixtral too', { model_type: 'mixtral', sliding_window: 9 }, all],
  ['mixtral without a window', { model_type: 'mixtral', sliding_window: null }, none],
  ['a period', { model_type: 'cohere2', sliding_window: 9, sliding_window_pattern: 4 }, [9, 9, 9, null]],
  ['a period of one', { model_type: 'cohere2', sliding_window: 9, sliding_window_pattern: 1 }, none],
  [
    'a period, in any family',
    { model_type: 'stranger', sliding_window: 9, sliding_window_pattern: 3 },
    [9, 9, null, 9],
  ],
  ['letters', { model_type: 'exaone4', sliding_window: 9, sliding_window_pattern: 'LG' }, [9, null, 9, null]],
  [
    'letters: the last layer never slides',
    { model_type: 'exaone4', sliding_window: 9, sliding_window_pattern: 'L' },
    [9, 9, 9, null],
  ],
  [
    'a model of pictures',
    { model_type: 'llava', text_config: { model_type: 'mistral', num_hidden_layers: 2, sliding_window: 9 } },
    [9, 9],
  ],
  ['switched off', { model_type: 'qwen2_moe', sliding_window: 9, use_sliding_window: false }, undefined],
  [
    'switched on from a layer on',
    { model_type: 'qwen2_moe', sliding_window: 9, use_sliding_window: true, max_window_layers: 3 },
    [null, null, null, 9],
  ],
  [
    'types count before all others',
    {
      model_type: 'starcoder2',
      sliding_window: 9,
      layer_types: ['full_attention', 'sliding_attention', 'full_attention', 'sliding_attention'],
    },
    [null, 9, null, 9],
  ],
]

for (const [name, fields, windows] of READ)
  test(name, t => {
    for (const isGiven of [true, false])
      t.deepEqual(configWindows(config(fields), isGiven), windows as never, String(isGiven))
  })

test('a window that nothing explains is unknown, and refused in a config that was passed', t => {
  for (const fields of [
    { sliding_window: 9 },
    { sliding_window: 9, sliding_window_pattern: 'LX' },
    { sliding_window: 9, use_sliding_window: true },
    { sliding_window: 9, num_hidden_layers: 5000, sliding_window_pattern: 2 },
    { sliding_window: 9, layer_types: ['chunked_attention'], sliding_window_pattern: 2 },
  ]) {
    const text = config({ model_type: 'stranger', ...fields })
    t.is(configWindows(text, false), undefined, text)
    t.throws(() => configWindows(text, true), { code: 'UNSUPPORTED_MODEL' }, text)
  }
})
