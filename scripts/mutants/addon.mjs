// Planted faults of the addon: objects that go on after a panic, memory that is not counted, and values that pass between threads.
import { addon } from './checks.mjs'

const HANDLE = 'src/border/handle.rs'
const LOGITS = 'src/sampling/logits.rs'

const panics = addon('__test__/integration/panics.test.ts')
const counted = addon('__test__/sampling/logits.test.ts', 'their memory is counted until they are disposed of')

export const addons = [
  {
    name: 'addon-poison',
    fault: 'an object goes on after a panic in a call that changes it',
    file: HANDLE,
    from: '                    self.state = State::Poisoned;\n',
    to: '',
    check: panics,
  },
  {
    name: 'addon-lock',
    fault: 'an object that several threads change goes on after a panic',
    file: HANDLE,
    from: 'shared.lock().map_err(|_| kvtide_tensor::Error::Poisoned)?',
    to: 'shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)',
    check: panics,
  },
  {
    name: 'addon-shared',
    fault: 'a value that passes between threads is taken as one of another kind',
    file: 'src/border/shared.rs',
    from: 'if !values.get(&key).is_some_and(|value| value.is::<T>()) {',
    to: 'if !values.contains_key(&key) {',
    check: addon(
      '__test__/sequences/step-run.test.ts',
      'one has it at a time, and it ends when that one gives it back',
    ),
  },
  {
    name: 'addon-busy',
    fault: 'a session computes two steps at once',
    file: 'src/onnx/native_session.rs',
    from: 'if session.running.swap(true, Ordering::AcqRel) {',
    to: 'if session.running.swap(false, Ordering::AcqRel) {',
    check: addon(
      '__test__/onnx/session.test.ts',
      'a session computes one step at a time, and the step that was refused is computed later',
    ),
  },
  {
    name: 'addon-outcome',
    fault: 'an attempt of a match that has ended counts as answered',
    file: 'src/tiers/driver.rs',
    from: 'gate.settle(permit, outcome);',
    to: 'let _ = outcome;\n                gate.settle(permit, Settled::Answered(Answered::default()));',
    check: addon(
      '__test__/store/own-stores.test.ts',
      'a store that never answers is no longer asked, though each match has ended before the timeout',
    ),
  },
  {
    name: 'addon-counted',
    fault: 'the memory of logits is not counted',
    file: LOGITS,
    from: 'let lease = budget.take(4 * elements as u64)?;',
    to: 'let lease = budget.take(0)?;',
    check: counted,
  },
  {
    name: 'addon-kept',
    fault: 'logits keep their memory after their end',
    file: LOGITS,
    from: '        self.logits.borrow_mut().dispose(env, |_| ());',
    to: '        self.logits.borrow_mut().dispose(env, |logits| std::mem::forget(Arc::clone(logits)));',
    check: counted,
  },
]
