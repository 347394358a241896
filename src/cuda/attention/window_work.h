/*
 * window_work.h: the workspace layout of ATTENTION_WINDOW_BWD's kernels, shared by the
 * planning half and the running half, and the largest window they support.
 *
 *     tables   [windows, 2 (2 window - 1), D]    gradients of both tables, window by window
 *     pads     [windows, 2, D]                   gradient of pad, likewise
 *
 * where a window is one of a sample and a head: ((b * down + y) * across + x) * H + h.
 */
#ifndef ATTENTION_WINDOW_WORK_H
#define ATTENTION_WINDOW_WORK_H

#include "cuda/attention/work.h"

/* The largest window size, without tensor cores and with them. */
enum { WINDOW_PLAIN = 32, WINDOW_FAST = 14 };

struct window_work {
    uint64_t tables, pads, total;
};

/* Offsets in bytes, for `windows` windows. */
static inline struct window_work window_work_of(int64_t windows, int64_t window, int64_t D)
{
    struct window_work w = {0, 0, 0};
    uint64_t at = 0;
    w.tables = attention_reserve(&at, windows * 2 * (2 * window - 1) * D);
    w.pads = attention_reserve(&at, windows * 2 * D);
    w.total = at;
    return w;
}

#endif
