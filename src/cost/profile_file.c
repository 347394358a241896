/*
 * profile_file.c: a measured profile as JSON.
 *
 *     profile_format 1, device, cpu, isa, date, threads, native_bf16
 *     ceilings        flops_f32, flops_bf16, flops_fp8 (optional: as bf16), memory_bandwidth, ...
 *     corrections     a list of {op, variant?, dtype, points: [[ideal, factor], ...]}
 *     links           where they were measured: {local?, remote?}, each {ranks, latency, peer, bandwidth}
 *
 * For a GPU (device cuda): name, gpu, sm, memory_bytes, library_workspace instead of cpu, isa and
 * threads, no caches, host_bandwidth (0, and absent in older files: not measured), and
 *
 *     classes         a list of {op, kernel, variant?, dtype, extents: [a, b, c], points}
 *
 * A plan is a function of these numbers, so they are written with all digits: the same file gives
 * the same plan anywhere. The reader checks everything: a number out of range, an unknown op or a
 * curve that does not ascend is an error.
 */
#include <ctype.h>
#include <math.h>

#include "base/processor.h"
#include "cost/calibration.h"
#include "cost/links.h"
#include "cost/profile.h"
#include "graph/ops.h"
#include "io/file.h"
#include "io/json.h"

enum { PROFILE_BYTES_MOST = 4 << 20 };

/* The ceilings by name, with their valid ranges. */
static const struct ceiling {
    const char *name;
    size_t offset;
    double least, most;
    enum { OF_BOTH, OF_CPU, OF_GPU } of;
    bool optional;             /* a file may lack it */
} ceilings[] = {
    {"flops_f32", offsetof(struct profile, flops_f32), 1e6, 1e18, OF_BOTH, false},
    {"flops_bf16", offsetof(struct profile, flops_bf16), 1e6, 1e18, OF_BOTH, false},
    {"flops_fp8", offsetof(struct profile, flops_fp8), 1e6, 1e18, OF_BOTH, true},
    {"memory_bandwidth", offsetof(struct profile, memory_bandwidth), 1e6, 1e15, OF_BOTH, false},
    {"cache_bandwidth", offsetof(struct profile, cache_bandwidth), 1e6, 1e16, OF_CPU, false},
    {"cache_bytes", offsetof(struct profile, cache_bytes), 1, 1e12, OF_CPU, false},
    {"copy_bandwidth", offsetof(struct profile, copy_bandwidth), 1e3, 1e15, OF_BOTH, false},
    {"host_bandwidth", offsetof(struct profile, host_bandwidth), 0, 1e15, OF_GPU, true},
    {"launch_seconds", offsetof(struct profile, launch_seconds), 0, 1, OF_BOTH, false},
};
static bool has_ceiling(const struct profile *p, const struct ceiling *c)
{
    return c->of == OF_BOTH || (c->of == OF_CPU) == (p->kind == DEVICE_CPU);
}
enum { EXTENT_MOST = 126 }; /* of 2^63 */
static const char *const classes[CLASS_COUNT] = {"f32", "bf16"};
static const char *const links[] = {"local", "remote"}; /* by enum link_kind */

/* --- writing ---------------------------------------------------------------------- */

static void write_points(struct json_writer *w, const struct curve *c)
{
    json_begin_list(w, "points");
    for (int i = 0; i < c->n; i++) {
        json_begin_list(w, NULL);
        json_put_number(w, NULL, c->at[i].ideal);
        json_put_number(w, NULL, c->at[i].factor);
        json_end(w);
    }
    json_end(w);
}

/* Begins a map that is written on one line, as each curve is. */
static void begin_line(struct json_writer *w)
{
    json_begin_map(w, NULL);
    w->indent = 0;
}

static void end_line(struct json_writer *w)
{
    json_end(w);
    w->indent = 1;
}

static void write_curve(struct json_writer *w, enum op op, int variant, int half, const struct curve *c)
{
    begin_line(w);
    json_put_string(w, "op", op_table[op].name);
    if (*op_variant_name(op, variant)) json_put_string(w, "variant", op_variant_name(op, variant));
    json_put_string(w, "dtype", classes[half]);
    write_points(w, c);
    end_line(w);
}

