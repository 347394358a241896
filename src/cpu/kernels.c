/*
 * kernels.c: the CPU's kernel table, in the order of ops.def.
 *
 * One fast kernel per op, and oneDNN's before it where the profile says so. Where a match says no, kernel_find goes on to the
 * reference table, which takes everything.
 */
#include "cpu/cpu.h"
#include "cpu/onednn.h"

#define ROW(OP, name) {OP_##OP, "cpu_" #name, name##_match, NULL, name##_run}
#define ROW_WORK(OP, name) {OP_##OP, "cpu_" #name, name##_match, name##_workspace, name##_run}

const struct kernel cpu_kernels[] = {
    {OP_LINEAR, "onednn_linear", onednn_linear_match, onednn_linear_workspace, onednn_linear_run},
    ROW_WORK(LINEAR, linear),
    {OP_MATMUL, "onednn_matmul", onednn_matmul_match, onednn_matmul_workspace, onednn_matmul_run},
    ROW_WORK(MATMUL, matmul),
    ROW_WORK(BMM, bmm),
    ROW_WORK(SUM_TO, sum_to),
    ROW(RMSNORM, rmsnorm),
    ROW_WORK(RMSNORM_BWD, rmsnorm_bwd),
    ROW(LAYERNORM, layernorm),
    ROW_WORK(LAYERNORM_BWD, layernorm_bwd),
    ROW(ROPE, rope),
    ROW(SILU_GATE, silu_gate),
    ROW(SILU_GATE_BWD, silu_gate_bwd),
    ROW(ACT, act),
    ROW(ACT_BWD, act_bwd),
    ROW(SOFTMAX, softmax),
    ROW(SOFTMAX_BWD, softmax_bwd),
    ROW_WORK(ATTENTION, attention),
    ROW_WORK(ATTENTION_BWD, attention_bwd),
    ROW_WORK(CONV, conv),
    ROW_WORK(CONV_DX, conv_dx),
    ROW_WORK(CONV_DW, conv_dw),
    ROW(EMBEDDING, embedding),
    ROW(EMBEDDING_DW, embedding_dw),
    ROW(SHIFT_LABELS, shift_labels),
    ROW_WORK(XENT, xent),
    ROW(XENT_BWD, xent_bwd),
    ROW(ADD, add),
    ROW(MUL, mul),
    ROW(SCALE, scale),
    ROW(CAST, cast),
    ROW_WORK(SUM, sum),
    ROW(SPREAD, spread),
    ROW(ACCUMULATE, accumulate),
    ROW(FILL, fill),
    ROW(COPY, copy),
    ROW(DROPOUT, dropout),
    ROW(CONCAT, concat),
    ROW(PAD, pad),
    ROW(GATHER, gather),
    ROW_WORK(SCATTER_ADD, scatter_add),
    ROW_WORK(RESIZE, resize),
    ROW_WORK(RESIZE_BWD, resize_bwd),
    ROW_WORK(AVGPOOL, avgpool),
    ROW_WORK(AVGPOOL_BWD, avgpool_bwd),
    ROW_WORK(BATCHNORM, batchnorm),
    ROW_WORK(BATCHNORM_BWD, batchnorm_bwd),
    ROW_WORK(BATCHNORM_FROZEN, batchnorm_frozen),
    ROW_WORK(BATCHNORM_FROZEN_BWD, batchnorm_frozen_bwd),
    ROW(BATCHNORM_UPDATE, batchnorm_update),
    ROW_WORK(SUMSQ, sumsq),
    ROW(CLIP, clip),
    ROW(ADAMW, adamw),
    {.op = OP_NONE},
};
