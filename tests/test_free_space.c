/*
 * test_room.c: the lowest free offset, against a search over all lifetimes that were placed before.
 */
#include "base/random.h"
#include "plan/free_space.h"

#include "harness.h"

enum { MOST = 400 };

struct box {
    uint64_t from, to;
    uint32_t start, end;
};

static bool overlap(const struct box *a, const struct box *b)
{
    return a->from < b->to && b->from < a->to && a->start <= b->end && b->start <= a->end;
}

/* The lowest offset is 0 or the end of another box. */
static uint64_t lowest(const struct box *boxes, int n, struct box x)
{
    const uint64_t bytes = x.to - x.from;
    uint64_t best = UINT64_MAX;
    for (int i = -1; i < n; i++) {
        bool free = true;
        x.from = i < 0 ? 0 : boxes[i].to;
        x.to = x.from + bytes;
        for (int k = 0; k < n && free; k++) free = !overlap(&x, &boxes[k]);
        if (free && x.from < best) best = x.from;
    }
    return best;
}

/* Lifetimes short and long, some that cover whole leaves and nodes of the tree. */
static struct box draw(uint64_t key, uint64_t i, uint32_t instants)
{
    const uint64_t a = random_bits(key, 4 * i), b = random_bits(key, 4 * i + 1), c = random_bits(key, 4 * i + 2);
    struct box x = {0, 256 * (1 + a % 40), (uint32_t)(b % instants), 0};
    if (c % 3 == 0) x.start -= x.start % 32;
    const uint64_t length = c % 2 ? random_bits(key, 4 * i + 3) % 40 : random_bits(key, 4 * i + 3) % instants;
    x.end = x.start + length < instants ? x.start + (uint32_t)length : instants - 1;
    return x;
}

TEST(test_lowest)
{
    static const uint32_t instants[] = {1, 2, 31, 32, 33, 255, 256, 257, 1000, 5000};
    for (size_t k = 0; k < sizeof instants / sizeof *instants; k++)
        for (uint64_t fixed = 0; fixed <= 8; fixed += 8) {
            struct free_space *room = free_space_open(instants[k]);
            struct box boxes[MOST];
            const uint64_t key = random_key(k + fixed, "room");
            for (uint64_t i = 0; i < MOST; i++) {
                boxes[i] = draw(key, i, instants[k]);
                if (i < fixed) {
                    boxes[i].from += 4096 * i;
                    boxes[i].to += 4096 * i;
                    free_space_take(room, boxes[i].from, boxes[i].to, boxes[i].start, boxes[i].end);
                    continue;
                }
                const uint64_t bytes = boxes[i].to, at = free_space_place(room, bytes, boxes[i].start, boxes[i].end);
                assert_int_equal(at, lowest(boxes, (int)i, boxes[i]));
                boxes[i].from = at;
                boxes[i].to = at + bytes;
            }
            free_space_close(room);
        }
}

TEST(test_nothing)
{
    struct free_space *room = free_space_open(100);
    assert_int_equal(free_space_place(room, 256, 10, 20), 0);
    assert_int_equal(free_space_place(room, 0, 10, 20), 0);
    free_space_take(room, 256, 256, 0, 99);
    assert_int_equal(free_space_place(room, 256, 0, 99), 256);
    free_space_close(room);
}

MAIN(NULL, NULL)
