/*
 * mem.c: heap memory, bump allocation, growable arrays.
 *
 * Invariant: no function here returns NULL, and each heap allocation of the program is counted
 * once. The program cannot continue when the host heap is exhausted, so it prints the requested
 * size and ends; a call of the library ends with an error instead (caller.h). (The large arenas are
 * allocated elsewhere, and their failure is an error value.)
 *
 *   struct bump
 *     chunk ──► [ next | used | cap | data ............ free ] ──► older chunks
 *                                    ^ 16-byte aligned blocks
 */
#include <stdarg.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/caller.h"

static atomic_ullong allocations;

static void (*exhausted)(void) = abort;

void mem_on_exhaustion(void (*end)(void)) { exhausted = end; }

void (*mem_exhaustion(void))(void) { return exhausted; }

void mem_exhausted(const char *fmt, ...)
{
    char message[512] = "out of host memory: ";
    const size_t n = strlen(message);
    va_list args;
    va_start(args, fmt);
    vsnprintf(message + n, sizeof message - n, fmt, args);
    va_end(args);
    caller_end(message);
    fprintf(stderr, "plimsoll: %s\n", message);
    exhausted();
    abort();
}

static _Noreturn void out_of_memory(size_t bytes) { mem_exhausted("an allocation of %zu bytes failed", bytes); }

/* ---- the pool ---- */

/* Blocks are contiguous, each preceded by its size. */
static struct {
    char *base;
    size_t size, used;
} pool;
static _Thread_local bool entered; /* other threads allocate from the heap meanwhile */
enum { POOL_HEADER = 16 };

static bool in_pool(const void *p)
{
    return pool.base && (const char *)p >= pool.base && (const char *)p < pool.base + pool.size;
}

/* Returns NULL when the pool is not entered or is full. The block is not zeroed. */
static void *pool_alloc(size_t bytes)
{
    if (!entered || bytes > pool.size) return NULL;
    size_t need = POOL_HEADER + align_up(bytes, POOL_HEADER);
    if (pool.size - pool.used < need) return NULL;
    char *block = pool.base + pool.used;
    pool.used += need;
    memcpy(block, &bytes, sizeof bytes);
    return block + POOL_HEADER;
}

/* Returns the space of the last block; other blocks stay until mem_pool_leave. */
static void pool_free(void *p)
{
    size_t bytes, at = (size_t)((char *)p - POOL_HEADER - pool.base);
    memcpy(&bytes, pool.base + at, sizeof bytes);
    if (at + POOL_HEADER + align_up(bytes, POOL_HEADER) == pool.used) pool.used = at;
}

void mem_pool_create(size_t bytes)
{
    CHECK(!pool.base, "the pool is already allocated");
    pool.base = mem_alloc(bytes);
    pool.size = bytes;
    memset(pool.base, 0, bytes); /* resident from the start */
}

void mem_pool_enter(void)
{
    CHECK(!entered);
    entered = pool.base != NULL;
    pool.used = 0;
}

void mem_pool_leave(void) { entered = false; }

void mem_pool_destroy(void)
{
    free(pool.base);
    memset(&pool, 0, sizeof pool);
}

/* ---- blocks ---- */

void *mem_alloc(size_t bytes)
{
    void *piece = pool_alloc(bytes);
    if (piece) return memset(piece, 0, bytes);
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

/* Resizes a block; bytes beyond the old size are not zeroed. */
void *mem_resize(void *p, size_t bytes)
{
    if (!p || in_pool(p)) {
        size_t old = 0;
        if (p) memcpy(&old, (char *)p - POOL_HEADER, sizeof old);
        void *piece = pool_alloc(bytes);
        if (!piece && p) piece = mem_alloc(bytes);
        if (piece) return old ? memcpy(piece, p, old < bytes ? old : bytes) : piece;
    }
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    p = realloc(p, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *mem_copy(const void *p, size_t bytes)
{
    void *copy = mem_resize(NULL, bytes);
    if (bytes) memcpy(copy, p, bytes);
    return copy;
}

char *mem_string(const char *s)
{
    return mem_copy(s, strlen(s) + 1);
}

void mem_free(void *p)
{
    if (in_pool(p)) pool_free(p);
    else free(p);
}

uint64_t mem_allocations(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

/* ---- bump ---- */

struct bump_chunk {
    struct bump_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

enum { BUMP_FIRST = 1 << 10, BUMP_CHUNK = 64 << 10, BUMP_ALIGN = 16 };

/* Returns zeroed memory, like mem_alloc. Chunks grow from BUMP_FIRST to BUMP_CHUNK, so that a few
 * values cost little. A block larger than BUMP_CHUNK gets its own chunk, which is linked after the
 * current one, so that the rest of the current chunk stays in use. */
void *bump_alloc(struct bump *b, size_t bytes)
{
    CHECK(bytes <= SIZE_MAX - BUMP_CHUNK, "bump allocation of %zu bytes", bytes);
    size_t need = align_up(bytes ? bytes : 1, BUMP_ALIGN);
    struct bump_chunk *c = b->chunk;
    if (!c || c->cap - c->used < need) {
        const size_t next = c ? min_u64(2 * c->cap, BUMP_CHUNK) : BUMP_FIRST, cap = need > next ? need : next;
        struct bump_chunk *fresh = mem_alloc(sizeof *fresh + cap);
        fresh->cap = cap;
        if (c && cap > BUMP_CHUNK) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            b->chunk = fresh;
        }
        c = fresh;
    }
    void *p = c->data + c->used;
    c->used += need;
    return p;
}

char *bump_string(struct bump *b, const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(bump_alloc(b, n), s, n);
}

char *bump_format(struct bump *b, const char *fmt, ...)
{
    char brief[256];
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(brief, sizeof brief, fmt, args);
    va_end(args);
    CHECK(n >= 0, "the format cannot be printed");
    char *s = bump_alloc(b, (size_t)n + 1);
    if ((size_t)n < sizeof brief) memcpy(s, brief, (size_t)n + 1);
    else vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

struct bump_end {
    struct bump_end *next;
    void (*end)(void *);
    void *what;
};

void bump_at_end(struct bump *b, void (*end)(void *), void *what)
{
    struct bump_end *e = bump_alloc(b, sizeof *e);
    *e = (struct bump_end){b->ends, end, what};
    b->ends = e;
}

void bump_free(struct bump *b)
{
    for (const struct bump_end *e = b->ends; e; e = e->next) e->end(e->what);
    b->ends = NULL;
    for (struct bump_chunk *c = b->chunk; c;) {
        struct bump_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
    b->chunk = NULL;
}

/* ---- vectors ---- */

/* Doubles the capacity, so that n pushes cost O(n). */
void vec_grow(void **at, uint32_t *cap, uint32_t need, size_t size)
{
    if (need <= *cap) return;
    CHECK(need <= UINT32_MAX / 2, "array of %u elements", need);
    uint32_t grown = *cap ? *cap * 2 : 8;
    if (grown < need) grown = need;
    *at = mem_resize(*at, (size_t)grown * size);
    *cap = grown;
}
