// Advice for graphs that are refused: one sentence for each kind of refusal, which its error has in `details.kind` and at the end of its message.

/** The kinds of reasons for which a backend does not run an ONNX graph. */
export type GraphRefusal =
  | 'added-window'
  | 'config'
  | 'embeddings'
  | 'encoder'
  | 'form'
  | 'input'
  | 'output'
  | 'past'
  | 'quantised-past'
  | 'scores'
  | 'state'
  | 'subgraph'
  | 'type'
  | 'windows'

/** @internal The help for each kind. */
export const GRAPH_ADVICE: Readonly<Record<GraphRefusal, string>> = {
  'added-window':
    'load it on the backend graph or parts, which add the windows of a config, or export it with its windows',
  config: 'put config.json beside the model, or pass the option config',
  embeddings: 'put the model of its embeddings beside it (embed_tokens.onnx), or pass the option embeddings',
  encoder: 'load decoder_model_merged.onnx as an OnnxModel',
  form: "export it with optimum-onnx or with onnxruntime-genai's model builder",
  input: 'export it with the inputs input_ids, attention_mask, position_ids and pasts, and no others',
  output: 'export it with the outputs logits and presents',
  past: 'export it with a past, for instance with the task text-generation-with-past of optimum-onnx',
  'quantised-past': 'export it with a past of floats; the option cache quantises pages: keyFormat, valueFormat',
  scores: 'export it without outputs of attention scores',
  state:
    "export it with onnxruntime-genai's model builder; the backend plain runs other forms, one sequence after the other",
  subgraph: 'export it without branches and loops around attentions, for instance as decoder_with_past_model.onnx',
  type: 'export it in float32 or float16',
  windows: 'pass the config.json of this model as the option config',
}

/** @internal The kind in details of an error. Without one, that of an input or output, or `form` for other nodes. */
export function graphRefusalOf({ kind, operator }: Readonly<Record<string, unknown>>): GraphRefusal {
  const found = kind ?? operator
  return typeof found === 'string' && Object.hasOwn(GRAPH_ADVICE, found) ? (found as GraphRefusal) : 'form'
}
