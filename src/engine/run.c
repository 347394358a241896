/*
 * run.c: a planned run starts, takes batches and runs programs (see run.h).
 */
#include "engine/run.h"

#include <unistd.h>

#include "dist/agree.h"
#include "adapter/adapter_folder.h"
#include "io/file.h"
#include "run/ranks.h"

/* Bytes through which a GPU gets its weights. */
enum { LOAD_BUFFER = 16 << 20 };

int run_plan(struct run *r, const struct config *c, const struct run_options *o, struct error *e)
{
    memset(r, 0, sizeof *r);
    return planned_open(&r->planned, c, o, e);
}

/* --- starting -------------------------------------------------------------------------- */

static void *staging_named(const struct run *r, const char *name)
{
    for (id s = 1; s < r->planned.graph.storages.n; s++) {
        const struct storage *x = &r->planned.graph.storages.at[s];
        if (x->kind == KIND_STAGING && !strcmp(graph_name(&r->planned.graph, x->name), name))
            return r->device.arena[x->space] + r->planned.plan.placement.offset[s];
    }
    return NULL;
}

void *run_staging(const struct run *r) { return staging_named(r, "staging"); }
void *run_loader_memory(const struct run *r) { return staging_named(r, "loader"); }
void *run_tickets(const struct run *r) { return staging_named(r, "tickets"); }

/* Fills the input "samples", if the graph has it: each row's index in the step's batch, whichever
 * rank has it. It never changes, so it is written once; padding rows are numbered on. */
static int put_samples(struct run *r, struct error *e)
{
    const struct graph *g = &r->planned.graph;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!planned_input_used(&r->planned, &(struct planned_input){.storage = s}) || x->kind != KIND_INPUT ||
            strcmp(graph_name(g, x->name), "samples"))
            continue;
        uint64_t n = x->bytes / sizeof(int32_t);
        int32_t *indices = mem_alloc(x->bytes);
        const uint64_t rows = (uint64_t)planned_share_rows(&r->planned);
        for (uint64_t i = 0; i < n; i++)
            indices[i] = (int32_t)(((uint64_t)planned_first_share(&r->planned) + i / rows) *
                                       (uint64_t)planned_share_samples(&r->planned) +
                                   i % rows);
        int rc = r->device.ops->write(&r->device, r->device.arena[x->space] + r->planned.plan.placement.offset[s],
                                      indices, x->bytes, e);
        mem_free(indices);
        return rc;
    }
    return PL_OK;
}

/* Returns PL_USAGE if the plan has an op without a kernel on its device. */
static int refuse_missing(const struct run *r, struct error *e)
{
    struct text missing = {0};
    plan_print_missing(&r->planned.plan, &missing);
    int rc =
        missing.n
            ? error_set(e, PL_USAGE, "device %s has no kernel for %s of these sizes: the plan cannot run; set a "
                        "smaller memory.micro_batch or more memory.head_chunks, or leave them to the planner",
                        r->planned.profile.name, missing.at) : PL_OK;
    text_free(&missing);
    return rc;
}

/* Chooses the folder of the offload file: as the file has no name, the nearest existing folder
 * above the run's serves as well. */
static int choose_spill(struct run *r, const char *spill, struct error *e)
{
    r->device.no_file = r->planned.no_files;
    if (r->device.kind == DEVICE_CUDA || !r->planned.plan.placement.arena[SPACE_HOST]) return PL_OK;
    return folder_above(spill ? spill : offload_folder(r->planned.config->train_out), r->device.spill,
                        sizeof r->device.spill, e);
}

static int open_weights(struct run *r, struct error *e)
{
    struct text config = {0};
    struct bump names = {0};
    if (!r->planned.has_adapter) return weights_open(&r->weights, &r->planned.model, &r->planned.graph, NULL, e);
    if (!r->planned.config->adapter_path) {
        const char *const *modules;
        const uint32_t n = lora_targets(&r->planned.graph, &names, &modules);
        const char **spelled = bump_alloc(&names, (n + 1) * sizeof *spelled);
        for (uint32_t i = 0; i < n; i++) {
            char name[512];
            spelled[i] = bump_string(&names, spelling_apply(r->planned.adapter.spellings, r->planned.adapter.spelled,
                                                            modules[i], name, sizeof name));
        }
        r->planned.adapter.fan_in_fan_out = lora_transposed(&r->planned.graph);
        adapter_config_write(&r->planned.adapter, r->planned.model.path, spelled, n, &config);
    }
    const struct weights_adapter a = {r->planned.config->adapter_path, config.at, adapter_folder_convert};
    int rc = weights_open(&r->weights, &r->planned.model, &r->planned.graph, &a, e);
    text_free(&config);
    bump_free(&names);
    return rc;
}

