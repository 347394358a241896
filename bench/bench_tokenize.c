/*
 * bench_tokenize.c: how fast a tokenizer encodes and decodes, on one thread.
 *
 *     build/bench/bench_tokenize MODEL FILE BYTES...
 *
 * For each BYTES the file is cut at line ends into texts of at least BYTES bytes. Prints a line
 * for each: BYTES, MB/s of encoding the first time (the cache of words is empty), MB/s of the best
 * of three later times, MB/s of decoding, tokens.
 */
#include <time.h>

#include "io/file.h"
#include "text/tokenizer/tokenizer.h"

struct cut {
    VEC(struct byte_range) at;
};

static void cut_lines(struct cut *c, const char *bytes, size_t n, size_t least)
{
    c->at.n = 0;
    for (size_t begin = 0, end; begin < n; begin = end + 1) {
        end = begin + least < n ? begin + least : n;
        while (end < n && bytes[end] != '\n') end++;
        vec_push(&c->at, ((struct byte_range){(uint32_t)begin, (uint32_t)end}));
    }
}

/* The time of the processor, which other programs do not change. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double encode(const struct tokenizer *t, const char *bytes, const struct cut *c, struct token_list *out,
                     struct error *e)
{
    const double start = cpu_seconds();
    out->n = 0;
    for (uint32_t i = 0; i < c->at.n; i++)
        if (tokenizer_encode(t, bytes + c->at.at[i].begin, c->at.at[i].end - c->at.at[i].begin, NULL, 0, false, out,
                             e)) {
            fprintf(stderr, "%s\n", e->text);
            exit(1);
        }
    return cpu_seconds() - start;
}

static double decode(const struct tokenizer *t, const struct token_list *l, struct error *e)
{
    int32_t *ids = mem_alloc((l->n + 1) * sizeof *ids);
    struct text out = {0};
    for (uint32_t i = 0; i < l->n; i++) ids[i] = l->at[i].id;
    const double start = cpu_seconds();
    tokenizer_decode(t, ids, l->n, false, &out, e);
    const double seconds = cpu_seconds() - start;
    mem_free(ids);
    text_free(&out);
    return seconds;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct tokenizer *t;
    char *bytes;
    size_t n;
    if (argc < 4) return fprintf(stderr, "usage: bench_tokenize MODEL FILE BYTES...\n"), 2;
    if (file_read(argv[2], 1 << 28, &bytes, &n, &e)) return fprintf(stderr, "%s\n", e.text), 2;
    for (int k = 3; k < argc; k++) {
        struct cut c = {0};
        struct token_list l = {0};
        if (tokenizer_open(&t, argv[1], &e)) return fprintf(stderr, "%s\n", e.text), 2;
        cut_lines(&c, bytes, n, strtoul(argv[k], NULL, 10));
        const double first = encode(t, bytes, &c, &l, &e);
        double best = first;
        for (int i = 0; i < 3; i++) {
            const double again = encode(t, bytes, &c, &l, &e);
            if (again < best) best = again;
        }
        const double mb = (double)n / 1e6;
        printf("%s %.2f %.2f %.2f %u\n", argv[k], mb / first, mb / best, mb / decode(t, &l, &e), l.n);
        vec_free(&c.at);
        token_list_free(&l);
        tokenizer_close(t);
    }
    mem_free(bytes);
    return 0;
}
