/*
 * processor.h: which instructions of this processor the program uses. All that asks for a feature asks
 * here, so a feature that is hidden is hidden from everything.
 *
 * PLIMSOLL_HIDE_CPU=bf16,amx in the environment hides features: one machine then runs what another,
 * without them, would.
 */
#ifndef PROCESSOR_H
#define PROCESSOR_H

#include "base/base.h"

enum cpu_feature {
    CPU_BF16,   /* products of bf16: BFMMLA on Arm, AVX512_BF16 and AMX on x86-64 */
    CPU_AMX,    /* AMX's tiles; they are used for bf16, and with AVX-512 */
    CPU_AVX512, /* F, DQ, BW and VL; AVX512_BF16 and AMX are used only with it */
    CPU_SVE,    /* no kernel of ours has it; libraries may */
    CPU_FEATURES
};

/* The processor has it, and it is not hidden. */
bool cpu_has(enum cpu_feature f);
/* It is hidden, whether the processor has it or not. */
bool cpu_hides(enum cpu_feature f);
const char *cpu_feature_name(enum cpu_feature f);
/* PL_USAGE: PLIMSOLL_HIDE_CPU has a name that is no feature's. */
int cpu_features_check(struct error *e);
/* Before each hidden feature's name `before`: "-no-bf16-no-amx"; "" where nothing is hidden. */
const char *cpu_hidden_print(const char *before, char out[64]);

#endif
