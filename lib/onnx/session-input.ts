// The description of a session's input.
/** An input of a session, as onnxruntime describes it. */
export interface OnnxInput {
  readonly name: string
  readonly isTensor?: boolean
  readonly type?: string
  readonly shape?: readonly (number | string)[]
}
