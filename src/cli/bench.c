/*
 * bench.c: `plimsoll bench`: the measured time of a training step, the predicted time, and the
 * time of each op. Needs no data and writes no files but the offload file of a plan that has one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/file.h"
#include "io/json.h"
#include "calibrate/bench.h"
#include "calibrate/calibrate.h"
#include "calibrate/calibrate_gpu.h"
#include "cost/profile.h"
#include "dist/dist.h"
#include "feed/feed.h"

enum { OPS_SHOWN = 16, CLASSES_SHOWN = 12, KERNELS_LISTED = 40 };

static const double GIB = 1 << 30;

/* The arena at its peak, split into four classes; `rest` includes the padding. */
struct breakdown {
    uint64_t weights, gradients, optimizer, rest;
};

static struct breakdown arena_breakdown(const struct plan *p)
{
    const uint64_t *k = p->peak.by_kind;
    struct breakdown x = {k[KIND_PARAM] + k[KIND_MASTER], k[KIND_GRAD], k[KIND_STATE], 0};
    x.rest = plan_arena(p) - x.weights - x.gradients - x.optimizer;
    return x;
}

static void print_row(struct text *out, const char *name, uint64_t bytes, uint64_t whole)
{
    char size[32];
    text_printf(out, "  %-22s %12s  %5.1f %%\n", name, size_print(bytes, size), 100.0 * (double)bytes / (double)whole);
}

static void print_ops(const struct bench *b, struct text *out)
{
    struct bench_op ops[2 * OP_COUNT];
    uint32_t n = bench_ops(b, ops);
    if (!n) return;
    text_printf(out, "Time by op, in %s\n  %-20s %-5s %7s %10s %10s %9s %8s %8s\n",
                bench_replays(b) ? "one more step, node by node" : "the fastest step", "op", "", "calls", "ms", "predicted", "GFLOP/s", "GiB/s", "ceiling");
    for (uint32_t i = 0; i < n && i < OPS_SHOWN; i++) {
        const struct bench_op *x = &ops[i];
        text_printf(out, "  %-20s %-5s %7" PRIu64 " %10.3f %10.3f %9.1f %8.2f %6.0f %%\n", op_table[x->op].name, dtype_name(x->dtype), x->calls,
                    1e3 * x->seconds, 1e3 * x->predicted, 1e-9 * x->flops / x->seconds, x->bytes / x->seconds / GIB, 100 * x->ideal / x->seconds);
    }
    double rest = 0, predicted = 0;
    for (uint32_t i = OPS_SHOWN; i < n; i++) rest += ops[i].seconds, predicted += ops[i].predicted;
    if (n > OPS_SHOWN) text_printf(out, "  %-34s %10.3f %10.3f\n", "others", 1e3 * rest, 1e3 * predicted);
}

/* "4096 x 4096 x 80": the extents of a class of launches, rounded by a factor of up to 1.2. */
static const char *print_extents(const struct op_class *x, char out[64])
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < EXTENTS && x->extent[i]; i++) n += (size_t)snprintf(out + n, 64 - n, "%s%.0f", i ? " x " : "", exp2(x->extent[i] / 2.));
    return out;
}

/* On a GPU: the kernels with the largest prediction errors, by the error's seconds per step. */
static void print_errors(const struct bench *b, struct text *out)
{
    struct bench_class *all;
    char extents[64];
    double seconds = 0, predicted = 0;
    uint32_t n = bench_classes(b, &all);
    for (uint32_t i = 0; i < n; i++) seconds += all[i].seconds, predicted += all[i].predicted;
    text_printf(out, "Largest prediction errors, timed node by node\n  %-28s %-24s %7s %10s %10s %10s\n", "kernel", "extents, about", "calls", "ms", "predicted", "error");
    for (uint32_t i = 0; i < n && i < CLASSES_SHOWN; i++) {
        const struct bench_class *x = &all[i];
        const char *variant = op_variant_name(x->of.op, x->of.variant);
        text_printf(out, "  %-28.28s %-6s %-17s %7" PRIu64 " %10.3f %10.3f %+10.3f\n", x->of.kernel, variant ? variant : "", print_extents(&x->of, extents), x->calls,
                    1e3 * x->seconds, 1e3 * x->predicted, 1e3 * (x->predicted - x->seconds));
    }
    text_printf(out, "  %-61s %10.3f %10.3f %+10.3f\n", "all", 1e3 * seconds, 1e3 * predicted, 1e3 * (predicted - seconds));
    mem_free(all);
}