/* Loads the weights. The staging buffer of the arena is small, because it stays for the whole
 * run: a GPU gets its weights through a larger one, in few copies, which is freed before the
 * first step. */
static int load_weights(struct run *r, struct error *e)
{
    const bool separate = device_traits(r->device.kind).separate_memory;
    void *buffer = separate ? mem_alloc(LOAD_BUFFER) : run_staging(r);
    int rc = weights_load(&r->weights, &r->planned.graph, &r->device, &r->tape, buffer,
                          separate ? LOAD_BUFFER : PLAN_STAGING, (uint64_t)r->planned.config->train_seed, e);
    if (separate) mem_free(buffer);
    return rc;
}

static int open_memory(struct run *r, const char *spill, struct error *e)
{
    TRY(refuse_missing(r, e));
    TRY(planned_check_room(&r->planned, e));
    TRY(open_weights(r, e));
    r->has_weights = true;
    TRY(device_open(&r->device, r->planned.profile.kind, r->planned.profile.threads, e));
    r->device.profile = r->planned.profile;
    r->has_device = true;
    r->device.ranks = r->planned.ranks;
    r->device.deterministic = r->planned.config->device_deterministic;
    TRY(choose_spill(r, spill, e));
    return device_allocate(&r->device, r->planned.plan.placement.arena, e);
}

int run_start(struct run *r, const char *spill, bool load, struct error *e)
{
    int rc = open_memory(r, spill, e);
    if ((rc = agree_on(r->planned.ranks, rc, e))) return rc; /* no rank waits for one that has no memory */
    tape_build(&r->tape, &r->planned.graph, &r->planned.plan.placement, r->device.arena, r->device.profile.threads,
               r->device.ranks);
    r->has_tape = true;
    if ((rc = r->device.ops->record(&r->device, &r->tape, e))) return rc;
    r->tape.poison = getenv("PLIMSOLL_POISON") != NULL && r->device.kind != DEVICE_CUDA;
    r->tape.nodes = getenv("PLIMSOLL_NODES") != NULL;
    r->whole = getenv("PLIMSOLL_WHOLE") != NULL;
    trips_start(r);
    if ((rc = put_samples(r, e))) return rc;
    if (!load) return PL_OK;
    return load_weights(r, e);
}

void run_close(struct run *r)
{
    if (r->has_weights) weights_close(&r->weights);
    if (r->has_device) device_close(&r->device, r->has_tape ? &r->tape : NULL);
    if (r->has_tape) tape_free(&r->tape);
    bump_free(&r->memory);
    planned_close(&r->planned);
}

/* --- the host's side of a step ------------------------------------------------------------ */

int run_put_step(struct run *r, const struct step_block *b, struct error *e)
{
    return r->device.ops->write(&r->device, tape_address(&r->tape, r->planned.graph.step), b, sizeof *b, e);
}

int run_get_step(struct run *r, struct step_block *b, struct error *e)
{
    return r->device.ops->read(&r->device, b, tape_address(&r->tape, r->planned.graph.step), sizeof *b, e);
}

int run_failed(struct run *r, enum program p, const struct error *e)
{
    const bool meets = program_is(p, PROGRAM_TRAINS) || p == PROGRAM_UPDATE || settings_meet(&r->planned.plan.settings);
    if (meets && r->planned.ranks && r->planned.ranks->n > 1)
        r->planned.ranks->abort(r->planned.ranks, e->code, e->text);
    return e->code;
}

int run_program(struct run *r, enum program p, struct error *e)
{
    trips_set(r, p);
    return r->device.ops->run(&r->device, &r->tape, p, e) ? run_failed(r, p, e) : PL_OK;
}

id run_clip(const struct run *r)
{
    id found = graph_find_output(&r->planned.graph, PROGRAM_UPDATE, "clip");
    return found ? found : graph_find_output(&r->planned.graph, PROGRAM_STEP, "clip");
}

int run_read(struct run *r, id tensor, void *to, struct error *e)
{
    return run_read_first(r, tensor, tensor_bytes(tensor_at(&r->planned.graph, tensor)), to, e);
}

int run_read_first(struct run *r, id tensor, uint64_t bytes, void *to, struct error *e)
{
    return r->device.ops->read(&r->device, to, tape_address(&r->tape, tensor), bytes, e);
}

