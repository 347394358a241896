/*
 * bench_ring.c: the loader: pictures a second from a shard of 2250x1500 JPEGs to canvases of 1024 with
 * 64 masks of 256x256 bits, by 1 and 2 threads, and the memory of it.
 *
 *   build/bench/bench_ring [SHARD.tar ...]
 *
 * Without shards it makes one of 16 pictures in a folder of its own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/loader.h"
#include "data/synth.h"
#include "data/tar.h"
#include "io/file.h"

enum { IMAGES = 16, WIDTH = 2250, HEIGHT = 1500, MASKS = 64, SIDE = 1024, CELLS = 256, TAKEN = 48, ROUNDS = 3 };

static void make_shard(const char *path)
{
    struct error e;
    struct tar_writer w = {.fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666)};
    CHECK(w.fd >= 0, "%s", path);
    for (uint64_t id = 1; id <= IMAGES; id++) {
        struct synth_scene scene;
        struct text half[2] = {0};
        char name[64];
        synth_draw(&scene, &(struct synth_options){.width = WIDTH, .height = HEIGHT, .masks = 92}, id);
        synth_json(&scene, &half[1]);
        CHECK(!synth_jpeg(&scene, &half[0], &e), "%s", e.text);
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "./sa_%llu.%s", (unsigned long long)id, k ? "json" : "jpg");
            CHECK(!tar_write_member(&w, name, half[k].at, half[k].n, &e), "%s", e.text);
            text_free(&half[k]);
        }
        synth_free(&scene);
    }
    CHECK(!tar_write_end(&w, &e), "%s", e.text);
    close(w.fd);
}

/* Pictures a second, the best of some rounds; neighbours on the machine only slow it down. */
static double rate(struct loader *l, struct loader_source *s, uint64_t *masks)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const struct loader_sample *x;
        struct error e;
        loader_seek(l, s, 0);
        double from = clock_seconds();
        *masks = 0;
        for (int i = 0; i < TAKEN; i++) {
            CHECK(!loader_take(l, &x, &e), "%s", e.text);
            *masks += x->n;
        }
        double r = TAKEN / (clock_seconds() - from);
        best = r > best ? r : best;
    }
    return best;
}

static void bench(const struct dataset *d, uint32_t threads)
{
    struct loader_options o = {.side = SIDE, .cells = CELLS, .masks = MASKS, .threads = threads, .slots = 8, .room = 8 << 20};
    struct loader_source s = {.set = d, .shuffle = true, .max_bad = 1, .sampler = {.max_masks = MASKS}};
    struct error e;
    struct loader *l;
    struct rusage before, after;
    uint64_t bytes = loader_bytes(&o), masks, allocations;
    char *block = mem_alloc(bytes + 64), size[32];
    CHECK(!loader_open(&l, &o, (void *)align_up((uintptr_t)block, 64), &e), "%s", e.text);
    rate(l, &s, &masks);
    getrusage(RUSAGE_SELF, &before);
    allocations = mem_allocations();
    double r = rate(l, &s, &masks);
    getrusage(RUSAGE_SELF, &after);
    printf("%u thread%s: %6.1f images/s, %5.1f masks each, block %s, resident peak %.1f MiB (%+.1f MiB while measured), %llu allocations\n", threads,
           threads == 1 ? " " : "s", r, (double)masks / TAKEN, size_print(bytes, size), (double)after.ru_maxrss / 1024,
           (double)(after.ru_maxrss - before.ru_maxrss) / 1024, (unsigned long long)(mem_allocations() - allocations));
    loader_close(l);
    mem_free(block);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/plimsoll-bench-XXXXXX", path[64];
    char *made[] = {path};
    struct dataset *d;
    struct error e;
    if (argc < 2) {
        CHECK(mkdtemp(dir), "%s", dir);
        snprintf(path, sizeof path, "%s/sa_000000.tar", dir);
        pid_t child = fork(); /* drawing takes memory that is not the loader's */
        if (!child) {
            make_shard(path);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "no shard was made");
    }
    struct dataset_options o = {.format = "sa1b", .paths = argc < 2 ? made : argv + 1, .n_paths = argc < 2 ? 1 : (uint32_t)argc - 1};
    if (dataset_open(&d, &o, &e)) {
        fprintf(stderr, "bench_ring: %s\n", e.text);
        return e.code;
    }
    printf("%llu pictures, canvas %d, masks of %d cells\n", (unsigned long long)dataset_count(d), SIDE, CELLS);
    bench(d, 1);
    bench(d, 2);
    dataset_close(d);
    if (argc < 2) tree_remove(dir, &e);
    return 0;
}
