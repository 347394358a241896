/*
 * model.h: a model family turns a config.json into layer code.
 *
 * A family parses the configuration and emits the forward graph for a batch of
 * B samples; it knows nothing of how that graph will be run. A model comes from
 * a folder (config.json + *.safetensors) or from a preset, which is a
 * config.json kept in this program: one parser serves both.
 *
 * What a model takes and gives is data as well: its ports (inputs by name, kind of
 * values and shape) and the names of its outputs. A language model makes its own loss
 * from labels. A tower has none: the loss is the mean of the squares of one output.
 */
#ifndef MODEL_H
#define MODEL_H

#include "graph/ops.h"
#include "io/value.h"

/* Sizes of a port that the batch decides. */
enum {
    DIM_B = -1, /* samples */
    DIM_T = -2, /* tokens */
    DIM_S = -3, /* side of an image */
    DIM_M = -4, /* prompts of an image: one mask each */
    DIM_P = -5, /* points of a prompt */
    DIM_N = -6, /* masks given with an image: 1 or M */
    DIM_H = -7, /* side of a mask */
    DIM_COUNT = 8,
};

enum port_values {
    VALUES_REAL,    /* f32 */
    VALUES_IDS,     /* i32, below the vocabulary */
    VALUES_LABELS,  /* the same, or -100: does not count */
    VALUES_ONES,    /* may be given, all ones; the graph has no such input */
    VALUES_PLACES,  /* f32 in pixels; in the graph (x + 1/2) / side, 0 to 1 over the image */
    VALUES_POINTS,  /* what a point says: 1, 0, -1 or -10; in the graph enum point_kind */
    VALUES_MASKS,   /* u8, 0 or 1, rows x columns last; in the graph bits, rows of mask_row_bytes */
};

/* What a point says: it is beside what is asked for, or on it; it is the first or the last
 * corner of a box; it only fills the row, known to the model as such; nothing at all. In files
 * 0, 1, -1 and -10; corners come as boxes there. */
enum point_kind { POINT_BESIDE, POINT_ON, POINT_FIRST, POINT_LAST, POINT_FILLER, POINT_NOTHING, POINT_KINDS };

/* What the values of an image become: (value * scale - mean) / std. */
struct pixel_norm {
    double scale, mean[3], std[3];
};
/* By preprocessor_config.json, or the image_processor of processor_config.json, of a model's
 * folder where it has one; else, and for the folder "", SAM's. */
int pixel_norm_read(struct pixel_norm *n, const char *folder, struct error *e);

/* One input. */
struct port {
    const char *name;
    enum port_values values;
    int rank;
    int64_t dim[MAX_RANK];  /* the first is DIM_B */
    bool optional;
};
enum { MODEL_PORTS = 6 };

struct model {
    const struct family *family;
    char path[1024];        /* the folder; "" for a preset */
    char *config_text;      /* config.json, byte for byte */
    struct bump memory;     /* of the parsed configuration */
    void *config;           /* the family's own struct */
    int64_t vocabulary;     /* token ids are below this */
    int64_t image;          /* side of the images that it was made for; 0: it has none */
    int64_t patch;          /* of a model of masks: sides of images are multiples of it */
    double extent;          /* what the coordinates of such an image run to, in pixels */
    bool batch_norm;        /* its step may take statistics over images (batch.bn_group) */
    int64_t (*mask_side)(const struct model *m, int64_t image); /* side of the masks of such images; NULL: it makes none */
    struct pixel_norm norm; /* of the images that such a model takes as bytes */
    struct port ports[MODEL_PORTS];
    int n_ports;
    const char **outputs;   /* in the order of the forward */
    uint32_t n_outputs;
    const char *loss_output; /* whose mean square is the loss; NULL: the model has its own */
    bool partial;           /* not all of it is built: a folder holds weights that are not asked for */
};

/* Which part of a model of masks is built: an image encoded once serves any number of prompts.
 * PART_IMAGE takes the image (pixel_values; with rounds, bytes) and gives image_embeddings alone;
 * PART_MASKS takes image_embeddings, as they were given, in its place. */
enum model_part { PART_ALL, PART_IMAGE, PART_MASKS };

/* What a model that is asked for masks is asked with. All zeros: one point for one mask
 * of an image of the configuration's size, with a target. */
struct prompting {
    int64_t image;       /* side of the images, in pixels; 0: the configuration's */
    int64_t masks;       /* M: prompts of an image; 0: what is said above */
    int64_t points;      /* of a prompt; 0: none are given */
    int64_t mask_inputs; /* of an image: 0, 1 for all of its prompts, or M */
    bool slots;          /* points are places for any prompt: no filler follows them, and nobody
                            sees those that say nothing */
    int64_t rounds;      /* training: images as bytes, prompts in slots, so many rounds of them; 0: as the rest says */
    bool boxes, targets;
    bool single;         /* one mask for a prompt instead of several to choose from */
    struct mask_loss_options loss; /* with targets; all zeros: the defaults */
    enum model_part part;
    enum dtype embeddings; /* PART_MASKS: what image_embeddings is given in; DT_NONE: f32 */
    bool told;           /* rounds: any program tells how good each mask is, not the evaluation's alone */
};

/* What the forward is built for. */
struct batch {
    int64_t B, T;
    struct prompting prompts;
    int64_t bn_group;        /* images that share the statistics of batch normalisation in the step, B divides
                                by it; 0: the running ones, which stay. Evaluation has those */
    bool outputs;            /* all outputs are wanted, not the loss alone */
    const char *loss_output; /* NULL: the model's own choice */
};

struct family {
    const char *model_type; /* config.json's */
    int (*parse)(struct model *m, const struct value *config, struct error *e); /* config, ports and outputs */
    /* Emits the forward into the current program: an input for each port, output "loss",
     * and the model's outputs where they are wanted. */
    void (*build)(const struct model *m, struct graph *g, const struct batch *b);
    const char *root;       /* what published names begin with and some folders leave out */
    bool named_as_found;    /* where a folder leaves it out, so do the names of gradients */
};
extern const struct family llama_family, mistral_family, qwen2_family, clip_family, clip_vision_family, siglip_family,
    siglip_vision_family, sam_family, sam_vision_family, tinysam_family;

/* A model that no config.json describes: the program that uses the library emits it. */
struct definition {
    const struct family *family; /* its parse is never called */
    void *config;                /* for the family's build, as model.config */
    const char *config_json;     /* what a saved folder's config.json says */
};

int model_open(struct model *m, const char *path, struct error *e);
int model_preset(struct model *m, const char *name, struct error *e);
/* A config.json as text; `name` stands for it in messages. */
int model_text(struct model *m, const char *config_json, const char *name, struct error *e);
/* `path` is the folder that its weights are read from; NULL: they begin by their inits. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e);
void model_close(struct model *m);

/* For families: declaring what a model takes and gives. The name of an output is copied. */
void model_add_port(struct model *m, const struct port *p);
void model_add_output(struct model *m, const char *name);
/* For builders: the tensor of the output `name`; a tower's loss is emitted here. */
void model_output(const struct model *m, struct graph *g, const struct batch *b, const char *name, id tensor);

const struct port *model_port(const struct model *m, const char *name); /* NULL: none */
bool model_has_output(const struct model *m, const char *name);
/* "input_ids, labels": for messages. */
char *model_list_ports(const struct model *m, char out[256]);

#endif