static void print_text(const struct bench *b, struct text *out)
{
    const struct plan *p = &b->run.plan;
    struct breakdown x = arena_breakdown(p);
    char a[32], predicted[32], measured[32], median[32];
    uint64_t arena = plan_arena(p);
    double mean = bench_mean(b);
    text_printf(out, "Step of %d samples: micro-batch %d x %d, ", b->run.effective_batch, p->settings.micro_batch, p->settings.accumulation);
    settings_print(&p->settings, out);
    text_printf(out, ", %d threads\n", b->run.device.profile.threads);
    text_printf(out, "  predicted  %s\n  measured   %s mean, %s median of %u\n  measured / predicted  %.3f\n", duration_print(p->seconds, predicted),
                duration_print(mean, measured), duration_print(bench_median(b), median), b->steps, mean / p->seconds);
    text_printf(out, "Memory\n");
    print_row(out, "weights", x.weights, arena);
    print_row(out, "gradients", x.gradients, arena);
    print_row(out, "optimizer", x.optimizer, arena);
    print_row(out, "activations and rest", x.rest, arena);
    text_printf(out, "  %-22s %12s  (%" PRIu64 " bytes)\n", "arena", size_print(arena, a), arena);
    if (p->placement.arena[SPACE_HOST])
        text_printf(out, "  %-22s %12s\n", plan_host_name(p), size_print(p->placement.arena[SPACE_HOST], a));
    if (b->device_total) text_printf(out, "  %-22s %12s\n", "GPU memory used", size_print(b->device_used, a));
    if (b->run.device.outside_bytes) text_printf(out, "  %-22s %12s\n", "NCCL's own", size_print(b->run.device.outside_bytes, a));
    text_printf(out, "  %-22s %12s\n", "peak resident", size_print(bench_peak_resident(), a));
    print_ops(b, out);
    if (bench_replays(b)) print_errors(b, out);
}

static void put_ops(const struct bench *b, struct json_writer *w)
{
    struct bench_op ops[2 * OP_COUNT];
    uint32_t n = bench_ops(b, ops);
    json_begin_list(w, "ops");
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_op *x = &ops[i];
        json_begin_map(w, NULL);
        json_put_string(w, "op", op_table[x->op].name);
        json_put_string(w, "dtype", dtype_name(x->dtype));
        json_put_uint(w, "calls", x->calls);
        json_put_number(w, "seconds", x->seconds);
        json_put_number(w, "predicted_seconds", x->predicted);
        json_put_number(w, "gflop_per_second", 1e-9 * x->flops / x->seconds);
        json_put_number(w, "gb_per_second", 1e-9 * x->bytes / x->seconds);
        json_put_number(w, "share_of_ceiling", x->ideal / x->seconds);
        json_end(w);
    }
    json_end(w);
}

static void put_classes(const struct bench *b, struct json_writer *w)
{
    struct bench_class *all;
    uint32_t n = bench_classes(b, &all);
    json_begin_list(w, "classes");
    for (uint32_t i = 0; i < n; i++) {
        char extents[64];
        json_begin_map(w, NULL);
        json_put_string(w, "kernel", all[i].of.kernel);
        json_put_string(w, "extents", print_extents(&all[i].of, extents));
        json_put_uint(w, "calls", all[i].calls);
        json_put_number(w, "seconds", all[i].seconds);
        json_put_number(w, "predicted_seconds", all[i].predicted);
        json_end(w);
    }
    json_end(w);
    mem_free(all);
}

/* "4x4096x1280" */
static void put_shape(struct json_writer *w, const char *key, const struct tensor *t)
{
    char shape[160] = "";
    int at = 0;
    for (int i = 0; t && i < t->rank; i++) at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRId64, i ? "x" : "", t->dim[i]);
    json_put_string(w, key, shape);
}

static void put_kernels(const struct bench *b, struct json_writer *w)
{
    struct bench_kernel lines[KERNELS_LISTED];
    uint32_t n = bench_kernels(b, lines, KERNELS_LISTED);
    json_begin_list(w, "kernels");
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_kernel *x = &lines[i];
        json_begin_map(w, NULL);
        json_put_string(w, "op", op_table[x->op].name);
        json_put_string(w, "kernel", x->kernel ? x->kernel->name : "");
        put_shape(w, "in", x->in);
        put_shape(w, "out", x->out);
        json_put_string(w, "dtype", x->in ? dtype_name(x->in->dtype) : "");
        json_put_uint(w, "calls", x->calls);
        json_put_number(w, "seconds", x->seconds);
        json_put_number(w, "ideal_seconds", x->ideal);
        json_put_number(w, "flops", x->flops);
        json_put_number(w, "bytes", x->bytes);
        json_end(w);
    }
    json_end(w);
}

