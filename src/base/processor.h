/*
 * processor.h: which instruction set extensions the program uses. All code queries features
 * here, so a hidden feature is hidden from everything.
 *
 * PLIMSOLL_HIDE_CPU=bf16,amx in the environment hides features: the program then runs the code
 * that a machine without them would run.
 */
#pragma once

#include "base/base.h"

enum cpu_feature {
    CPU_BF16,   /* bf16 matrix products: BFMMLA on Arm, AVX512_BF16 and AMX on x86-64 */
    CPU_AMX,    /* AMX tiles, used for bf16 together with AVX-512 */
    CPU_AVX512, /* F, DQ, BW and VL; required for AVX512_BF16 and AMX */
    CPU_SVE,    /* no kernel here uses it; libraries may */
    CPU_FEATURES
};

/* Reports whether the processor has the feature and it is not hidden. */
bool cpu_has(enum cpu_feature f);
/* Reports whether the feature is hidden, even if the processor lacks it. */
bool cpu_hides(enum cpu_feature f);
/* Returns PL_USAGE when PLIMSOLL_HIDE_CPU contains an unknown feature name. */
int cpu_features_check(struct error *e);
/* Prints `before` and the name of each hidden feature: "-no-bf16-no-amx"; "" if none. */
const char *cpu_hidden_print(const char *before, char out[64]);
