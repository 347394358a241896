/*
 * hopper.h: attention on GPUs of compute capability 9.0 (sm_90), for attention.c.
 */
#ifndef ATTENTION_HOPPER_H
#define ATTENTION_HOPPER_H

#include "base/base.h"
#include "cuda/attention/launch_attention.h"

int hopper_attention(const struct attention *a, cudaStream_t stream, struct error *e);
int hopper_attention_bwd(const struct attention *a, cudaStream_t stream, struct error *e);

#endif