static void print_json(const struct bench *b, struct text *out)
{
    const struct plan *p = &b->run.plan;
    struct breakdown x = arena_breakdown(p);
    struct json_writer w = {.out = out, .indent = 2};
    double mean = bench_mean(b);
    json_begin_map(&w, NULL);
    json_put_uint(&w, "steps", b->steps);
    json_put_number(&w, "predicted_step_seconds", p->seconds);
    json_put_number(&w, "measured_mean_seconds", mean);
    json_put_number(&w, "measured_median_seconds", bench_median(b));
    json_put_number(&w, "ratio", mean / p->seconds);
    json_put_number(&w, "samples_per_second", b->run.effective_batch / mean);
    plan_put_settings(&w, &p->settings, b->run.effective_batch);
    json_put_int(&w, "threads", b->run.device.profile.threads);
    json_put_uint(&w, "arena_bytes", plan_arena(p));
    json_put_uint(&w, "host_arena_bytes", p->placement.arena[SPACE_HOST]);
    json_begin_map(&w, "breakdown");
    json_put_uint(&w, "weights", x.weights);
    json_put_uint(&w, "gradients", x.gradients);
    json_put_uint(&w, "optimizer", x.optimizer);
    json_put_uint(&w, "activations_and_rest", x.rest);
    json_end(&w);
    json_put_uint(&w, "peak_resident_bytes", bench_peak_resident());
    if (b->device_total) {
        json_put_uint(&w, "device_used_bytes", b->device_used);
        json_put_uint(&w, "outside_bytes", b->run.device.outside_bytes);
        json_put_uint(&w, "device_total_bytes", b->device_total);
    }
    put_ops(b, &w);
    if (bench_replays(b)) put_classes(b, &w);
    put_kernels(b, &w);
    json_end(&w);
    text_printf(out, "\n");
}

static int bench_model(const struct options *o, struct error *e)
{
    struct config c;
    struct bench b = {0};
    struct text out = {0};
    int64_t steps = 5;
    int rc = options_count("--steps", o->steps, 1, BENCH_STEPS_MOST, &steps, e);
    if (!rc) rc = options_config(o, &c, e);
    if (rc) return rc;
    rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    struct ranks *alone = rc ? NULL : dist_open(e); /* with PLIMSOLL_RANKS=1: the motions of several ranks */
    if (!rc) rc = e->code;
    if (!rc) {
        rc = bench_open(&b, &c, &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .ranks = alone}, e);
        if (!rc) rc = bench_run_shown(&b, steps, e);
        if (!rc) rc = bench_time_nodes(&b, e);
        if (!rc) {
            if (o->json) print_json(&b, &out);
            else print_text(&b, &out);
            fputs(out.at, stdout);
            text_free(&out);
        }
        bench_close(&b);
    }
    dist_close(alone);
    config_free(&c);
    return rc;
}

static void print_gpu(const struct profile *p, const char *path)
{
    const struct calibration *c = p->measured;
    printf("%s, %s, %s\n  copies          %8.1f GiB/s\n  launch          %8.2f us\n  classes         %8d\n", c->cpu, c->isa, c->date, p->copy_bandwidth / GIB,
           1e6 * p->launch_seconds, c->classes);
    printf("profile written to %s\n", path);
}

static void print_profile(const struct profile *p, const char *path)
{
    const struct calibration *c = p->measured;
    int curves = 0;
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) curves += c->curve[op][v][half].n > 0;
    printf("%s, %s, %d threads, %s\n", c->cpu, c->isa, p->threads, c->date);
    printf("  multiply-adds   %8.1f GFLOP/s in f32, %.1f in bf16\n", 1e-9 * p->flops_f32, 1e-9 * p->flops_bf16);
    printf("  bytes           %8.1f GiB/s from memory, %.1f from caches\n", p->memory_bandwidth / GIB, p->cache_bandwidth / GIB);
    printf("  offload         %8.1f GiB/s\n  launch          %8.2f us\n  ops corrected   %8d\n", p->copy_bandwidth / GIB, 1e6 * p->launch_seconds, curves);
    printf("profile written to %s\n", path);
}

/* The path of the profile: -o, or else `stored`, which is "" when no default path is known. Creates
 * its folder. */
