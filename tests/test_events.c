/*
 * test_events.c: TensorBoard event files, read back by an independent reader that shares no code
 * with the writer: its own checksum, bit by bit, and its own protobuf parser.
 */
#include <sys/stat.h>
#include <time.h>

#include "io/file.h"
#include "train/folder.h"

#include "harness.h"

static char top[64], dir[128];

static int make_top(void **state)
{
    strcpy(top, "/tmp/plimsoll-events-XXXXXX");
    if (!mkdtemp(top)) return -1;
    snprintf(dir, sizeof dir, "%s/tb", top);
    return 0;
}

static int remove_top(void **state)
{
    struct error e;
    return tree_remove(top, &e);
}

/* --- the independent reader ------------------------------------------------------------------ */

/* By definition: divide by the polynomial, lowest bit first. */
static uint32_t crc_by_bits(const uint8_t *at, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < 8 * n; i++) {
        uint32_t bit = (at[i / 8] >> i % 8 & 1) ^ (crc & 1);
        crc >>= 1;
        if (bit) crc ^= 0x82f63b78u;
    }
    return crc ^ 0xffffffffu;
}

static uint32_t mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t u64_at(const uint8_t *p) { return u32_at(p) | (uint64_t)u32_at(p + 4) << 32; }

enum { SCALARS = 8 };
struct event {
    double wall;
    int64_t step;
    char version[32];
    int session;           /* status; 0: none */
    int n;
    char tag[SCALARS][32];
    float value[SCALARS];
};

static uint64_t varint(const uint8_t **p)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        x |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128)) return x;
    }
}

static void read_value(struct event *v, const uint8_t *p, const uint8_t *end)
{
    assert_true(v->n < SCALARS);
    while (p < end) {
        uint64_t key = varint(&p);
        if (key == (1 << 3 | 2)) {
            size_t n = varint(&p);
            assert_true(n < 32);
            memcpy(v->tag[v->n], p, n);
            p += n;
        } else {
            assert_int_equal(key, 2 << 3 | 5);
            uint32_t bits = u32_at(p);
            memcpy(&v->value[v->n], &bits, 4);
            p += 4;
        }
    }
    assert_true(p == end);
    v->n++;
}

static void read_event(struct event *v, const uint8_t *p, const uint8_t *end)
{
    *v = (struct event){0};
    while (p < end) {
        uint64_t key = varint(&p);
        if (key == (1 << 3 | 1)) {
            uint64_t bits = u64_at(p);
            memcpy(&v->wall, &bits, 8);
            p += 8;
        } else if (key == (2 << 3 | 0)) {
            v->step = (int64_t)varint(&p);
        } else {
            size_t n = varint(&p);
            const uint8_t *stop = p + n;
            assert_true(stop <= end);
            if (key == (3 << 3 | 2)) {
                memcpy(v->version, p, n);
            } else if (key == (7 << 3 | 2)) {
                assert_int_equal(varint(&p), 1 << 3 | 0);
                v->session = (int)varint(&p);
                assert_true(p == stop);
            } else {
                assert_int_equal(key, 5 << 3 | 2);
                while (p < stop) {
                    assert_int_equal(varint(&p), 1 << 3 | 2);
                    n = varint(&p);
                    read_value(v, p, p + n);
                    p += n;
                }
            }
            p = stop;
        }
    }
    assert_true(p == end);
}

/* All events of a file, which must be complete; returns their number. */
static int read_events(int64_t start, struct event *out, int room)
{
    struct error e = {0};
    char path[256], *text;
    size_t size, at = 0;
    int count = 0;
    snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.plimsoll", dir, (long long)start);
    if (file_read(path, 1 << 20, &text, &size, &e)) fail_msg("%s", e.text);
    while (at < size) {
        const uint8_t *p = (const uint8_t *)text + at;
        assert_true(size - at >= 16 && count < room);
        uint64_t n = u64_at(p);
        assert_true(n <= size - at - 16);
        assert_int_equal(u32_at(p + 8), mask(crc_by_bits(p, 8)));
        assert_int_equal(u32_at(p + 12 + n), mask(crc_by_bits(p + 12, n)));
        read_event(&out[count++], p + 12, p + 12 + n);
        at += 16 + n;
    }
    mem_free(text);
    return count;
}

/* --- tests --------------------------------------------------------------------------------- */

static void open_events(struct events *w, int64_t step)
{
    struct error e = {0};
    if (events_open(w, dir, step, &e)) fail_msg("%s", e.text);
}

/* Writes steps first to last, each with two scalars, and an evaluation after every even one. */
static void write_steps(struct events *w, int64_t first, int64_t last)
{
    struct error e = {0};
    for (int64_t step = first; step <= last; step++) {
        const struct scalar s[] = {{"loss", 1.0 / (double)step}, {"learning_rate", 1e-4}};
        assert_int_equal(events_write(w, step, s, 2, &e), PL_OK);
        if (step % 2 == 0) assert_int_equal(events_write(w, step, &(struct scalar){"eval_loss", 7}, 1, &e), PL_OK);
    }
    assert_int_equal(events_sync(w, &e), PL_OK);
}

