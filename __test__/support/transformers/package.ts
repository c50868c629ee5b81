import type {
  DynamicCache,
  TransformersModel,
  TransformersPackage,
  TransformersTensor,
} from '../../../lib/transformers/package.js'

/** The part of transformers.js that is used here: its own types need a browser's. */
export interface Package extends TransformersPackage {
  readonly AutoModelForCausalLM: { from_pretrained(name: string, options: object): Promise<Model> }
  readonly env: { allowRemoteModels: boolean; localModelPath: string }
}

/** A model: a short form of its own types. */
export interface Model extends TransformersModel {
  generate(options: {
    inputs?: TransformersTensor
    input_ids?: TransformersTensor
    max_new_tokens?: number
    do_sample?: boolean
    return_dict_in_generate?: boolean
    streamer?: object
    attention_mask?: TransformersTensor
    past_key_values?: DynamicCache
  }): Promise<object>
}

const name = '@huggingface/transformers'
export const transformers: Package = (await import(name)) as Package
