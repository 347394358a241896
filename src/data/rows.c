/*
 * rows.c: see rows.h.
 *
 * Rows with the same room are a linked list. A bit for each room says whether its list has rows, and a
 * bit for each 64 of these whether any is set, so that the least room that is large enough is found in
 * a few words for any T. Time is that of sorting by length, which is counted.
 */
#include "data/rows.h"

#include <string.h>

enum { NONE = UINT32_MAX };

struct rooms {
    uint64_t *bits, *summary;
    uint32_t words;
    uint32_t *head;            /* [T + 1] by room: a row */
    VEC(uint32_t) next, room;  /* by row */
};

static void set_bit(struct rooms *r, uint32_t room)
{
    r->bits[room / 64] |= 1ull << room % 64;
    r->summary[room / 4096] |= 1ull << room / 64 % 64;
}

static void clear_bit(struct rooms *r, uint32_t room)
{
    r->bits[room / 64] &= ~(1ull << room % 64);
    if (!r->bits[room / 64]) r->summary[room / 4096] &= ~(1ull << room / 64 % 64);
}

/* The least room of at least `least` that a row has; NONE: no row has it. */
static uint32_t find_room(const struct rooms *r, uint32_t least)
{
    uint32_t word = least / 64;
    const uint64_t here = r->bits[word] & ~0ull << least % 64;
    if (here) return word * 64 + (uint32_t)__builtin_ctzll(here);
    if (++word >= r->words) return NONE;
    uint64_t rest = r->summary[word / 64] & ~0ull << word % 64;
    for (uint32_t s = word / 64;; rest = r->summary[s]) {
        if (rest) {
            word = s * 64 + (uint32_t)__builtin_ctzll(rest);
            return word * 64 + (uint32_t)__builtin_ctzll(r->bits[word]);
        }
        if (++s * 64 >= r->words) return NONE;
    }
}

static void put_row(struct rooms *r, uint32_t row, uint32_t room)
{
    r->room.at[row] = room;
    r->next.at[row] = r->head[room];
    r->head[room] = row;
    set_bit(r, room);
}

static uint32_t take_row(struct rooms *r, uint32_t room)
{
    const uint32_t row = r->head[room];
    r->head[room] = r->next.at[row];
    if (r->head[room] == NONE) clear_bit(r, room);
    return row;
}

/* Samples from the longest to the shortest; equal ones in their order. */
static uint32_t *sort_by_length(const uint32_t *lengths, uint32_t n, uint32_t T)
{
    uint32_t *order = mem_alloc((size_t)n * sizeof *order), *at = mem_alloc(((size_t)T + 2) * sizeof *at);
    for (uint32_t i = 0; i < n; i++) at[T - lengths[i] + 1]++;
    for (uint32_t k = 1; k <= T; k++) at[k] += at[k - 1];
    for (uint32_t i = 0; i < n; i++) order[at[T - lengths[i]]++] = i;
    mem_free(at);
    return order;
}

/* row_of[i]: the row of sample i, numbered as they were begun. Returns the number of rows. */
static uint32_t place(const uint32_t *lengths, uint32_t n, uint32_t T, uint32_t *row_of)
{
    struct rooms r = {.words = T / 64 + 1};
    uint32_t *order = sort_by_length(lengths, n, T);
    r.bits = mem_alloc(r.words * sizeof *r.bits);
    r.summary = mem_alloc((r.words / 64 + 1) * sizeof *r.summary);
    r.head = mem_alloc(((size_t)T + 1) * sizeof *r.head);
    memset(r.head, 0xff, ((size_t)T + 1) * sizeof *r.head);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = order[k], room = find_room(&r, lengths[i]);
        uint32_t row = r.room.n;
        if (room == NONE) vec_push(&r.room, 0), vec_push(&r.next, NONE);
        else row = take_row(&r, room);
        put_row(&r, row, (room == NONE ? T : room) - lengths[i]);
        row_of[i] = row;
    }
    const uint32_t rows = r.room.n;
    mem_free(r.bits), mem_free(r.summary), mem_free(r.head), mem_free(order);
    vec_free(&r.room), vec_free(&r.next);
    return rows;
}

/* Numbers rows by their first sample. */
static void renumber(uint32_t *row_of, uint32_t n, uint32_t rows)
{
    uint32_t *number = mem_alloc((size_t)rows * sizeof *number), next = 0;
    memset(number, 0xff, (size_t)rows * sizeof *number);
    for (uint32_t i = 0; i < n; i++) {
        if (number[row_of[i]] == NONE) number[row_of[i]] = next++;
        row_of[i] = number[row_of[i]];
    }
    mem_free(number);
}

void rows_pack(struct rows *r, const uint32_t *lengths, uint32_t n, uint32_t T, bool pack)
{
    uint32_t *row_of = mem_alloc((size_t)n * sizeof *row_of);
    for (uint32_t i = 0; i < n; i++) row_of[i] = i;
    r->n = pack ? place(lengths, n, T, row_of) : n;
    if (pack) renumber(row_of, n, r->n);
    r->first = mem_alloc(((size_t)r->n + 2) * sizeof *r->first);
    r->samples = mem_alloc((size_t)n * sizeof *r->samples);
    for (uint32_t i = 0; i < n; i++) r->first[row_of[i] + 2]++;
    for (uint32_t k = 2; k <= r->n + 1; k++) r->first[k] += r->first[k - 1];
    for (uint32_t i = 0; i < n; i++) r->samples[r->first[row_of[i] + 1]++] = i; /* leaves first[k] at its final value */
    mem_free(row_of);
}

void rows_free(struct rows *r)
{
    mem_free(r->first);
    mem_free(r->samples);
    *r = (struct rows){0};
}
