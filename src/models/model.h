/*
 * model.h: a model family turns a config.json into layer code.
 *
 * A family parses the configuration and emits the forward graph for a batch of
 * B samples; it knows nothing of how that graph will be run. A model comes from
 * a folder (config.json + *.safetensors) or from a preset, which is a
 * config.json kept in this program: one parser serves both.
 */
#ifndef MODEL_H
#define MODEL_H

#include "graph/graph.h"
#include "io/value.h"

struct model {
    const struct family *family;
    char path[1024];        /* the folder; "" for a preset */
    char *config_text;      /* config.json, byte for byte */
    struct bump memory;     /* of the parsed configuration */
    void *config;           /* the family's own struct */
    int64_t vocabulary;     /* token ids are below this */
};

/* What the forward is built for. */
struct batch {
    int64_t B, T;
    bool logits;            /* the full logits are wanted as an output */
};

struct family {
    const char *model_type; /* config.json's */
    int (*parse)(struct model *m, const struct value *config, struct error *e);
    /* Emits the forward into the current program: inputs "input_ids" and "labels",
     * output "loss" (and "logits"). */
    void (*build)(const struct model *m, struct graph *g, const struct batch *b);
};
extern const struct family llama_family, mistral_family, qwen2_family;

/* A model that no config.json describes: the program that uses the library emits it. */
struct definition {
    const struct family *family; /* its parse is never called */
    void *config;                /* for the family's build, as model.config */
    const char *config_json;     /* what a saved folder's config.json says */
};

int model_open(struct model *m, const char *path, struct error *e);
int model_preset(struct model *m, const char *name, struct error *e);
/* `path` is the folder that its weights are read from; NULL: they begin by their inits. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e);
void model_close(struct model *m);

#endif