static void write_class(struct json_writer *w, const struct op_class *x)
{
    begin_line(w);
    json_put_string(w, "op", op_table[x->op].name);
    json_put_string(w, "kernel", x->kernel);
    if (*op_variant_name(x->op, x->variant)) json_put_string(w, "variant", op_variant_name(x->op, x->variant));
    json_put_string(w, "dtype", classes[x->half]);
    json_begin_list(w, "extents");
    for (int i = 0; i < EXTENTS; i++) json_put_int(w, NULL, x->extent[i]);
    json_end(w);
    write_points(w, &x->curve);
    end_line(w);
}

static void write_machine(struct json_writer *w, const struct profile *p, const struct calibration *c)
{
    const bool gpu = p->kind == DEVICE_CUDA;
    json_put_string(w, "device", gpu ? "cuda" : "cpu");
    if (gpu) json_put_string(w, "name", p->name);
    json_put_string(w, gpu ? "gpu" : "cpu", c->cpu);
    json_put_string(w, gpu ? "sm" : "isa", c->isa);
    json_put_string(w, "date", c->date);
    if (!gpu) json_put_int(w, "threads", p->threads);
    json_put_bool(w, "native_bf16", p->native_bf16);
    if (gpu) json_put_uint(w, "memory_bytes", p->memory_bytes);
    if (gpu) json_put_uint(w, "library_workspace", p->library_workspace);
}

static void write_links(struct json_writer *w, const struct profile *p)
{
    if (!p->link[LINK_LOCAL].ranks && !p->link[LINK_REMOTE].ranks) return;
    json_begin_map(w, "links");
    for (size_t i = 0; i < COUNT(links); i++) {
        const struct link *l = &p->link[i];
        if (!l->ranks) continue;
        json_begin_map(w, links[i]);
        json_put_int(w, "ranks", l->ranks);
        json_put_number(w, "latency", l->latency);
        json_put_number(w, "peer", l->peer);
        json_put_number(w, "bandwidth", l->bandwidth);
        json_end(w);
    }
    json_end(w);
}

void profile_write(const struct profile *p, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 1};
    const struct calibration *c = p->measured;
    json_begin_map(&w, NULL);
    json_put_int(&w, "profile_format", 1);
    write_machine(&w, p, c);
    for (size_t i = 0; i < COUNT(ceilings); i++)
        if (has_ceiling(p, &ceilings[i]))
            json_put_number(&w, ceilings[i].name, *(const double *)((const char *)p + ceilings[i].offset));
    write_links(&w, p);
    json_begin_list(&w, "corrections");
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++)
                if (c->curve[op][v][half].n) write_curve(&w, op, v, half, &c->curve[op][v][half]);
    json_end(&w);
    if (p->kind == DEVICE_CUDA) {
        json_begin_list(&w, "classes");
        for (int i = 0; i < c->classes; i++) write_class(&w, &c->class[i]);
        json_end(&w);
    }
    json_end(&w);
    text_printf(out, "\n");
}

/* --- reading ------------------------------------------------------------------------- */

static int read_number(const struct value *v, const char *name, double least, double most, double *out, struct error *e)
{
    int rc = value_as_number(v, name, out, e);
    if (!rc && !(*out >= least && *out <= most))
        rc = error_set(e, PL_USAGE, "%s is %g, expected %g to %g", name, *out, least, most);
    return rc;
}

static int read_name(const struct value *v, const char *key, char *out, size_t room, struct error *e)
{
    const char *s = NULL;
    int rc = value_as_string(value_get(v, key), key, &s, e);
    if (!rc && (!*s || strlen(s) >= room))
        rc = error_set(e, PL_USAGE, "%s is \"%.100s\", expected 1 to %zu bytes", key, s, room - 1);
    if (!rc) snprintf(out, room, "%s", s);
    return rc;
}

