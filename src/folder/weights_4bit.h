/*
 * weights_4bit.h: weights that a model folder has in 4 bits, as transformers saves them with
 * bitsandbytes.
 *
 *     NAME.weight                                  u8: two codes per byte; or another dtype of
 *                                                  these bytes
 *     NAME.weight.absmax                           u8 [blocks]: scales; f32 without double
 *                                                  quantization
 *     NAME.weight.nested_absmax                    f32 [blocks / 256]
 *     NAME.weight.nested_quant_map                 f32 [256]: the map of the scales
 *     NAME.weight.quant_map                        f32 [16]: the levels
 *     NAME.weight.quant_state.bitsandbytes__nf4    u8: JSON: form, block sizes, shape, offset
 *                                                  of the scales
 *
 * They are read as they are: no value is quantized again. Only NF4 in blocks of 64 is read. The
 * matrices of a stack (base/spelling.h) have offsets of their own, so a stack's scales are kept in
 * f32.
 */
#pragma once

#include "folder/transfer.h"
#include "folder/weights.h"

/* The weights of a folder that are in 4 bits. */
struct weights_4bit {
    const char **names;   /* as in the folder, sorted */
    uint8_t *forms;       /* enum stored */
    uint32_t n;
    const struct spelling *spellings; /* of the published names; NULL: one */
};

#define WEIGHTS_4BIT_STATE ".quant_state.bitsandbytes__nf4" /* behind the name of a weight */

/* Reads config.json and, where its quantization_config is bitsandbytes', the headers of the
 * folder's files. Names are in `b`. PL_USAGE for another kind of quantization, by its name. */
int weights_4bit_find(struct weights_4bit *x, const struct model *m, struct bump *b, struct error *e);
/* Sets param.form of the parameters that the folder has in 4 bits. */
void weights_4bit_mark(const struct weights_4bit *x, struct graph *g);

/* The JSON of a weight. */
struct quant_state {
    bool nested;          /* double quantization */
    float offset;
    int rank;
    int64_t dim[MAX_RANK];
};
int quant_state_read(const char *json, size_t n, struct quant_state *out, struct error *e);
/* Appends it as bitsandbytes writes it; `dtype` is PyTorch's name of the dtype before. Only with
 * double quantization. */
void quant_state_print(const struct quant_state *s, const char *dtype, struct text *out);

/* Checks the tensors of a parameter in 4 bits, whose codes are in `slot`, before anything is
 * read. */
int weights_4bit_check(const struct weights *w, const struct graph *g, const struct param *p,
                       const struct weight_slot *slot, struct error *e);
/* Reads them into the arenas; extends *crc by their bytes. */
int weights_4bit_load(const struct weights *w, struct transfer *x, const struct param *p,
                      const struct weight_slot *slot, uint32_t *crc, struct error *e);
/* Reports whether a tensor is one beside the codes. */
bool weights_4bit_beside(const char *name);
