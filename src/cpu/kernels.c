/*
 * kernels.c: the CPU's kernel table, generated from ops.def: for each row, the list that its kernel
 * file defines (CPU_KERNELS in cpu.h). A row without a list is a link error.
 */
#include "cpu/cpu.h"
#include "graph/ops.h"

#include <string.h>

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel cpu_##NAME[];
#include "graph/ops.def"
#undef OP

const struct kernel *const cpu_kernels[OP_COUNT] = {
#define VIEW(NAME, ...)
#define OP(NAME, ...) [OP_##NAME] = cpu_##NAME,
#include "graph/ops.def"
#undef OP
};

const struct kernel *cpu_kernel_named(uint16_t op, const char *name)
{
    const struct kernel *k = cpu_kernels[op];
    while (k && k->name && strcmp(k->name, name)) k++;
    CHECK(k && k->name, "%s has no kernel %s", op_table[op].name, name);
    return k;
}
