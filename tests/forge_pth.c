/*
 * forge_pth.c: makes checkpoints from a list of names, and lists the contents of one.
 *
 *   forge_pth make LIST OUT.pth    a tensor of zeros for each line "NAME 3,4" ("-": no dimension)
 *   forge_pth list FILE            "NAME TYPE 3,4 HASH" of each tensor of a .pth or .safetensors, in order
 */

#include "io/file.h"
#include "io/pth.h"
#include "io/safetensors.h"

enum { CHUNK = 1 << 20 };

static int make_tensor(struct pth_writer *w, const char *name, char *shape, struct error *e)
{
    static const char zeros[CHUNK];
    int64_t dim[PTH_RANK];
    int rank = 0;
    for (char *s = strcmp(shape, "-") ? strtok(shape, ",") : NULL; s && rank < PTH_RANK; s = strtok(NULL, ","))
        dim[rank++] = atoll(s);
    enum dtype t = pattern_match("*.num_batches_tracked", name) ? DT_I64 : DT_F32;
    uint64_t left = dtype_size(t);
    for (int i = 0; i < rank; i++) left *= (uint64_t)dim[i];
    int rc = pth_write_begin(w, name, t, rank, dim, e);
    for (uint64_t n; left && !rc; left -= n) {
        n = min_u64(left, CHUNK);
        rc = pth_write_bytes(w, zeros, n, e);
    }
    return rc;
}

static int make(const char *list, const char *out, struct error *e)
{
    char name[256], shape[128];
    struct pth_writer *w;
    FILE *f = fopen(list, "r");
    if (!f) return file_error(list, "open", e);
    int rc = pth_begin(&w, out, e);
    while (!rc && fscanf(f, "%255s %127s", name, shape) == 2) rc = make_tensor(w, name, shape, e);
    fclose(f);
    return rc ? rc : pth_end(w, e);
}

static void print(const char *name, enum dtype t, int rank, const int64_t *dim, const void *data, size_t n)
{
    printf("%s %s ", name, dtype_name(t));
    for (int i = 0; i < rank; i++) printf("%s%lld", i ? "," : "", (long long)dim[i]);
    printf("%s %016llx\n", rank ? "" : "-", (unsigned long long)hash_bytes(data, n, 0));
}

static int list_safetensors(const char *path, struct error *e)
{
    struct st_file f;
    int rc = st_open(path, &f, e);
    for (uint32_t i = 0; !rc && i < f.n_entries; i++) {
        const struct st_entry *t = &f.entries[i];
        void *data = mem_alloc(t->bytes);
        rc = st_read(&f, t, 0, t->bytes, data, e);
        print(t->name, t->dtype, t->rank, t->dims, data, t->bytes);
        mem_free(data);
    }
    return rc;
}

static int list_pth(const char *path, struct error *e)
{
    struct pth p;
    int rc = pth_open(&p, path, e);
    for (uint32_t i = 0; !rc && i < p.tensors.n; i++) {
        const struct pth_tensor *t = &p.tensors.at[i];
        size_t n = (size_t)pth_elements(t) * dtype_size(t->dtype);
        void *data = mem_alloc(n);
        pth_read(t, data);
        print(t->name, t->dtype, t->rank, t->dim, data, n);
        mem_free(data);
    }
    if (!rc) pth_close(&p);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    int rc = PL_USAGE;
    if (argc == 4 && !strcmp(argv[1], "make")) rc = make(argv[2], argv[3], &e);
    else if (argc == 3 && !strcmp(argv[1], "list"))
        rc = pattern_match("*.safetensors", argv[2]) ? list_safetensors(argv[2], &e) : list_pth(argv[2], &e);
    if (rc) fprintf(stderr, "forge_pth: %s\n", e.text[0] ? e.text : "see the top of forge_pth.c");
    return rc;
}
