/*
 * rows.c: see conversations.h.
 *
 * Rows with the same room are a linked list. A bit for each room says whether its list has rows,
 * and a bit for each 64 of these whether any is set, so that the least room that is large enough is
 * found in a few words for any T. Rows with room for the same numbers of images, frames and volumes
 * have such lists of their own. Time is that of sorting by length, which is counted, and of looking
 * at each of these numbers.
 */
#include "data/text/conversations.h"

#include "data/ring.h"

enum { NONE = UINT32_MAX };

/* The rows with room for a number of images and of frames, by their room for tokens. */
struct rooms {
    uint64_t *bits, *summary;  /* NULL: there has been no such row */
    uint32_t words;
    uint32_t *head;            /* [T + 1] by room: a row */
};

struct packing {
    struct row_size most;
    /* [most.images + 1][most.frames + 1][most.volumes[0] + 1]... by room for images, frames, and
     * volumes of each modality */
    struct rooms *rooms;
    size_t lists;
    VEC(uint32_t) next;        /* by row */
};

void token_row_place(struct token_row *r, uint32_t T, char *at, uint64_t *used)
{
    r->ids = ring_carve(at, used, T * sizeof *r->ids);
    r->labels = ring_carve(at, used, T * sizeof *r->labels);
    r->positions = ring_carve(at, used, T * sizeof *r->positions);
    r->ranges = ring_carve(at, used, 2 * T * sizeof *r->ranges);
}

bool row_fits(const struct row_size *room, const struct row_size *x)
{
    bool fits = x->tokens <= room->tokens && x->images <= room->images && x->frames <= room->frames;
    for (int k = 0; k < MODALITIES; k++) fits &= x->volumes[k] <= room->volumes[k];
    return fits;
}

void row_take(struct row_size *room, const struct row_size *x)
{
    room->tokens -= x->tokens, room->images -= x->images, room->frames -= x->frames;
    for (int k = 0; k < MODALITIES; k++) room->volumes[k] -= x->volumes[k];
}


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

/* Returns the least room of at least `least` that a row has; NONE: no row has it. */
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

static void begin_rooms(struct rooms *r, uint32_t T)
{
    r->words = T / 64 + 1;
    r->bits = mem_alloc(r->words * sizeof *r->bits);
    r->summary = mem_alloc((r->words / 64 + 1) * sizeof *r->summary);
    r->head = mem_alloc(((size_t)T + 1) * sizeof *r->head);
    memset(r->head, 0xff, ((size_t)T + 1) * sizeof *r->head);
}

/* Returns the list of rows with this room, and the room, without tokens, of the rows in a list. */
static size_t list_of(const struct packing *p, const struct row_size *x)
{
    size_t list = (size_t)x->images * (p->most.frames + 1) + x->frames;
    for (int k = 0; k < MODALITIES; k++) list = list * (p->most.volumes[k] + 1) + x->volumes[k];
    return list;
}

static struct row_size room_of(const struct packing *p, size_t list)
{
    struct row_size x = {0};
    for (int k = MODALITIES - 1; k >= 0; k--) {
        x.volumes[k] = (uint32_t)(list % (p->most.volumes[k] + 1));
        list /= p->most.volumes[k] + 1;
    }
    x.images = (uint32_t)(list / (p->most.frames + 1)), x.frames = (uint32_t)(list % (p->most.frames + 1));
    return x;
}

static void put_row(struct packing *p, uint32_t row, struct row_size room)
{
    struct rooms *r = &p->rooms[list_of(p, &room)];
    if (!r->bits) begin_rooms(r, p->most.tokens);
    p->next.at[row] = r->head[room.tokens];
    r->head[room.tokens] = row;
    set_bit(r, room.tokens);
}

static uint32_t take_row(struct packing *p, struct row_size room)
{
    struct rooms *r = &p->rooms[list_of(p, &room)];
    const uint32_t row = r->head[room.tokens];
    r->head[room.tokens] = p->next.at[row];
    if (r->head[room.tokens] == NONE) clear_bit(r, room.tokens);
    return row;
}

/* Returns the least room for tokens of a row that holds the sample, and of those the least for
 * images, then for frames, and then for volumes. False: no row holds it. */
static bool find_row(const struct packing *p, struct row_size sample, struct row_size *room)
{
    *room = (struct row_size){.tokens = NONE};
    for (size_t list = list_of(p, &sample); list < p->lists; list++) {
        const struct rooms *r = &p->rooms[list];
        const uint32_t tokens = r->bits ? find_room(r, sample.tokens) : NONE;
        if (tokens >= room->tokens) continue;
        struct row_size found = room_of(p, list);
        found.tokens = tokens;
        if (row_fits(&found, &sample)) *room = found;
    }
    return room->tokens != NONE;
}

/* Sorts samples from the longest to the shortest; equal ones in their order. */
static uint32_t *sort_by_length(const struct row_size *sizes, uint32_t n, uint32_t T)
{
    uint32_t *order = mem_alloc((size_t)n * sizeof *order), *at = mem_alloc(((size_t)T + 2) * sizeof *at);
    for (uint32_t i = 0; i < n; i++) at[T - sizes[i].tokens + 1]++;
    for (uint32_t k = 1; k <= T; k++) at[k] += at[k - 1];
    for (uint32_t i = 0; i < n; i++) order[at[T - sizes[i].tokens]++] = i;
    mem_free(at);
    return order;
}

/* Places samples: row_of[i] is the row of sample i, numbered as they were begun. Returns the
 * number of rows. */
static uint32_t place(const struct row_size *sizes, uint32_t n, struct row_size most, uint32_t *row_of)
{
    struct packing p = {.most = most};
    p.lists = list_of(&p, &most) + 1;
    p.rooms = mem_alloc(p.lists * sizeof *p.rooms);
    uint32_t *order = sort_by_length(sizes, n, most.tokens);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = order[k];
        struct row_size room;
        const bool found = find_row(&p, sizes[i], &room);
        const uint32_t row = found ? take_row(&p, room) : p.next.n;
        if (!found) vec_push(&p.next, NONE), room = most;
        row_take(&room, &sizes[i]);
        put_row(&p, row, room);
        row_of[i] = row;
    }
    const uint32_t rows = p.next.n;
    for (size_t i = 0; i < p.lists; i++)
        mem_free(p.rooms[i].bits), mem_free(p.rooms[i].summary), mem_free(p.rooms[i].head);
    mem_free(p.rooms), mem_free(order);
    vec_free(&p.next);
    return rows;
}

/* Gives rows numbers by their first sample. */
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

void rows_pack(struct rows *r, const struct row_size *sizes, uint32_t n, struct row_size most, bool pack)
{
    uint32_t *row_of = mem_alloc((size_t)n * sizeof *row_of);
    for (uint32_t i = 0; i < n; i++) row_of[i] = i;
    r->n = pack ? place(sizes, n, most, row_of) : n;
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
