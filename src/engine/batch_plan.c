/*
 * batch_plan.c: see batch_plan.h.
 */
#include "engine/batch_plan.h"

#include <inttypes.h>
#include <string.h>

#include "engine/embed.h"

enum {
    IMAGES_AHEAD = 16,        /* largest default of data.prefetch */
    MIB = 1 << 20,
};

const char *batch_advice(const struct model *m)
{
    if (m->masks) return "set data.format to sa1b, coco, pairs, csv or packed";
    if (model_port(m, "input_ids")) return "set data.format to tokens or bytes, or use a model like sam-tiny";
    return "vision towers work with `step`, `plan` and `bench`, not with `train`: use a mask model such as sam-tiny, or a language model";
}

int batch_refuse_tokens(const struct config *c, const struct model *m, struct error *e)
{
    char takes[256];
    return error_set(e, PL_USAGE, "data.format %s gives rows of tokens, and a %s takes %s; %s",
                     batch_format(c), m->family->model_type, model_list_ports(m, takes), batch_advice(m));
}

const char *batch_format(const struct config *c)
{
    static const char *const names[] = {"tokens", "bytes", "sa1b", "coco", "pairs", "csv", "packed"};
    return names[c->data_format];
}

static bool reads_stores(const struct config *c)
{
    const char *path = c->data_format == FORMAT_PACKED && c->data_train.n ? c->data_train.at[0] : "", *dot = strrchr(path, '.');
    return *path && !(dot && !strcmp(dot, ".json"));
}

struct loader_options batch_loader(const struct config *c, const struct model *m, const struct packed_embeddings *x)
{
    int64_t side = c->data_image_size ? c->data_image_size : m->image;
    int64_t ahead = c->data_prefetch ? c->data_prefetch : min_i64(c->train_effective_batch, IMAGES_AHEAD);
    const uint64_t room = c->data_sample_memory ? (uint64_t)c->data_sample_memory * MIB : loader_default_room(batch_format(c), reads_stores(c));
    return (struct loader_options){.side = (uint32_t)side, .cells = (uint32_t)m->masks->side(m, side), .masks = (uint32_t)c->data_max_masks,
                                   .threads = (uint32_t)c->data_threads, .slots = (uint32_t)ahead + 1, .room = room,
                                   .polygon_runs = c->data_format == FORMAT_COCO ? LOADER_POLYGON_RUNS : 0, .least = c->data_scale,
                                   .embedding = x->type ? packed_embedding_bytes(x) : 0};
}

int batch_plan(const struct config *c, const struct model *m, bool train, struct prompting *p, uint64_t *loader, struct packed_embeddings *x, struct error *e)
{
    *x = (struct packed_embeddings){0};
    char takes[256];
    /* Calibration plans a mask model without data; with a configuration file the data format
     * must fit the model. */
    if (config_tokens(c) && m->masks && c->file)
        return batch_refuse_tokens(c, m, e);
    if (config_tokens(c)) return PL_OK;
    if (!m->masks)
        return error_set(e, PL_USAGE, "data.format %s gives images with masks, and a %s takes %s; %s",
                         batch_format(c), m->family->model_type, model_list_ports(m, takes), batch_advice(m));
    struct loader_options o = batch_loader(c, m, x);
    if (o.side % m->masks->patch || o.cells > GRID_MAX_CELLS) {
        error_set(e, PL_USAGE, "data.image_size is %u, expected a multiple of the model's patches of %" PRId64 " pixels", o.side, m->masks->patch);
        return config_at_key(c, KEY_data_image_size, e);
    }
    if (embed_choose(c, m, o.side, train, x, e)) return e->code;
    o = batch_loader(c, m, x);
    *p = (struct prompting){.part = x->type ? PART_MASKS : PART_ALL, .embeddings = packed_dtype(x->type), .image = o.side, .masks = o.masks, .points = FIRST_SLOTS + c->prompts_iterations - 1, .rounds = c->prompts_iterations,
                            .slots = true, .targets = true};
    *loader = loader_bytes(&o);
    return PL_OK;
}
