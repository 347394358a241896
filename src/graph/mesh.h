/*
 * mesh.h: the ranks of a run as a mesh of named axes.
 *
 *     data       ranks with other samples of a step's batch, which add their gradients
 *     pipeline   ranks with other blocks of the model
 *     context    ranks with other tokens of the same samples, which add their gradients too
 *     tensor     ranks with other parts of the same matrices
 *
 *     rank = ((data * pipelines + pipeline) * contexts + context) * tensors + tensor
 *
 * So the ranks that exchange most are neighbours, and on one host.
 *
 * A collective names an axis: it is between the ranks of one line of the mesh. The line of
 * AXIS_DATA has all ranks that add gradients, on axes data and context: place = data * contexts +
 * context. AXIS_HOST and AXIS_ACROSS are parts of this line: its ranks on one host, which follow
 * each other on it, and those with the same number on their hosts.
 */
#pragma once

#include <stdint.h>

enum rank_axis { AXIS_NONE, AXIS_DATA, AXIS_HOST, AXIS_ACROSS, AXIS_TENSOR, AXIS_CONTEXT, AXIS_PIPELINE };

/* The sizes of the axes; 0 is 1. Data has the other ranks. */
struct mesh {
    int32_t tensor, context, pipeline;
};

static inline int mesh_size(int32_t size) { return size > 1 ? size : 1; }

/* Which parts of a weight, or of the heads of an attention, a node works on: number `part` of the
 * `here` parts of this rank. `copies` parts that follow each other are the same. here 0: it works
 * on the whole. */
struct part_number {
    int32_t part, here, copies;
};

/* Reads it from an attribute of a node. */
static inline struct part_number part_number_read(const int32_t of[3])
{
    const struct part_number p = {of[0], of[1], of[2]};
    return p;
}

/* Returns the number of these parts among those of all ranks, without the copies; `place`: of the
 * rank on AXIS_TENSOR. */
static inline int64_t part_index(struct part_number p, int place)
{
    return p.here ? (place * p.here + p.part) / mesh_size(p.copies) : 0;
}

/* Returns the number of ranks on a line of the axis, in a mesh of n ranks. AXIS_NONE is
 * AXIS_DATA. */
static inline int mesh_line(struct mesh m, int n, enum rank_axis axis)
{
    switch (axis) {
        case AXIS_TENSOR: return mesh_size(m.tensor);
        case AXIS_CONTEXT: return mesh_size(m.context);
        case AXIS_PIPELINE: return mesh_size(m.pipeline);
        default: return n / mesh_size(m.tensor) / mesh_size(m.pipeline);
    }
}

/* Returns the place of a rank on its line of the axis. */
static inline int mesh_place(struct mesh m, int rank, enum rank_axis axis)
{
    const int tensors = mesh_size(m.tensor), contexts = mesh_size(m.context), pipelines = mesh_size(m.pipeline);
    switch (axis) {
        case AXIS_TENSOR: return rank % tensors;
        case AXIS_CONTEXT: return rank / tensors % contexts;
        case AXIS_PIPELINE: return rank / tensors / contexts % pipelines;
        default: return rank / tensors / contexts / pipelines * contexts + rank / tensors % contexts;
    }
}

/* Returns the rank at a place of the line of the axis that `rank` is on. */
static inline int mesh_rank(struct mesh m, int rank, enum rank_axis axis, int place)
{
    const int tensors = mesh_size(m.tensor), contexts = mesh_size(m.context), pipelines = mesh_size(m.pipeline);
    int tensor = rank % tensors, context = rank / tensors % contexts, pipeline = rank / tensors / contexts % pipelines,
        data = rank / tensors / contexts / pipelines;
    switch (axis) {
        case AXIS_TENSOR: tensor = place; break;
        case AXIS_CONTEXT: context = place; break;
        case AXIS_PIPELINE: pipeline = place; break;
        default: data = place / contexts, context = place % contexts;
    }
    return ((data * pipelines + pipeline) * contexts + context) * tensors + tensor;
}

/* Returns how many ranks that follow each other on a line of the axis are on one host of `host`
 * ranks; 0: all of them. */
static inline int mesh_on_host(struct mesh m, int n, enum rank_axis axis, int host)
{
    const int line = mesh_line(m, n, axis);
    int here = 1;
    if (host <= 0 || host >= n) return 0;
    while (here < line && mesh_rank(m, 0, axis, here) < host) here++;
    while (line % here) here--;
    return here < line ? here : 0;
}