static int read_points(const struct value *list, const char *where, struct curve *c, struct error *e)
{
    if (value_as_list(list, where, e)) return e->code;
    if (list->count < 1 || list->count > CURVE_POINTS)
        return error_set(e, PL_USAGE, "%s: %u points, expected 1 to %d", where, list->count, CURVE_POINTS);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct value *pair = value_at(list, i);
        struct curve_point *x = &c->at[i];
        if (value_as_list(pair, where, e)) return e->code;
        if (pair->count != 2)
            return error_set(e, PL_USAGE, "%s: point %u has %u numbers, expected 2", where, i, pair->count);
        if (read_number(value_at(pair, 0), where, 1e-12, 1e6, &x->ideal, e) ||
            read_number(value_at(pair, 1), where, 1e-3, 1e6, &x->factor, e))
            return e->code;
        if (i && !(x->ideal > x[-1].ideal))
            return error_set(e, PL_USAGE, "%s: point %u is not above the previous one", where, i);
    }
    c->n = (int)list->count;
    return PL_OK;
}

static enum op find_op(const char *name)
{
    for (int op = 1; op < OP_COUNT; op++)
        if (!strcmp(op_table[op].name, name)) return op;
    return OP_NONE;
}

static int find_variant(enum op op, const char *name)
{
    for (int v = 0; v < OP_VARIANTS && op_variant_name(op, v); v++)
        if (!strcmp(op_variant_name(op, v), name)) return v;
    return -1;
}

/* Reads the op, variant and dtype of a curve. */
static int read_key(const struct value *v, const char *where, struct op_class *x, struct error *e)
{
    const char *op = NULL, *dtype = NULL, *variant = "";
    int rc = value_as_map(v, where, e);
    if (!rc) rc = value_as_string(value_get(v, "op"), "op", &op, e);
    if (!rc) rc = value_as_string(value_get(v, "dtype"), "dtype", &dtype, e);
    if (!rc && value_get(v, "variant")) rc = value_as_string(value_get(v, "variant"), "variant", &variant, e);
    if (rc) return error_prepend(e, "%s", where);
    enum op found = find_op(op);
    int which = found ? find_variant(found, variant) : -1, half = !strcmp(dtype, classes[CLASS_HALF]);
    if (which < 0) return error_set(e, PL_USAGE, "%s: no op \"%.40s\" with a variant \"%.40s\"", where, op, variant);
    if (!half && strcmp(dtype, classes[CLASS_FULL]))
        return error_set(e, PL_USAGE, "%s: dtype \"%.40s\" is not f32 or bf16", where, dtype);
    x->op = found;
    x->variant = which;
    x->half = half;
    return PL_OK;
}

static int read_correction(const struct value *v, uint32_t i, struct calibration *c, struct error *e)
{
    char where[64];
    struct op_class x = {0};
    snprintf(where, sizeof where, "corrections[%u]", i);
    if (read_key(v, where, &x, e)) return e->code;
    struct curve *curve = &c->curve[x.op][x.variant][x.half];
    if (curve->n) return error_set(e, PL_USAGE, "%s: %s appears twice", where, op_table[x.op].name);
    return read_points(value_get(v, "points"), where, curve, e);
}

static int read_class(const struct value *v, uint32_t i, struct calibration *c, struct error *e)
{
    char where[64];
    struct op_class *x = &c->class[c->classes++];
    snprintf(where, sizeof where, "classes[%u]", i);
    if (read_key(v, where, x, e)) return e->code;
    const struct value *extents = value_get(v, "extents");
    int rc = read_name(v, "kernel", x->kernel, sizeof x->kernel, e);
    if (!rc) rc = value_as_list(extents, "extents", e);
    if (!rc && extents->count != EXTENTS)
        rc = error_set(e, PL_USAGE, "%u extents, expected %d", extents->count, EXTENTS);
    for (uint32_t k = 0; k < EXTENTS && !rc; k++) {
        int64_t at = 0;
        rc = value_as_int(value_at(extents, k), "extents", &at, e);
        if (!rc && (at < 0 || at > EXTENT_MOST))
            rc = error_set(e, PL_USAGE, "an extent of %lld, expected 0 to %d", (long long)at, EXTENT_MOST);
        x->extent[k] = (int)at;
    }
    if (rc) return error_prepend(e, "%s", where);
    return read_points(value_get(v, "points"), where, &x->curve, e);
}