/* --- prefetching a batch ------------------------------------------------------------------- */

bool run_can_prefetch(const struct run *r) { return r->device.ops->write_later && staging_named(r, "next"); }

/* Waits until the previous batch has left the staging buffer, which usually is long done. */
int run_prefetch_begin(struct run *r, struct error *e)
{
    int rc = r->device.ops->synchronize_writes(&r->device, e);
    r->prefetching = !rc;
    r->prefetched = false;
    return rc;
}

void run_prefetch_end(struct run *r, bool ready)
{
    r->prefetching = false;
    r->prefetched = ready;
}

/* Copies through the staging buffer, in which the inputs are adjacent, so that the caller may reuse
 * its memory at once. */
static int write_prefetched(struct run *r, id storage, uint64_t from, char *to, const void *data, uint64_t bytes,
                            struct error *e)
{
    char *next = staging_named(r, "next");
    for (id s = 1; s < storage; s++)
        if (r->planned.graph.storages.at[s].kind == KIND_INPUT) next += r->planned.graph.storages.at[s].bytes;
    memcpy(next + from, data, bytes);
    return r->device.ops->write_later(&r->device, to, next + from, bytes, e);
}

static int write_bytes(struct run *r, id storage, uint64_t from, const void *data, uint64_t bytes, struct error *e)
{
    CHECK(from + bytes <= r->planned.graph.storages.at[storage].bytes, "input %s is too small",
          graph_name(&r->planned.graph, r->planned.graph.storages.at[storage].name));
    char *to = r->device.arena[SPACE_DEVICE] + r->planned.plan.placement.offset[storage] + from;
    trips_count(r, storage, from, data, bytes);
    if (r->prefetching) return write_prefetched(r, storage, from, to, data, bytes, e);
    r->prefetched = false;
    return r->device.ops->write(&r->device, to, data, bytes, e);
}

int run_write_bytes(struct run *r, const char *input, uint64_t from, const void *data, uint64_t bytes, struct error *e)
{
    struct planned_input x;
    CHECK(planned_input(&r->planned, input, &x), "no input %s", input);
    if (planned_input_used(&r->planned, &x)) return write_bytes(r, x.storage, from, data, bytes, e);
    trips_count(r, x.storage, from, data, bytes); /* no program reads it: it has no storage in the arena */
    return PL_OK;
}

/* Writes n samples, starting at sample `at`, from an array [outer][stride samples][entries of a
 * sample]: `data` is its first sample. */
static int write_samples(struct run *r, const struct planned_input *x, int64_t at, int64_t n, const char *data,
                         int64_t stride, struct error *e)
{
    const int64_t micro = r->planned.plan.settings.micro_batch;
    const uint64_t piece = x->sample / x->outer; /* bytes of a sample in one of the outer ones */
    for (int64_t end = at + n; at < end;) {
        const int64_t k = min_i64(end - at, micro - at % micro);
        const uint64_t first = (uint64_t)(at / micro) * x->outer * x->entries * x->entry;
        for (uint64_t o = 0; o < x->outer; o++)
            TRY(write_bytes(r, x->storage, first + o * x->entries * x->entry + (uint64_t)(at % micro) * piece,
                            data + o * (uint64_t)stride * piece, (uint64_t)k * piece, e));
        data += (uint64_t)k * piece;
        at += k;
    }
    return PL_OK;
}

int run_write_input(struct run *r, const char *input, int64_t at, const void *data, uint64_t bytes, struct error *e)
{
    struct planned_input x;
    CHECK(planned_input(&r->planned, input, &x), "no input %s", input);
    if (!planned_input_used(&r->planned, &x)) return PL_OK;
    if (x.axis <= 0)
        return write_bytes(r, x.storage, x.axis == INPUT_SHARED ? 0 : (uint64_t)at * x.sample, data, bytes, e);
    for (uint64_t done = 0; done < bytes; done += x.sample, at++)
        TRY(write_samples(r, &x, at, 1, (const char *)data + done, 1, e));
    return PL_OK;
}

int run_write_batch(struct run *r, const char *input, const void *data, struct error *e)
{
    struct planned_input x;
    CHECK(planned_input(&r->planned, input, &x), "no input %s", input);
    if (x.axis <= 0)
        return run_write_input(r, input, 0, data, x.sample * (uint64_t)(x.axis < 0 ? 1 : r->planned.effective_batch),
                               e);
    return planned_input_used(&r->planned, &x)
               ? write_samples(r, &x, 0, r->planned.effective_batch, data, r->planned.effective_batch, e)
               : PL_OK;
}
