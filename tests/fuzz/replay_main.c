/*
 * replay_main.c: runs a fuzz target over the files and folders given as arguments, so that the
 * corpus can be replayed with any compiler, without libFuzzer. Linked with one fuzz_*.c.
 */

#include "io/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes are copied to a block of exactly their size, so that a sanitizer reports a read past
 * the end, which file_read's terminator would hide. */
static int replay_file(const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, 64 << 20, &bytes, &n, e)) return e->code;
    void *exact = mem_copy(bytes, n);
    mem_free(bytes);
    LLVMFuzzerTestOneInput(exact, n);
    mem_free(exact);
    return PL_OK;
}

static int replay(const char *path, int *count, struct error *e)
{
    if (!dir_exists(path)) return (*count)++, replay_file(path, e);
    struct names l;
    if (dir_list(path, &l, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        struct text full = {0};
        text_printf(&full, "%s/%s", path, l.at[i]);
        rc = replay(full.at, count, e);
        text_free(&full);
    }
    names_free(&l);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    int count = 0;
    for (int i = 1; i < argc; i++)
        if (replay(argv[i], &count, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return e.code;
        }
    printf("%d inputs replayed\n", count);
    return 0;
}
