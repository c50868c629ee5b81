// The source of one library's link stub: every function is a jump through a slot, and the first call fills the slot.
//
//   cuInit:   jmp *slot[0]            slot[0] = first_0, until someone calls it
//   first_0:  r11 = 0; jmp enter
//   enter:    keep every argument, rax = open(r11), argument registers back, jmp rax
//   open:     dlopen once, slot = the library's function, or an answer that says it is not there
//
// Arguments on the stack lie where the library expects them, because every step is a jump. All names are hidden: whatever
// else the process has loaded neither sees them nor takes their place. x86-64, System V calling convention.

/** The assembly of a stub: slots, and one entry for each function. */
export function assembly(library, functions) {
  const lines = [
    '  .section .data.rel,"aw",@progbits',
    '  .balign 8',
    `  .hidden ${library}_slots`,
    `  .globl ${library}_slots`,
    `${library}_slots:`,
    ...functions.map((_, index) => `  .quad .Lfirst_${index}`),
    '  .text',
    ...enter(library),
  ]
  for (const [index, { name }] of functions.entries()) {
    lines.push(
      `  .globl ${name}`,
      `  .hidden ${name}`,
      `  .type ${name}, @function`,
      `${name}:`,
      `  jmp *${library}_slots+${8 * index}(%rip)`,
      `.Lfirst_${index}:`,
      `  movl $${index}, %r11d`,
      '  jmp .Lenter',
      `  .size ${name}, .-${name}`,
    )
  }
  return `${[...lines, '  .section .note.GNU-stack,"",@progbits'].join('\n')}\n`
}

/** Calls `open` with every register that may hold an argument kept, rax among them: calls with `...` count vectors in it. */
function enter(library) {
  const kept = ['rdi', 'rsi', 'rdx', 'rcx', 'r8', 'r9', 'rax', 'r10']
  const vectors = Array.from({ length: 8 }, (_, index) => index)
  return [
    '.Lenter:',
    '  .cfi_startproc',
    '  pushq %rbp',
    '  .cfi_def_cfa_offset 16',
    '  .cfi_offset %rbp, -16',
    '  movq %rsp, %rbp',
    '  .cfi_def_cfa_register %rbp',
    ...kept.map(register => `  pushq %${register}`),
    `  subq $${16 * vectors.length}, %rsp`,
    '  andq $-16, %rsp',
    ...vectors.map(index => `  movups %xmm${index}, ${16 * index}(%rsp)`),
    '  movl %r11d, %edi',
    `  call ${library}_open`,
    '  movq %rax, %r11',
    ...vectors.map(index => `  movups ${16 * index}(%rsp), %xmm${index}`),
    `  leaq -${8 * kept.length}(%rbp), %rsp`,
    ...kept.toReversed().map(register => `  popq %${register}`),
    '  popq %rbp',
    '  .cfi_def_cfa %rsp, 8',
    '  jmp *%r11',
    '  .cfi_endproc',
  ]
}

/** The C of a stub: opens the library, and answers for functions that are not there. */
export function opener(library, functions, sonames, absentCode) {
  const answers = functions.map(({ returns }) => `absent_${returns}`)
  return `#include <dlfcn.h>

#define HIDDEN __attribute__((visibility("hidden")))

static const char *const sonames[] = {${sonames.map(name => `"${name}"`).join(', ')}, 0};
static const char *const names[] = {
  ${functions.map(({ name }) => `"${name}"`).join(',\n  ')}
};

#define ANSWER __attribute__((unused)) static

ANSWER int absent_status(void) { return ${absentCode}; }
ANSWER unsigned long absent_zero(void) { return 0; }
ANSWER const char *absent_text(void) { return "${sonames[0]} not found"; }

static void *const absent[] = {
  ${answers.map(answer => `(void *)${answer}`).join(',\n  ')}
};

extern HIDDEN void *${library}_slots[];

/* Two threads may come here at once: the loader gives both the same library, and both write the same slot. */
static void *library(void) {
  static void *opened;
  static int tried;
  if (!__atomic_load_n(&tried, __ATOMIC_ACQUIRE)) {
    void *found = 0;
    for (int i = 0; sonames[i] && !found; i++) found = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
    __atomic_store_n(&opened, found, __ATOMIC_RELAXED);
    __atomic_store_n(&tried, 1, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&opened, __ATOMIC_RELAXED);
}

HIDDEN void *${library}_open(unsigned index) {
  void *handle = library();
  void *function = handle ? dlsym(handle, names[index]) : 0;
  if (!function) function = absent[index];
  __atomic_store_n(&${library}_slots[index], function, __ATOMIC_RELEASE);
  return function;
}
`
}
