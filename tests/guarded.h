/*
 * guarded.h: runs a launch on copies of its operands with guards around each of them. test_ops.c,
 * test_gemm.c, test_optim.c, trial.h and test_loader.c use it; cuda_ops.c uses its
 * byte values in the host copy of an arena.
 *
 *     input      [guard][the bytes][guard]     unchanged, unless an output overwrites it
 *     output     [guard][0xFF .. ][guard]      0xFF is NaN in every float type
 *     workspace  [guard][0xFF .. ][guard]      exactly the size that the kernel requests
 *
 * Every guard, in front of and behind each block, is checked afterwards. The includer provides
 * fail_msg, from cmocka or its own. Each test is a program of its own, so the functions are static
 * inline.
 */
#pragma once

#include "run/kernel.h"
#include "harness.h"

enum { GUARD_BYTES = 256, GUARD_BYTE = 0xA5, POISON_BYTE = 0xFF };

/* --- blocks ----------------------------------------------------------------------------- */

/* n bytes at a multiple of 64 between guards: a copy of `from`, or poison where `from` is NULL. */
static inline void *guarded_new(const void *from, size_t n)
{
    char *block = aligned_alloc(64, align_up(n + 2 * GUARD_BYTES, 64)), *p = block + GUARD_BYTES;
    if (!block) fail_msg("no memory for %zu bytes", n);
    memset(block, GUARD_BYTE, GUARD_BYTES);
    if (from) memcpy(p, from, n);
    else memset(p, POISON_BYTE, n);
    memset(p + n, GUARD_BYTE, GUARD_BYTES);
    return p;
}

static inline void guarded_free(void *p)
{
    if (p) free((char *)p - GUARD_BYTES);
}

/* Fails if a byte in the guards around the n bytes at p changed; `part` of `what` names the
 * block. */
static inline void guarded_check(const char *what, const char *part, const void *p, size_t n)
{
    const unsigned char *at = p;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (at[n + i] != GUARD_BYTE)
            fail_msg("%s: a write %zu bytes behind the end of %s, which has %zu", what, i, part, n);
        if (at[-1 - (ptrdiff_t)i] != GUARD_BYTE) fail_msg("%s: a write %zu bytes in front of %s", what, i + 1, part);
    }
}

/* --- a launch ----------------------------------------------------------------------------- */

/* Bytes from an operand's first element to its last, stride gaps included. */
static inline size_t guarded_span(const struct operand *x)
{
    int64_t n = 1;
    for (int d = 0; d < x->rank; d++) {
        if (!x->dim[d]) return 0;
        n += (x->dim[d] - 1) * x->stride[d];
    }
    return (size_t)n * dtype_size(x->dtype);
}

/* Called around k->run: a library kernel's preparation for a launch, and its release. */
struct guarded_hooks {
    void (*prepare)(const struct kernel *k, struct launch *l);
    void (*release)(const struct kernel *k, struct launch *l);
};

/* Fails if a guard changed, or an input that no output overwrites; frees the inputs. */
static inline void guarded_inputs_check(const char *what, const struct launch *l, const struct launch *from,
                                        const bool *taken)
{
    for (int i = 0; i < l->nin; i++) {
        if (!l->in[i].data || taken[i]) continue;
        const size_t n = guarded_span(&l->in[i]);
        char part[32];
        snprintf(part, sizeof part, "input %d", i);
        guarded_check(what, part, l->in[i].data, n);
        if (n && memcmp(l->in[i].data, from->in[i].data, n)) fail_msg("%s: input %d changed", what, i);
        guarded_free(l->in[i].data);
    }
}

/* Runs k on copies of a launch's operands with `work` bytes of workspace. Output o overwrites input
 * alias[o], unless that is negative. An output's address in `from` only matters as NULL or not
 * NULL. Fills `out` with the outputs' bytes; guarded_free frees each of them. */
static inline void guarded_launch(const char *what, const struct kernel *k, const struct launch *from, uint64_t work,
                                  int threads, const int alias[MAX_OUT], const struct guarded_hooks *hooks,
                                  void *out[MAX_OUT])
{
    struct launch l = *from;
    bool taken[MAX_IN] = {0};
    char part[32];
    l.threads = threads;
    l.work_bytes = work;
    l.work = guarded_new(NULL, work);
    for (int i = 0; i < l.nin; i++)
        if (from->in[i].data) l.in[i].data = guarded_new(from->in[i].data, guarded_span(&from->in[i]));
    for (int o = 0; o < l.nout; o++) {
        out[o] = NULL;
        if (!from->out[o].data) continue;
        if (alias[o] >= 0) taken[alias[o]] = true;
        out[o] = l.out[o].data = alias[o] >= 0 ? l.in[alias[o]].data : guarded_new(NULL, guarded_span(&from->out[o]));
    }
    if (hooks) hooks->prepare(k, &l);
    k->run(&l);
    if (hooks) hooks->release(k, &l);
    guarded_check(what, "the workspace", l.work, work);
    guarded_free(l.work);
    for (int o = 0; o < l.nout; o++) {
        snprintf(part, sizeof part, "output %d", o);
        if (out[o]) guarded_check(what, part, out[o], guarded_span(&l.out[o]));
    }
    guarded_inputs_check(what, &l, from, taken);
}

static inline void guarded_free_all(void *out[MAX_OUT])
{
    for (int o = 0; o < MAX_OUT; o++) guarded_free(out[o]), out[o] = NULL;
}

/* Like guarded_launch, with the launch's own workspace and threads; copies the outputs' bytes back
 * to the launch's addresses. */
static inline void guarded_run(const struct kernel *k, const struct launch *l, const int alias[MAX_OUT])
{
    void *out[MAX_OUT] = {0};
    guarded_launch(k->name, k, l, l->work_bytes, l->threads, alias, NULL, out);
    for (int o = 0; o < l->nout; o++)
        if (out[o]) memcpy(l->out[o].data, out[o], guarded_span(&l->out[o]));
    guarded_free_all(out);
}