static int output_path(const struct options *o, const char *stored, char *path, size_t room, struct error *e)
{
    char dir[4200];
    if (o->output) return snprintf(path, room, "%s", o->output) < (int)room ? PL_OK : error_set(e, PL_USAGE, "-o: the path is too long");
    if (!stored[0]) return error_set(e, PL_USAGE, "neither XDG_DATA_HOME nor HOME is set, so the profile has no default path; give -o FILE");
    snprintf(path, room, "%s", stored);
    int rc = path_dir(path, dir, sizeof dir, e);
    return rc ? rc : dir_make(dir, e);
}

/* With --calibrate, --set accepts only the device to measure. */
static int calibrated_device(const struct options *o, bool *gpu, struct error *e)
{
    struct config c;
    *gpu = false;
    if (o->n_from) return error_set(e, PL_USAGE, "--calibrate measures this machine and takes no --config-from");
    for (int i = 0; i < o->n_set; i++)
        if (strncmp(o->set[i], "device=", 7) && strncmp(o->set[i], "device.kind=", 12))
            return error_set(e, PL_USAGE, "--calibrate accepts only --set device=cuda, -o and --threads, not --set %s", o->set[i]);
    int rc = options_config(o, &c, e);
    if (rc) return rc;
    *gpu = c.device_kind == ON_CUDA;
    config_free(&c);
    return *gpu && o->threads ? error_set(e, PL_USAGE, "--threads is for the CPU, not for a GPU") : PL_OK;
}

static int calibrate_machine(const struct options *o, struct error *e)
{
    struct profile p;
    struct calibration *c = mem_alloc(sizeof *c);
    struct text out = {0};
    char path[4200], stored[4200] = "";
    int64_t threads = 0;
    bool gpu = false;
    int rc = options_count("--threads", o->threads, 1, 4096, &threads, e);
    if (!rc && (o->run || o->memory || o->plan || o->steps || o->json))
        rc = error_set(e, PL_USAGE, "--calibrate accepts only --set device=cuda, -o and --threads");
    if (!rc) rc = calibrated_device(o, &gpu, e);
    if (!rc && !gpu) {
        profile_default(&p, DEVICE_CPU, (int)threads);
        if (!profile_path(p.threads, stored, sizeof stored)) stored[0] = '\0';
        rc = output_path(o, stored, path, sizeof path, e);
    }
    if (!rc) rc = gpu ? calibrate_gpu(&p, c, e) : calibrate(&p, c, (int)threads, e);
    if (!rc && gpu) { /* the measurement found the GPU's name, which is part of the path */
        if (!profile_gpu_path(p.name, stored, sizeof stored)) stored[0] = '\0';
        rc = output_path(o, stored, path, sizeof path, e);
    }
    if (!rc) {
        profile_write(&p, &out);
        rc = file_write_atomic(path, out.at, out.n, e);
        text_free(&out);
    }
    if (!rc) (gpu ? print_gpu : print_profile)(&p, path);
    mem_free(c);
    return rc;
}

static int bench(int argc, char **argv, struct error *e)
{
    struct options o;
    int rc = options_parse(&o, OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS | OPT_CALIBRATE | OPT_OUTPUT | OPT_THREADS, argc, argv, e);
    if (rc) return rc;
    if (o.help) print_help(&command_bench);
    else if (o.calibrate) rc = calibrate_machine(&o, e);
    else if (o.output || o.threads) rc = error_set(e, PL_USAGE, "-o and --threads need --calibrate; `--set device.threads=N` sets the threads of a step");
    else rc = bench_model(&o, e);
    options_free(&o);
    return rc;
}

const struct command command_bench = {
    "bench", "bench RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] [--set key=value]... [--json]\n"
    "       plimsoll bench --calibrate [--set device=cuda] [-o PROFILE.json] [--threads N]",
    "Runs training steps on synthetic inputs and prints the predicted and the measured time, the memory, and the time of each op.\n"
    "Needs no data and writes no files, except the offload file of a CPU's plan that offloads; it is gone when bench ends.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps to measure (5)\n"
    "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in RUN.yaml: adapter.path\n"
    "  --calibrate      measures the peak rates and the ops of this machine, or of its GPU with --set device=cuda, and stores the\n"
    "                   profile from which plans predict times; takes about a minute and 2 GiB of memory\n"
    "  -o PROFILE.json  with --calibrate: the file for the profile, instead of the default path\n"
    "  --threads N      with --calibrate: CPU threads to measure with", bench};
