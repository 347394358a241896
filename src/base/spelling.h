/*
 * spelling.h: names that begin in several ways. Versions of transformers save the same weights of a
 * model under different names:
 *
 *     vision_tower.vision_model.encoder.layers.0...      folders on the Hugging Face Hub
 *     vision_tower.encoder.layers.0...                   saved by transformers 5
 *     model.vision_tower.encoder.layers.0...             the modules of transformers 5 in memory, as PEFT sees them
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPELLINGS_MOST = 6, SPELLINGS_EACH = 4 };

/* A beginning of names as they are published, and the other ways in which it is spelled; the first
 * of these is that of the modules in memory. A list ends with a name NULL. */
struct spelling {
    const char *name;
    const char *others[SPELLINGS_EACH];
};

/* For each entry of a list: 0 is the published spelling, k is others[k - 1]. */
struct spelled {
    uint8_t by[SPELLINGS_MOST];
};

/* Counts the ways in which an entry can be spelled: 1 + the others. */
int spelling_count(const struct spelling *s);
/* Returns way k of an entry. */
const char *spelling_at(const struct spelling *s, int k);
/* Returns the entry with which a published name begins; -1: none. `list` NULL: none. */
int spelling_of(const struct spelling *list, const char *name);
/* Returns the name as it is spelled; `name` itself if the list does not change it, else in
 * `out`. */
const char *spelling_apply(const struct spelling *list, struct spelled how, const char *name, char *out, size_t room);
/* Returns the spelling of modules in memory. */
struct spelled spelling_in_memory(const struct spelling *list);

/* A stack is a parameter that folders have as several tensors, one for each index of its first
 * dimension: in its name * is the number of the tensor,
 *
 *     model.layers.0.mlp.experts.*.up_proj.weight [experts,inner,hidden]
 *
 * Returns whether a name is a stack's; and the name of its tensor i, or `name` itself if it is not
 * a stack's. */
bool name_is_stack(const char *name);
const char *name_in_stack(const char *name, int64_t i, char *out, size_t room);

/* A tensor by the end of its name, in folders of a newer version of transformers, and the published
 * ones that it holds, by the ends of theirs. One of stacks is [n,parts x rows,columns]: each of the
 * n matrices has the rows of one part after those of the other. A list ends with a name NULL. */
struct fused_tensor {
    const char *name, *published[2];
};
/* Returns the entry with which a name ends; NULL: none. `list` NULL: none. */
const struct fused_tensor *fused_find(const struct fused_tensor *list, const char *name);
static inline int fused_parts(const struct fused_tensor *x) { return x->published[1] ? 2 : 1; }