static int read_classes(const struct value *list, struct calibration *c, struct error *e)
{
    int rc = value_as_list(list, "classes", e);
    if (!rc && list->count > CLASSES_MOST)
        rc = error_set(e, PL_USAGE, "classes has %u entries, expected %d at most", list->count, CLASSES_MOST);
    for (uint32_t i = 0; !rc && i < list->count; i++) rc = read_class(value_at(list, i), i, c, e);
    if (rc) return rc;
    calibration_sort(c);
    for (int i = 1; i < c->classes; i++)
        if (!class_order(&c->class[i - 1], &c->class[i]))
            return error_set(e, PL_USAGE, "classes: a class of %s with kernel %s appears twice",
                             op_table[c->class[i].op].name, c->class[i].kernel);
    return PL_OK;
}

static int read_bytes(const struct value *v, const char *key, uint64_t *out, struct error *e)
{
    int64_t n = 0;
    int rc = value_as_int(value_get(v, key), key, &n, e);
    if (!rc && (n < 0 || n > (int64_t)1 << 50))
        rc = error_set(e, PL_USAGE, "%s is %lld, expected 0 to 2^50", key, (long long)n);
    *out = (uint64_t)n;
    return rc;
}

/* Reads the members for a CPU; read_gpu reads those for a GPU. */
static int read_cpu(const struct value *v, struct profile *p, struct calibration *c, struct error *e)
{
    int64_t threads = 0;
    bool library = false;
    int rc = read_name(v, "cpu", c->cpu, sizeof c->cpu, e);
    if (!rc) rc = read_name(v, "isa", c->isa, sizeof c->isa, e);
    if (!rc) rc = value_as_int(value_get(v, "threads"), "threads", &threads, e);
    if (!rc && (threads < 1 || threads > 4096))
        rc = error_set(e, PL_USAGE, "threads is %lld, expected 1 to 4096", (long long)threads);
    p->threads = (int)threads;
    /* oneDNN's workspaces depend on build and processor, so the plan would not follow from the
     * profile. */
    if (!rc) rc = value_opt_bool(v, "onednn", &library, e);
    if (!rc && library) rc = error_set(e, PL_USAGE, "onednn is true: runs do not use oneDNN");
    return rc;
}

static int read_gpu(const struct value *v, struct profile *p, struct calibration *c, struct error *e)
{
    int rc = read_name(v, "name", p->name, sizeof p->name, e);
    if (!rc) rc = read_name(v, "gpu", c->cpu, sizeof c->cpu, e);
    if (!rc) rc = read_name(v, "sm", c->isa, sizeof c->isa, e);
    if (!rc && (sscanf(c->isa, "sm_%3d", &p->capability) != 1 || p->capability < 10))
        rc = error_set(e, PL_USAGE, "sm is \"%s\", expected a name such as sm_90", c->isa);
    if (!rc) rc = read_bytes(v, "memory_bytes", &p->memory_bytes, e);
    p->threads = 1;
    return rc ? rc : read_bytes(v, "library_workspace", &p->library_workspace, e);
}

static int read_link(const struct value *v, struct link *l, struct error *e)
{
    int64_t ranks = 0;
    int rc = value_as_map(v, "a link", e);
    if (!rc) rc = value_as_int(value_get(v, "ranks"), "ranks", &ranks, e);
    if (!rc && (ranks < 2 || ranks > 65536))
        rc = error_set(e, PL_USAGE, "ranks is %lld, expected 2 to 65536", (long long)ranks);
    if (!rc) rc = read_number(value_get(v, "latency"), "latency", 0, 10, &l->latency, e);
    if (!rc) rc = read_number(value_get(v, "peer"), "peer", 0, 10, &l->peer, e);
    if (!rc) rc = read_number(value_get(v, "bandwidth"), "bandwidth", 1e3, 1e15, &l->bandwidth, e);
    l->ranks = (int)ranks;
    snprintf(l->name, sizeof l->name, "measured");
    return rc;
}

