/*
 * gpus.c: profiles of GPUs. A plan for a GPU that is not in this machine is made from its published
 * ceilings (gpus.def), the same everywhere. A GPU of this machine gets the same ceilings, found by
 * its driver's name, and the memory size that the driver reports. A GPU that is not listed gets
 * ceilings from its clocks and the throughput of its generation per cycle. A measured GPU has more
 * than ceilings: its profile is part of the program.
 */
#include <ctype.h>
#include <strings.h>

#include "cost/profile.h"

static const struct gpu_row {
    const char *name, *model;
    int sm;
    double gib, share, f32, half;
    bool bf16;
    double memory, copy;
    const char *source;
} gpus[] = {
#define GPU(name, model, sm, gib, share, f32, half, bf16, memory, copy, source) \
    {name, model, sm, gib, share, f32, half, bf16, memory, copy, source},
#include "cost/gpus.def"
#undef GPU
};

/* The H200's nominal memory, and the share of it that a program sees; it is measured, so it is in
 * no row. */
#define H200_GIB 141.
#define H200_SHARE 0.99

/* Keeps the letters and digits, in lower case: "RTX 3060", "rtx3060" and "rtx-3060" are one
 * name. */
static const char *fold(const char *name, char out[64])
{
    size_t n = 0;
    for (; *name && n < 63; name++)
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
    out[n] = '\0';
    return out;
}

static const struct gpu_row *find(const char *name)
{
    char a[64], b[64];
    for (size_t i = 0; i < COUNT(gpus); i++)
        if (!strcmp(fold(gpus[i].name, a), fold(name, b))) return &gpus[i];
    return NULL;
}

bool profile_is_gpu(const char *name) { return profile_is_stored(name) || find(name); }

bool profile_gpu_like(const char *name, struct text *out)
{
    char a[64], b[64];
    const uint32_t was = out->n;
    fold(name, b);
    /* the name is a part of a GPU's, else a GPU's is a part of it */
    for (int within = 0; within < 2 && strlen(b) > 2 && out->n == was; within++)
        for (size_t i = 0; i < COUNT(gpus); i++) {
            fold(gpus[i].name, a);
            if (within ? strstr(b, a) : strstr(a, b))
                text_printf(out, "%s%s", out->n > was ? " or " : "", gpus[i].name);
        }
    return out->n > was;
}

/* Returns the rate of e4m3: twice that of 16 bits from 8.9 on; others have a slow kernel for it. */
static double flops_fp8(int capability, double half) { return capability >= 89 ? 2 * half : half; }

static void use_row(struct profile *p, const struct gpu_row *c)
{
    snprintf(p->name, sizeof p->name, "%s", c->name);
    p->capability = c->sm;
    p->native_bf16 = c->bf16;
    p->flops_f32 = c->f32 * 1e12;
    p->flops_bf16 = c->half * 1e12;
    p->flops_fp8 = flops_fp8(c->sm, p->flops_bf16);
    p->memory_bandwidth = c->memory * 1e9;
    p->copy_bandwidth = c->copy * 1e9;
    p->memory_bytes = (uint64_t)(c->gib * c->share * (double)(1u << 30));
    p->published = c->source;
}

int profile_gpu(struct profile *p, struct calibration *calibration, const char *name, struct error *e)
{
    if (profile_is_stored(name)) return profile_stored(p, calibration, name, e);
    profile_default(p, DEVICE_CUDA, 0);
    const struct gpu_row *c = find(name);
    if (!c) {
        struct text known = {0};
        if (profile_gpu_like(name, &known)) text_printf(&known, "?");
        const bool like = known.n;
        for (size_t i = 0; i < COUNT(gpus) && !like; i++) text_printf(&known, "%s, ", gpus[i].name);
        int rc = error_set(e, PL_USAGE, "no profile of a GPU \"%s\"; %s%s%s", name,
                           like ? "did you mean " : "there are ", known.at, like ? "" : "h200");
        text_free(&known);
        return rc;
    }
    use_row(p, c);
    return PL_OK;
}

/* Returns how far two memory sizes are apart: the larger over the smaller. */
static double ratio(double a, double b) { return a > b ? a / b : b / a; }

const char *profile_of_class(double gib, uint64_t *memory)
{
    const struct gpu_row *best = NULL;
    for (size_t i = 0; i < COUNT(gpus); i++) {
        const struct gpu_row *c = &gpus[i];
        if (!c->bf16) continue;
        double nearer = best ? ratio(gib, best->gib) - ratio(gib, c->gib) : 1;
        if (nearer > 0 || (!(nearer < 0) && c->half < best->half)) best = c;
    }
    const bool h200 = ratio(gib, H200_GIB) < ratio(gib, best->gib);
    *memory = (uint64_t)(gib * (h200 ? H200_SHARE : best->share) * (double)(1u << 30));
    return h200 ? "h200" : best->name;
}

/* --- a GPU of this machine ------------------------------------------------------------------- */

