/*
 * bench_loader.c: the loader's speed on a dataset, the samples that it delivers, and its memory.
 *
 *   bench_loader [--images N] [--threads T] [--masks M] [--once] [--decode] PATH...
 *
 * Loads N images (default: one epoch) of shards or folders in SA-1B's format, or of a .pack,
 * shuffled, epoch after epoch: canvas 1024, masks at 256 as bits. --once: each sample once, none
 * replaced. --decode: no loader; only decodes each JPEG at the loader's scale, a bound for every
 * loader that uses libjpeg. Prints a word and a number per line; data.sh reads them. CPU seconds
 * are those of all threads: with one loader thread they are one core's time without the influence
 * of other programs. Resident memory is read after the first hundredth of the images, when every
 * buffer has been used, and at the end.
 */
#include <time.h>

#include "data/images/jpeg.h"
#include "data/loader.h"
#include "io/file.h"

enum { SIDE = 1024, CELLS = 256, SLOTS = 3, ROOM = 16 << 20 };

struct options {
    uint64_t images;
    uint32_t threads, masks;
    bool once, decode;
    char **paths;
    uint32_t n_paths;
};

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned long resident_kib(void)
{
    char *text, *at;
    size_t n;
    struct error e;
    if (file_read("/proc/self/status", 1 << 20, &text, &n, &e)) return 0;
    at = strstr(text, "VmRSS:");
    unsigned long kib = at ? strtoul(at + 6, NULL, 10) : 0;
    mem_free(text);
    return kib;
}

static int parse(int argc, char **argv, struct options *o)
{
    int i = 1;
    *o = (struct options){.threads = 1, .masks = 32};
    for (; i < argc && argv[i][0] == '-'; i++) {
        bool last = i + 1 == argc;
        if (!strcmp(argv[i], "--once")) o->once = true;
        else if (!strcmp(argv[i], "--decode")) o->decode = true;
        else if (!last && !strcmp(argv[i], "--images")) o->images = strtoull(argv[++i], NULL, 10);
        else if (!last && !strcmp(argv[i], "--threads")) o->threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!last && !strcmp(argv[i], "--masks")) o->masks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else return -1;
    }
    o->paths = argv + i;
    o->n_paths = (uint32_t)(argc - i);
    return o->n_paths && o->threads && o->masks ? 0 : -1;
}

/* Loads all images; prints counts, rates and memory. */
static int load_all(struct reader *l, struct loader_source *s, uint64_t images, struct error *e)
{
    uint64_t count = dataset_count(s->set), whole = 0, masks = 0, distinct = 0;
    bool *seen = mem_alloc(count * sizeof *seen);
    unsigned long first = 0;
    double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    int rc = PL_OK;
    for (uint64_t i = 0; i < images && !rc; i++) {
        const struct loader_sample *x;
        if (!(x = reader_next(l, e))) {
            rc = e->code;
            break;
        }
        if (x->fault == FAULT_NONE) {
            whole++;
            distinct += !seen[x->sample];
            seen[x->sample] = true;
        }
        masks += x->n;
        if (i == images / 100) first = resident_kib();
    }
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    mem_free(seen);
    if (rc) return rc;
    printf("pairs %llu\nimages %llu\nwhole %llu\ndistinct %llu\nbroken %llu\nmasks %llu\n", (unsigned long long)count,
           (unsigned long long)images, (unsigned long long)whole, (unsigned long long)distinct,
           (unsigned long long)s->order.counts.broken, (unsigned long long)masks);
    printf("seconds %.3f\ncpu_seconds %.3f\nper_second %.2f\nper_cpu_second %.2f\n", wall, cpu, (double)images / wall,
           (double)images / cpu);
    printf("early_kib %lu\nend_kib %lu\n", first, resident_kib());
    return PL_OK;
}

/* Decodes one JPEG and discards its rows. */
static int decode(struct jpg *j, const void *bytes, size_t n, uint8_t *row, struct error *e)
{
    struct jpg_header h;
    uint32_t w, rows;
    if (jpg_peek(bytes, n, &h, e) || jpg_start(j, bytes, n, jpg_divisor(h.width, h.height, SIDE), &w, &rows, e))
        return e->code;
    CHECK(w <= LOADER_MAX_SIDE, "an image %u pixels wide", w);
    for (uint32_t y = 0; y < rows; y++)
        if (jpg_rows(j, row, 0, 1, e)) return e->code;
    return jpg_finish(j, e);
}

static int decode_all(const struct dataset *set, uint64_t images, struct error *e)
{
    struct jpg *reader = jpg_new(NULL);
    char *room = mem_alloc(ROOM);
    uint8_t *row = mem_alloc(3 * LOADER_MAX_SIDE + 16);
    double cpu = 0;
    int rc = PL_OK;
    for (uint64_t i = 0; i < images && !rc; i++) {
        struct dataset_image found;
        rc = dataset_image(set, i % dataset_count(set), room, ROOM, &found, e) ? e->code : PL_OK;
        double from = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        if (!rc) rc = decode(reader, room, found.n, row, e);
        cpu += seconds_of(CLOCK_PROCESS_CPUTIME_ID) - from;
    }
    if (!rc) printf("images %llu\ndecoded_per_cpu_second %.2f\n", (unsigned long long)images, (double)images / cpu);
    jpg_free(reader);
    mem_free(room);
    mem_free(row);
    return rc;
}

static bool is_pack(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".pack");
}

static int measure(const struct options *o, struct error *e)
{
    struct dataset_options d = {.format = is_pack(o->paths[0]) ? "packed" : "sa1b",
                                .paths = o->paths,
                                .n_paths = o->n_paths};
    struct loader_options lo = {.side = SIDE, .cells = CELLS, .masks = o->masks, .threads = o->threads,
                                .slots = SLOTS + o->threads, .room = ROOM};
    struct dataset *set;
    struct reader *l = NULL;
    int rc = dataset_open(&set, &d, e);
    if (rc) return rc;
    struct loader_source s =
        {.order = {.seed = 1, .shuffle = !o->once, .once = o->once, .max_bad = 1},
         .set = set,
         .sampler = {.max_masks = o->masks}};
    uint64_t images = o->once || !o->images ? dataset_count(set) : o->images, bytes = reader_bytes(&loader_kind, &lo);
    if (o->decode) {
        rc = decode_all(set, images, e);
        dataset_close(set);
        return rc;
    }
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(memory, "no memory for a loader of %llu bytes", (unsigned long long)bytes);
    rc = reader_open(&l, &loader_kind, &lo, memory, e);
    if (!rc) {
        reader_seek(l, &s, 0);
        rc = load_all(l, &s, images, e);
    }
    reader_close(l);
    free(memory);
    dataset_close(set);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o;
    struct error e = {0};
    if (parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_loader [--images N] [--threads T] [--masks M] [--once] [--decode] PATH...\n");
        return 2;
    }
    log_quiet(true);
    if (measure(&o, &e)) {
        fprintf(stderr, "bench_loader: %s\n", e.text);
        return 1;
    }
    return 0;
}
