/*
 * forge.c: makes broken safetensors files from an intact one.
 *
 *   forge IN OUT drop NAME             without the tensor
 *   forge IN OUT flatten NAME          its shape is [elements] instead
 *   forge IN OUT set NAME INDEX VALUE  one element changed; VALUE may be nan
 *   forge IN OUT cut BYTES             BYTES bytes missing at the end
 *   forge IN OUT length NUMBER         the header's length word is NUMBER
 *   forge IN OUT offsets NAME          data_offsets far beyond the file
 *
 * The first three write files that are well formed and wrong; the others damage the bytes.
 */
#include <math.h>

#include "io/file.h"
#include "io/safetensors.h"

struct change {
    const char *name;
    bool drop, flatten, set;
    int64_t index;
    double value;
};

static int copy_tensor(const struct st_file *in, const struct st_entry *t, const struct change *c,
                       struct st_writer *out, struct error *e)
{
    char *data = mem_alloc(t->bytes);
    int rc = st_read(in, t, 0, t->bytes, data, e);
    if (!rc && c->set && !strcmp(t->name, c->name)) dtype_store(data, t->dtype, c->index, c->value);
    if (!rc) rc = st_write_bytes(out, data, t->bytes, e);
    mem_free(data);
    return rc;
}

static int rewrite(const struct st_file *in, const char *path, const struct change *c, struct error *e)
{
    struct st_spec *specs = mem_alloc(in->n_entries * sizeof *specs);
    struct st_writer out;
    uint32_t n = 0;
    for (uint32_t i = 0; i < in->n_entries; i++) {
        const struct st_entry *t = &in->entries[i];
        bool it = !strcmp(t->name, c->name);
        if (it && c->drop) continue;
        specs[n++] = it && c->flatten ? (struct st_spec){t->name, t->dtype, 1, &t->elements}
                                      : (struct st_spec){t->name, t->dtype, t->rank, t->dims};
    }
    int rc = st_write_begin(&out, path, specs, n, in->metadata, in->n_metadata, e);
    mem_free(specs);
    if (rc) return rc;
    for (uint32_t i = 0; i < in->n_entries && !rc; i++)
        if (!c->drop || strcmp(in->entries[i].name, c->name)) rc = copy_tensor(in, &in->entries[i], c, &out, e);
    if (!rc) return st_write_end(&out, e);
    st_write_abort(&out);
    return rc;
}

/* Replaces all digits of the tensor's offsets by nines: the same length, another offset. */
static int spoil_offsets(char *bytes, size_t n, const char *name, struct error *e)
{
    char *at = memmem(bytes, n, name, strlen(name));
    if (at) at = memmem(at, n - (size_t)(at - bytes), "data_offsets", 12);
    if (!at) return error_set(e, PL_USAGE, "no data_offsets of %s", name);
    for (; *at != ']'; at++)
        if (*at >= '0' && *at <= '9') *at = '9';
    return PL_OK;
}

static int damage(const char *from, const char *to, const char *how, const char *argument, struct error *e)
{
    char *bytes;
    size_t n;
    int rc = file_read(from, UINT64_MAX, &bytes, &n, e);
    if (rc) return rc;
    if (!strcmp(how, "cut")) n -= strtoul(argument, NULL, 10);
    else if (!strcmp(how, "length"))
        for (int i = 0; i < 8; i++) bytes[i] = (char)(strtoull(argument, NULL, 10) >> (8 * i));
    else rc = spoil_offsets(bytes, n, argument, e);
    if (!rc) rc = file_write_atomic(to, bytes, n, e);
    mem_free(bytes);
    return rc;
}

static int forge(int argc, char **argv, struct error *e)
{
    if (argc < 5) return error_set(e, PL_USAGE, "usage: forge IN OUT drop|flatten|set|cut|length|offsets ARGUMENT...");
    const char *how = argv[3];
    struct change c = {.name = argv[4], .drop = !strcmp(how, "drop"), .flatten = !strcmp(how, "flatten"),
                       .set = !strcmp(how, "set")};
    if (!c.drop && !c.flatten && !c.set) return damage(argv[1], argv[2], how, argv[4], e);
    if (c.set && argc == 7) c.index = strtoll(argv[5], NULL, 10), c.value = strtod(argv[6], NULL);
    struct st_file in;
    int rc = st_open(argv[1], &in, e);
    if (rc) return rc;
    const struct st_entry *t = st_find(&in, c.name);
    if (!t || c.index >= t->elements) rc = error_set(e, PL_USAGE, "%s: no such element of %s", argv[1], c.name);
    if (!rc) rc = rewrite(&in, argv[2], &c, e);
    st_close(&in);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    int rc = forge(argc, argv, &e);
    if (rc) fprintf(stderr, "forge: %s\n", e.text);
    return rc;
}
