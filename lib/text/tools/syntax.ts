// The forms in which models write calls of tools, by the family of their templates.
//
//     hermes        <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>                     Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3
//     qwen3-coder   <tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>
//     llama3        {"name": "f", "parameters": {…}}, also behind <|python_tag|>; several with `;`
//     mistral       [TOOL_CALLS] [{"name": "f", "arguments": {…}}]  or  [TOOL_CALLS]f[ARGS]{…}
//     granite       <|tool_call|>[{"name": "f", "arguments": {…}}]
//     deepseek      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//     gpt-oss       <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//
// The family follows from the text of the template, which shows the model's form in its instructions and in the calls of earlier turns.
import type { ToolFamily } from '../types.js'

/** The signs of a family in a template, the most specific first. */
const SIGNS: readonly (readonly [family: ToolFamily, signs: readonly string[]])[] = [
  ['gpt-oss', ['<|channel|>', '<|message|>']],
  ['qwen3-coder', ['<function=', '<parameter=']],
  ['deepseek', ['<｜tool▁call▁begin｜>']],
  ['mistral', ['[TOOL_CALLS]']],
  ['granite', ['<|tool_call|>']],
  ['hermes', ['<tool_call>']],
  ['llama3', ['{"name": "', '"parameters": ', 'tool_calls']],
  ['llama3', ['<|python_tag|>']],
]

/** Signs of forms that are not read here, though they have words of the others: GLM's, Command R's. */
const OTHERS = ['<arg_key>', '<|START_ACTION|>']

/** @internal The family of a template's text; `undefined` if it takes no tools, or none that is known. */
export function familyOf(template: string): ToolFamily | undefined {
  if (!/\btools\b|\btool_calls\b/.test(template) || OTHERS.some(sign => template.includes(sign))) return undefined
  return SIGNS.find(([, signs]) => signs.every(sign => template.includes(sign)))?.[0]
}

/** @internal The texts that start calls in an answer. */
export const OPENERS: Readonly<Record<Exclude<ToolFamily, 'gpt-oss'>, readonly string[]>> = {
  hermes: ['<tool_call>'],
  'qwen3-coder': ['<tool_call>', '<function='],
  llama3: ['<|python_tag|>'],
  mistral: ['[TOOL_CALLS]'],
  granite: ['<|tool_call|>', '<tool_call>'],
  deepseek: ['<｜tool▁calls▁begin｜>', '<｜tool▁call▁begin｜>'],
}

/** @internal Tokens of a family that have a meaning in an answer, though some tokenizers call them special. */
export const MARKERS: readonly string[] = [
  ...Object.values(OPENERS).flat(),
  '</tool_call>',
  '[ARGS]',
  '[CALL_ID]',
  '<｜tool▁sep｜>',
  '<｜tool▁call▁end｜>',
  '<｜tool▁calls▁end｜>',
  '<|channel|>',
  '<|message|>',
  '<|constrain|>',
  '<|start|>',
  '<|end|>',
  '<|call|>',
]
