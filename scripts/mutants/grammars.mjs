// Planted faults of grammars: masks, parsers that are used again, schemas that lead outside or too deep, and the tokens that end a text.
import { ava, tested } from './checks.mjs'

const GRAMMAR = 'crates/kvtide-sample/src/grammar'
const MATCHER = `${GRAMMAR}/matcher.rs`
const COMPILED = `${GRAMMAR}/compiled.rs`
const SCHEMA = `${GRAMMAR}/schema.rs`
const MODEL = 'lib/onnx/model.ts'

const positions = name => tested('grammar', `positions::${name}`)
const refusals = name => tested('grammar', `refusals::${name}`)
const onnx = title => ava('__test__/onnx/grammar.test.ts', title)
const ends = onnx('a text ends at the ids of the model, of its vocabulary and of *')

export const grammars = [
  {
    name: 'grammar-rollback',
    fault: 'the masks of a text that was rolled back are those of another one',
    file: MATCHER,
    from: '            self.masks.retain(|&(position, _)| position <= length);\n',
    to: '            self.masks.retain(|&(position, _)| position <= length + 1);\n',
    check: positions('advancing_rolling_back_forking_and_seeking_never_change_a_mask'),
  },
  {
    name: 'grammar-parser',
    fault: 'a parser that is used again goes on with its last text',
    file: COMPILED,
    from: 'if guarded(|| parser.reset()).is_ok() && ',
    to: 'if guarded(|| parser.check_stop()).is_ok() && ',
    check: positions('a_matcher_that_was_dropped_leaves_nothing_to_the_next_one'),
  },
  {
    name: 'grammar-document',
    fault: 'a reference to another document is read as one to this document',
    file: SCHEMA,
    from: "unescaped(own.strip_prefix('#')?)?",
    to: "unescaped(own.split_once('#')?.1)?",
    check: refusals('a_schema_is_refused_with_the_path_of_the_part'),
  },
  {
    name: 'grammar-draft',
    fault: 'the masks behind a draft are those of the draft before it',
    file: MATCHER,
    from: 'if self.tokens.get(position) != Some(&token) {',
    to: 'if self.tokens.get(position).is_none() {',
    check: positions('advancing_rolling_back_forking_and_seeking_never_change_a_mask'),
  },
  {
    name: 'grammar-levels',
    fault: 'a schema of any depth along its references is compiled',
    file: SCHEMA,
    from: 'if levels > LEVELS_MAX {',
    to: 'if levels > LEVELS_MAX * 1000 {',
    check: refusals('a_schema_is_refused_that_is_too_deep_along_its_references'),
  },
  {
    name: 'grammar-anchor',
    fault: 'a word boundary in an expression is not refused',
    file: `${GRAMMAR}/pattern.rs`,
    from: 'if !parsed(pattern)?.properties().look_set().is_empty() {',
    to: 'if parsed(pattern)?.properties().look_set().contains_anchor_line() {',
    check: refusals('a_regular_expression_and_a_lark_grammar_are_refused_with_the_place'),
  },
  {
    name: 'grammar-special',
    fault: 'the name of a special token counts as text',
    file: `${GRAMMAR}/tokenizer_json.rs`,
    from: 'let token = if *special {',
    to: 'let token = if *special && content.is_empty() {',
    check: tested('grammar', 'tokenizers::byte_level_characters_are_bytes'),
  },
  {
    name: 'grammar-stop',
    fault: 'a stop token does not end a text of a grammar',
    file: MODEL,
    from: 'ends: new Set([...stop, ...tokens.endOfSequence])',
    to: 'ends: new Set(tokens.endOfSequence)',
    check: ends,
  },
  {
    name: 'grammar-own-ends',
    fault: 'with stop tokens, a text of a grammar does not end at the ends of its vocabulary',
    file: MODEL,
    from: 'ends: new Set([...stop, ...tokens.endOfSequence])',
    to: 'ends: new Set(stop.size > 0 ? stop : tokens.endOfSequence)',
    check: ends,
  },
  {
    name: 'grammar-empty',
    fault: 'a grammar whose only text is empty computes a token',
    file: 'lib/onnx/generation.ts',
    from: "    if (constraint?.grammar.isEmpty() === true) this.finishReason = 'stop'\n",
    to: '',
    check: onnx('the end is allowed exactly where the text is complete'),
  },
]
