/*
 * ranges.cuh: attention where each query has a range of keys of its own (work.h), such as rows of
 * several documents: which tiles are multiplied, which of them need a test by element, and how a
 * NaN in one document stays there.
 *
 * A tile of keys is walked if it meets the keys that any query of the tile sees. Its scores are
 * tested one by one unless all queries see all of it. A score that is not seen is set, not added
 * to, and so are its p = 0 and ds = 0: a NaN in its query or key changes neither. But the products
 *
 *     o += p v     dq += ds k     dv += p^T do     dk += ds^T q
 *
 * sum over the rows of the tile that is walked, and 0 NaN = NaN. So where that tile has rows of
 * another document than those that are held (is_mixed), its rows with a NaN or infinity become
 * zeros in shared memory before the product, and NaN takes their place in p or ds of those who see
 * them: in dq and dk the scores have it already, for v and do it is put there. Within one document
 * nothing is looked at.
 */
#pragma once

#include "cuda/attention/attention.cuh"

/* Returns a query's keys. Beyond the last query, up to a multiple of 64, there are none. */
__device__ inline span range_at(const attention &a, int64_t b, int t)
{
    const int64_t padded = (a.T + 63) / 64 * 64;
    const int2 x = reinterpret_cast<const int2 *>(a.seen)[b * padded + t];
    return {x.x, x.y};
}
__device__ inline bool in_range(const span &x, int s) { return (unsigned)(s - x.begin) < (unsigned)(x.end - x.begin); }

/* What is known of the ranges of several queries. */
struct range_tile {
    int begin, end, all_begin, all_end;
    bool border; /* they are of several documents */
};
__device__ inline range_tile bounds_of(const attention &a, int64_t b, int t0, int tn)
{
    const int tiles = (a.T + 63) / 64, first = t0 / 64, last = min((t0 + tn + 63) / 64, tiles);
    const range_bounds *from = a.bounds + b * tiles;
    range_tile x = {INT32_MAX, 0, 0, INT32_MAX, false};
    for (int i = first; i < last; i++) {
        x.begin = min(x.begin, from[i].begin), x.end = max(x.end, from[i].end);
        x.all_begin = max(x.all_begin, from[i].all_begin), x.all_end = min(x.all_end, from[i].all_end);
        x.border |= from[i].border || (i > first && from[i].fresh);
    }
    return x;
}
/* Returns the bounds of queries of one 64. */
__device__ inline range_tile bounds_at(const attention &a, int64_t b, int t)
{
    const range_bounds *from = a.bounds + b * ((a.T + 63) / 64) + t / 64;
    return {from->begin, from->end, from->all_begin, from->all_end, from->border != 0};
}
/* Reports whether some query sees some key of s0 .. s0+sn; sees_all: whether all see all. */
__device__ inline bool meets(const range_tile &x, int s0, int sn) { return x.begin < s0 + sn && x.end > s0; }
__device__ inline bool sees_all(const range_tile &x, int s0, int sn)
{
    return x.all_begin <= s0 && x.all_end >= s0 + sn;
}
/* Reports whether queries and keys may be of several documents. */
__device__ inline bool is_mixed(const range_tile &x, int s0, int sn)
{
    return !sees_all(x, s0, sn) && (x.border || s0 < x.begin || s0 + sn > x.end);
}

/* Whether one of two 16-bit numbers is infinite or NaN: all bits of the exponent are set, and one
 * more in their last place carries into the sign. */
template <typename T> __device__ inline bool has_nonfinite(unsigned two)
{
    constexpr unsigned LAST = std::is_same<T, __half>::value ? 0x04000400u : 0x00800080u,
                       EXPONENT = std::is_same<T, __half>::value ? 0x7c007c00u : 0x7f807f80u;
    return ((two & EXPONENT) + LAST) & 0x80008000u;
}

/* Turns a row of BYTES bytes in shared memory into zeros if it has a number that is not finite, and
 * returns whether it had. `turn`: where this thread begins, so that the threads of a warp are in
 * different banks. */
template <typename T, int BYTES> __device__ inline bool clean_row(char *row, int turn)
{
    constexpr int CHUNKS = BYTES / 16;
    bool bad = false;
#pragma unroll 2
    for (int i = 0; i < CHUNKS; i++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(row + (i + turn) % CHUNKS * 16);
        bad |= has_nonfinite<T>(x.x) | has_nonfinite<T>(x.y) | has_nonfinite<T>(x.z) | has_nonfinite<T>(x.w);
    }
    for (int i = 0; i < CHUNKS && bad; i++) *reinterpret_cast<uint4 *>(row + i * 16) = uint4{0, 0, 0, 0};
    return bad;
}
