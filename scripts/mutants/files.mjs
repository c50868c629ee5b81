// Planted faults of saved files: flushes and names that a save leaves out, or does in another order.
import { tested } from './checks.mjs'

const SINK = 'crates/kvtide-files/src/sink.rs'

const power = tested('files', 'power::power_that_fails_at_any_call')

const flush = '        self.run("flush", |file, _| file.flush())?;\n'
const check =
  '        self.fs.check_target(&self.path).map_err(|reason| Error::io("write", &self.path, reason))?;\n        self.file = None;\n'
const rename =
  '        self.fs.rename(&self.temporary, &self.path).map_err(|reason| {\n            let _ = self.fs.remove(&self.temporary);\n            Error::io("rename", &self.path, reason)\n        })?;\n'

export const files = [
  { name: 'save-flush', fault: 'a file gets its name without a flush', file: SINK, from: flush, to: '', check: power },
  {
    name: 'save-order',
    fault: 'a file gets its name before its flush',
    file: SINK,
    from: flush + check + rename,
    to: rename + flush + check,
    check: power,
  },
  {
    name: 'save-folder',
    fault: 'the name of a file is not flushed',
    file: SINK,
    from: 'self.fs.flush_folder(folder).map_err(|reason| Error::io("flush", folder, reason))',
    to: 'self.fs.names(folder).map(drop).map_err(|reason| Error::io("flush", folder, reason))',
    check: power,
  },
]