/* Reads the links, which are optional. */
static int read_links(const struct value *v, struct profile *p, struct error *e)
{
    int rc = v ? value_as_map(v, "links", e) : PL_OK;
    for (size_t i = 0; i < COUNT(links) && v && !rc; i++)
        if (value_get(v, links[i]) && (rc = read_link(value_get(v, links[i]), &p->link[i], e)))
            error_prepend(e, "links.%s", links[i]);
    return rc;
}

static int read_ceiling(const struct value *v, const struct ceiling *c, struct profile *p, struct error *e)
{
    double *to = (double *)((char *)p + c->offset);
    if (c->optional && !value_get(v, c->name)) return PL_OK;
    return read_number(value_get(v, c->name), c->name, c->least, c->most, to, e);
}

static int read_profile(const struct value *v, struct profile *p, struct calibration *c, struct error *e)
{
    int64_t format = 0;
    char device[16] = "";
    const struct value *list = value_get(v, "corrections");
    int rc = value_as_int(value_get(v, "profile_format"), "profile_format", &format, e);
    if (!rc && format != 1) rc = error_set(e, PL_USAGE, "profile_format %lld is not 1", (long long)format);
    if (!rc) rc = read_name(v, "device", device, sizeof device, e);
    p->kind = strcmp(device, "cuda") ? DEVICE_CPU : DEVICE_CUDA;
    if (!rc && p->kind == DEVICE_CPU && strcmp(device, "cpu"))
        rc = error_set(e, PL_USAGE, "device is \"%s\", expected cpu or cuda", device);
    if (!rc) rc = p->kind == DEVICE_CUDA ? read_gpu(v, p, c, e) : read_cpu(v, p, c, e);
    if (!rc) rc = read_name(v, "date", c->date, sizeof c->date, e);
    if (!rc) rc = value_as_bool(value_get(v, "native_bf16"), "native_bf16", &p->native_bf16, e);
    for (size_t i = 0; i < COUNT(ceilings) && !rc; i++)
        if (has_ceiling(p, &ceilings[i])) rc = read_ceiling(v, &ceilings[i], p, e);
    if (!p->flops_fp8) p->flops_fp8 = p->flops_bf16;
    if (!rc) rc = read_links(value_get(v, "links"), p, e);
    if (!rc) rc = value_as_list(list, "corrections", e);
    for (uint32_t i = 0; !rc && i < list->count; i++) rc = read_correction(value_at(list, i), i, c, e);
    if (!rc && p->kind == DEVICE_CUDA) rc = read_classes(value_get(v, "classes"), c, e);
    if (rc) return rc;
    p->measured = c;
    profile_onednn(p, false);
    return PL_OK;
}

int profile_parse(const char *bytes, size_t n, struct profile *p, struct calibration *c, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    memset(p, 0, sizeof *p);
    memset(c, 0, sizeof *c);
    int rc = json_parse(bytes, n, &b, &v, e);
    if (!rc) rc = value_as_map(v, "the profile", e);
    if (!rc) rc = read_profile(v, p, c, e);
    bump_free(&b);
    return rc;
}

int profile_read(const char *path, struct profile *p, struct calibration *c, struct error *e)
{
    char *bytes;
    size_t n;
    TRY(file_read(path, PROFILE_BYTES_MOST, &bytes, &n, e));
    int rc = profile_parse(bytes, n, p, c, e);
    mem_free(bytes);
    if (!rc) return PL_OK;
    char text[sizeof e->text];
    snprintf(text, sizeof text, "%s", e->text);
    return error_set(
        e, rc,
        "%s is not a valid profile: %.1500s; run plimsoll bench --calibrate again, or set device.profile: default",
        path, text);
}

/* --- paths -------------------------------------------------------------------------------- */

/* Prints the path of profile `name` in the data folder. */
static bool data_file_path(const char *name, char *out, size_t room)
{
    char file[224];
    return snprintf(file, sizeof file, "%s.json", name) < (int)sizeof file && data_path(file, out, room);
}

