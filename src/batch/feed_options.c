/*
 * feed_options.c: how images are read, by the keys of section data.
 */
#include "data/dataset.h"
#include "data/reader.h"
#include "batch/feed.h"

struct sample_order feed_order(const struct config *c, enum feed_role role)
{
    return (struct sample_order){.seed = (uint64_t)c->train_seed,
                                 .shuffle = c->data_shuffle,
                                 .once = role == FEED_VALIDATION,
                                 .max_bad = c->data_max_bad};
}

struct pixel_range feed_range(const struct config *c)
{
    return (struct pixel_range){.kind =
                                    config_given(c, KEY_data_window) ? RANGE_WINDOW : (enum range_kind)c->data_range,
                                .percentiles = {c->data_percentiles.low, c->data_percentiles.high},
                                .window = {c->data_window.low, c->data_window.high}};
}

struct slice_options feed_slices(const struct config *c)
{
    return (struct slice_options){.axis = (enum volume_axis)c->data_slice_axis,
                                  .all = c->data_slices,
                                  .neighbours = c->data_neighbours,
                                  .modalities = c->data_modalities.at,
                                  .n_modalities = c->data_modalities.n,
                                  .cache = c->data_volume_cache};
}