TEST(test_crc)
{
    assert_int_equal(crc_by_bits((const uint8_t *)"123456789", 9), 0xe3069283u); /* the published check value */
}

TEST(test_write)
{
    struct events w;
    struct event got[64];
    struct error e = {0};
    open_events(&w, 0);
    assert_false(file_exists(dir)); /* nothing written yet */
    assert_int_equal(events_sync(&w, &e), PL_OK);
    uint64_t allocations = mem_allocations();
    write_steps(&w, 1, 4);
    const struct scalar odd[] = {{"a", INFINITY}, {"b", -0.0}, {"c", 1e300}, {"", 3}};
    assert_int_equal(events_write(&w, INT64_C(5000000000), odd, 4, &e), PL_OK);
    assert_true(mem_allocations() == allocations);
    events_close(&w);
    events_close(&w); /* a second close has no effect */

    assert_int_equal(read_events(0, got, 64), 1 + 4 + 2 + 1);
    assert_string_equal(got[0].version, "brain.Event:2");
    assert_true(got[0].step == 0 && got[0].n == 0 && !got[0].session);
    assert_true(fabs(got[0].wall - (double)time(NULL)) < 60);
    assert_true(got[1].step == 1 && got[1].n == 2 && got[1].value[0] == 1 && got[1].value[1] == 1e-4f);
    assert_string_equal(got[1].tag[0], "loss");
    assert_string_equal(got[1].tag[1], "learning_rate");
    assert_true(got[3].step == 2 && got[3].n == 1 && got[3].value[0] == 7);
    assert_string_equal(got[3].tag[0], "eval_loss");
    assert_true(got[4].step == 3 && got[4].value[0] == 1 / 3.0f);
    assert_true(got[7].step == INT64_C(5000000000) && got[7].n == 4);
    assert_true(isinf(got[7].value[0]) && signbit(got[7].value[1]) && isinf(got[7].value[2]) && got[7].value[3] == 3);
}

/* What a resumed run keeps of its files, and what it adds. */
TEST(test_resume)
{
    struct events w;
    struct event got[64];
    char path[256];
    open_events(&w, 0); /* a fresh run removes the file of the previous test */
    write_steps(&w, 1, 6);
    events_close(&w);

    open_events(&w, 4);
    assert_int_equal(read_events(0, got, 64), 1 + 4 + 2); /* truncated at once, steps 5 and 6 are gone */
    assert_int_equal(got[6].step, 4);
    write_steps(&w, 5, 8);
    events_close(&w);
    assert_int_equal(read_events(4, got, 64), 2 + 4 + 2);
    assert_string_equal(got[0].version, "brain.Event:2");
    /* a session start at step 5 makes all earlier data from step 5 on void */
    assert_true(got[1].session == 1 && got[1].step == 5 && got[1].n == 0);
    assert_true(got[2].step == 5 && got[7].step == 8);

    open_events(&w, 4); /* from the same checkpoint once more */
    write_steps(&w, 5, 5);
    events_close(&w);
    assert_int_equal(read_events(0, got, 64), 7);
    assert_int_equal(read_events(4, got, 64), 3);

    open_events(&w, 3); /* from an earlier checkpoint */
    snprintf(path, sizeof path, "%s/events.out.tfevents.0000000004.plimsoll", dir);
    assert_false(file_exists(path));
    assert_int_equal(read_events(0, got, 64), 1 + 3 + 1);
    events_close(&w);

    open_events(&w, 3); /* nothing was added: nothing changes */
    assert_int_equal(read_events(0, got, 64), 1 + 3 + 1);
    events_close(&w);
}

/* Called very often, so without fsync. */
static void put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fwrite(text, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

/* Truncated at every byte, and with every byte changed: the kept events are complete. */
TEST(test_damaged)
{
    struct events w;
    struct event got[64];
    struct error e = {0};
    char path[256], *text;
    size_t n;
    open_events(&w, 0);
    write_steps(&w, 1, 3);
    events_close(&w);
    int all = read_events(0, got, 64);
    snprintf(path, sizeof path, "%s/events.out.tfevents.0000000000.plimsoll", dir);
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), PL_OK);
    int last = 0;
    for (size_t cut = 0; cut <= n; cut++) {
        put(path, text, cut);
        open_events(&w, 3);
        int kept = read_events(0, got, 64);
        assert_true(kept == last || kept == last + 1);
        last = kept;
        events_close(&w);
    }
    assert_int_equal(last, all);
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 16;
        put(path, text, n);
        text[i] ^= 16;
        open_events(&w, 3);
        assert_true(read_events(0, got, 64) < all);
        events_close(&w);
    }
    mem_free(text);
}

/* Other files of the folder are not touched. */
TEST(test_other_files)
{
    struct events w;
    struct error e = {0};
    static const char *const names[] = {"events.out.tfevents.1700000000.host.1.v2", "notes.txt",
                                        "events.out.tfevents.x.plimsoll"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(file_write_atomic(path, "x", 1, &e), PL_OK);
        open_events(&w, 0);
        assert_true(file_exists(path));
        events_close(&w);
    }
}

MAIN(make_top, remove_top)