/* Reports whether a word does not distinguish models: vendor, families, and memory sizes. */
static bool is_ignored(const char *word, int n)
{
    static const char *const idle[] = {"NVIDIA", "GeForce", "Tesla", "SXM",  "SXM2",  "SXM4",
                                       "SXM5",   "HBM2",    "HBM2e", "HBM3", "HBM3e", "GPU"};
    for (size_t i = 0; i < COUNT(idle); i++)
        if ((int)strlen(idle[i]) == n && !strncasecmp(idle[i], word, (size_t)n)) return true;
    return isdigit((unsigned char)word[0]) && n > 2 && !strncasecmp(word + n - 2, "GB", 2);
}

/* Goes to the next significant word; returns its length, 0 at the end. */
static int next_word(const char **at)
{
    for (;;) {
        *at += strspn(*at, " -");
        int n = (int)strcspn(*at, " -");
        if (!n || !is_ignored(*at, n)) return n;
        *at += n;
    }
}

static bool same_model(const char *a, const char *b)
{
    for (;;) {
        int n = next_word(&a), m = next_word(&b);
        if (n != m || strncasecmp(a, b, (size_t)n)) return false;
        if (!n) return true;
        a += n, b += m;
    }
}

/* Reports whether a GPU is that of a row. Its memory may differ, since vendors round: 24 GiB are
 * 23.6, or 22.5 with ECC. */
static bool is_row(const struct gpu_row *row, const struct gpu *c)
{
    double gib = (double)c->memory_bytes / (double)(1u << 30);
    return row->sm == c->capability && gib > 0.85 * row->gib && gib < 1.05 * row->gib &&
           same_model(row->model, c->name);
}

/* Operations of a multiprocessor per cycle: in f32, and in 16-bit products summed in f32. Per
 * generation the figures of consumer GPUs, unless it has none. */
static const struct { int capability; double f32, half;
} cycle[] = {
    {75, 128, 1024}, {80, 128, 2048},  {86, 256, 512},  {89, 256, 512},
    {90, 256, 4096}, {100, 256, 8192}, {120, 256, 512},
};

/* Writes the name that a plan stores: "NVIDIA GeForce RTX 3070" becomes "geforce-rtx-3070". */
static void plain_name(const char *name, char *out, size_t room)
{
    size_t n = 0;
    if (!strncasecmp(name, "NVIDIA ", 7)) name += 7;
    for (; *name && n + 1 < room; name++) {
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
        else if (n && out[n - 1] != '-') out[n++] = '-';
    }
    out[n] = '\0';
}

static void derive(struct profile *p, const struct gpu *c)
{
    size_t k = 0;
    while (k + 1 < COUNT(cycle) && cycle[k + 1].capability <= c->capability) k++;
    const double cycles = c->multiprocessors * (c->clock > 0 ? c->clock : 1.5e9);
    plain_name(c->name, p->name, sizeof p->name);
    p->capability = c->capability;
    p->native_bf16 = c->capability >= 80;
    p->flops_f32 = cycles * cycle[k].f32;
    p->flops_bf16 = cycles * cycle[k].half;
    p->flops_fp8 = flops_fp8(c->capability, p->flops_bf16);
    p->memory_bandwidth = c->memory_bandwidth > 0 ? c->memory_bandwidth : 300e9;
    p->copy_bandwidth = 12e9;
    p->published = "clocks and bus width reported by the driver";
}

/* Keeps the H200's figures, its memory too, as they were measured: a plan made elsewhere equals the
 * plan made here. */
void profile_here(struct profile *p, const struct gpu *c)
{
    profile_default(p, DEVICE_CUDA, 0);
    if (c->capability == 90 && same_model("H200", c->name)) return;
    const struct gpu_row *row = NULL;
    for (size_t i = 0; i < COUNT(gpus) && !row; i++)
        if (is_row(&gpus[i], c)) row = &gpus[i];
    if (row) use_row(p, row);
    else derive(p, c);
    p->memory_bytes = c->memory_bytes;
}

/* --- measured profiles that are part of the program -------------------------------------------
 *
 * So a plan for such a GPU is the same wherever it is made. Each is a file as `plimsoll bench
 * --calibrate` writes it, src/cost/profiles/NAME.json, which the Makefile turns into a C string. */

static const struct stored {
    const char *name, *text;
} stored[] = {
    {"h200",
#include "profiles/h200.inc"
    },
};

static const struct stored *find_stored(const char *name)
{
    for (size_t i = 0; i < COUNT(stored); i++)
        if (!strcmp(stored[i].name, name)) return &stored[i];
    return NULL;
}

bool profile_is_stored(const char *name) { return find_stored(name); }

int profile_stored(struct profile *p, struct calibration *c, const char *name, struct error *e)
{
    const struct stored *s = find_stored(name);
    CHECK(s, "no built-in profile of %s", name);
    int rc = profile_parse(s->text, strlen(s->text), p, c, e);
    return rc ? error_prepend(e, "the built-in profile of %s", name) : PL_OK;
}