bool profile_path(int threads, char *out, size_t room)
{
    struct cpu_identity cpu;
    char name[192], hidden[64];
    cpu_identity(&cpu);
    for (char *c = cpu.name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.') *c = '-';
    /* hidden processor features change times */
    snprintf(name, sizeof name, "%s-%d%s", cpu.name, threads, cpu_hidden_print("-no-", hidden));
    return data_file_path(name, out, room);
}

bool profile_gpu_path(const char *name, char *out, size_t room) { return data_file_path(name, out, room); }

/* --- the links between ranks that parallel.links names: built-in ones, the profile's own, or those
 * of a file ------------------------------------------------------------------------------------ */

/* Published rates in GB/s, one direction, of one GPU or one port. */
static const struct {
    const char *name;
    double rate, latency, peer;
} known[] = {
    {"nvlink4", 450, 10e-6, 1e-6},    {"nvlink3", 300, 10e-6, 1e-6},    {"pcie5", 63, 15e-6, 2e-6},
    {"pcie4", 31.5, 15e-6, 2e-6},     {"ib-ndr", 50, 15e-6, 2e-6},      {"ib-hdr", 25, 15e-6, 2e-6},
    {"eth-100g", 12.5, 40e-6, 10e-6}, {"eth-25g", 3.125, 40e-6, 10e-6}, {"eth-10g", 1.25, 50e-6, 10e-6},
    {"eth-1g", 0.125, 80e-6, 20e-6},  {"shm", 5, 10e-6, 5e-6},
};

static bool is_file(const char *name) { return strchr(name, '/') || text_ends_with(name, ".json"); }

static int unknown_link(const char *name, struct error *e)
{
    struct text names = {0};
    for (size_t i = 0; i < COUNT(known); i++) text_printf(&names, "%s, ", known[i].name);
    error_set(e, PL_USAGE,
              "parallel.links: found \"%.60s\"; known links are %smeasured (those of the profile) or the file of a "
              "profile; two are those within a host and between hosts, such as nvlink4,ib-ndr",
              name, names.at);
    text_free(&names);
    return e->code;
}

/* Reads the link of a profile's file. */
static int link_of_file(struct link *to, enum link_kind which, const char *path, struct error *e)
{
    struct profile p;
    struct calibration *c = mem_alloc(sizeof *c);
    int rc = profile_read(path, &p, c, e);
    if (!rc) *to = p.link[which];
    mem_free(c);
    return rc ? error_prepend(e, "parallel.links") : PL_OK;
}

static int take(struct profile *p, enum link_kind which, const char *name, struct error *e)
{
    static const char *const what[] = {"ranks of one host", "hosts"};
    struct link *to = &p->link[which];
    const bool file = is_file(name);
    if (file && link_of_file(to, which, name, e)) return e->code;
    if (file || !strcmp(name, "measured"))
        return to->ranks ? PL_OK
                         : error_set(e, PL_USAGE,
                                     "parallel.links: %s has no measured link between %s; mpirun -np N plimsoll bench "
                                     "--calibrate measures it",
                                     file ? name : "the profile", what[which]);
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcmp(known[i].name, name)) {
            *to = (struct link){.latency = known[i].latency, .peer = known[i].peer, .bandwidth = 0.8e9 * known[i].rate};
            snprintf(to->name, sizeof to->name, "%s", name);
            return PL_OK;
        }
    return unknown_link(name, e);
}

int links_set(struct profile *p, const char *names, int per_host, struct error *e)
{
    char list[4200], *at = list;
    const char *standard[] = {p->kind == DEVICE_CUDA ? "pcie4" : "shm", "eth-10g"};
    snprintf(list, sizeof list, "%s", names ? names : "");
    p->per_host = per_host;
    for (int which = LINK_LOCAL; which <= LINK_REMOTE; which++) {
        const char *name = strsep(&at, ",");
        if (which == LINK_REMOTE && !name && per_host && is_file(list)) name = list; /* a file has both */
        if (name && *name) {
            if (take(p, which, name, e)) return e->code;
        } else if (!(p->link[which].bandwidth > 0) && take(p, which, standard[which], e)) {
            return e->code;
        }
    }
    return at ? error_set(e, PL_USAGE,
                          "parallel.links: found \"%.60s\"; expected one link, or two: within a host and between hosts",
                          names)
              : PL_OK;
}
