/*
 * model.h: a model family turns a config.json into layer code.
 *
 * A family parses the configuration and emits the forward graph for a batch of B samples; it does
 * not know how that graph will be executed. A model comes from a folder (config.json +
 * *.safetensors) or from a preset, which is a config.json compiled into this program: one parser
 * serves both.
 *
 * The inputs and outputs of a model are data as well: its ports (inputs by name, type of values and
 * shape) and the names of its outputs. A language model computes its own loss from labels. A vision
 * tower has no loss of its own: its loss is the mean square of one output.
 */
#ifndef MODEL_H
#define MODEL_H

#include "graph/ops.h"
#include "io/value.h"

/* Dimensions of a port that the batch determines. */
enum {
    DIM_B = -1, /* samples */
    DIM_T = -2, /* tokens */
    DIM_S = -3, /* side of an image */
    DIM_M = -4, /* prompts per image: one mask each */
    DIM_P = -5, /* points per prompt */
    DIM_N = -6, /* input masks per image: 1 or M */
    DIM_H = -7, /* side of a mask */
    DIM_COUNT = 8,
};

enum port_values {
    VALUES_REAL,    /* f32 */
    VALUES_IDS,     /* i32, in 0 .. vocabulary - 1 */
    VALUES_LABELS,  /* the same, or -100: ignored */
    VALUES_ONES,    /* optional and all ones; the graph has no such input */
    VALUES_COORDS,  /* f32 in pixels; in the graph (x + 1/2) / side, 0 to 1 over the image */
    VALUES_POINTS,  /* label of a point: 1, 0, -1 or -10; in the graph enum point_kind */
    VALUES_MASKS,   /* u8, 0 or 1, rows x columns last; in the graph bits, rows of mask_row_bytes */
};

/* The label of a point: background or foreground (on the object); first or last corner of a box; a
 * filler ("not a point" embedding); unused (zero embedding; in slots it is masked out). In files
 * the labels are 0, 1, -1 (filler) and -10 (unused); corners are given as boxes there. */
enum point_kind { POINT_BACKGROUND, POINT_FOREGROUND, POINT_FIRST, POINT_LAST, POINT_FILLER, POINT_UNUSED, POINT_KINDS };

/* Normalisation of pixel values: (value * scale - mean) / std. */
struct pixel_norm {
    double scale, mean[3], std[3];
};
/* Reads preprocessor_config.json, or the image_processor of processor_config.json, from a model's
 * folder. Without such a file, and for the folder "", SAM's values are used. */
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
    struct bump memory;     /* owns the parsed configuration */
    void *config;           /* the family's own struct */
    int64_t vocabulary;     /* token ids are below this */
    int64_t image;          /* side of the images that it was trained on; 0: it takes no images */
    int64_t patch;          /* mask models: sides of images are multiples of it */
    double extent;          /* range of the coordinates of an image of side `image`, in pixels */
    bool batch_norm;        /* its step may use batch statistics over images (batch.bn_group) */
    int64_t (*mask_side)(const struct model *m, int64_t image); /* side of the masks for images of this side; NULL: it predicts no masks */
    struct pixel_norm norm; /* normalisation of images that the model takes as bytes */
    struct port ports[MODEL_PORTS];
    int n_ports;
    const char **outputs;   /* in the order of the forward */
    uint32_t n_outputs;
    const char *loss_output; /* the output of which the mean square is the loss; NULL: the model has its own loss */
    bool partial;           /* only a part is built: the folder holds weights that the graph does not use */
};

/* The part of a mask model to build: an image encoded once serves any number of prompts. PART_IMAGE
 * takes the image (pixel_values; with rounds, bytes) and returns only image_embeddings; PART_MASKS
 * takes image_embeddings, as returned, instead of the image. */
enum model_part { PART_ALL, PART_IMAGE, PART_MASKS };

/* The prompts of a mask model. All zeros: one point for one mask of an image of the configuration's
 * size, with a target. */
struct prompting {
    int64_t image;       /* side of the images, in pixels; 0: the configuration's */
    int64_t masks;       /* M: prompts per image; 0: the default above */
    int64_t points;      /* per prompt; 0: no points */
    int64_t mask_inputs; /* per image: 0, 1 shared by all of its prompts, or M */
    bool slots;          /* points are slots for any prompt: no filler is appended, and unused slots are masked out */
    int64_t rounds;      /* training: images as bytes, prompts in slots, and this many rounds of prompts; 0: off */
    bool boxes, targets;
    bool single;         /* one mask per prompt instead of several candidates */
    struct mask_loss_options loss; /* used with targets; all zeros: the defaults */
    enum model_part part;
    enum dtype embeddings; /* PART_MASKS: dtype of image_embeddings; DT_NONE: f32 */
    bool told;           /* rounds: every program outputs statistics per mask, not only the evaluation */
};

/* The batch that the forward is built for. */
struct batch {
    int64_t B, T;
    struct prompting prompts;
    /* Images that share batch-normalisation statistics in the step, a divisor of B; 0: the running
     * statistics, unchanged. Evaluation always uses the running ones. */
    int64_t bn_group;
    bool outputs;            /* emit all outputs, not only the loss */
    const char *loss_output; /* NULL: the model's default */
};

struct family {
    const char *model_type; /* of config.json */
    int (*parse)(struct model *m, const struct value *config, struct error *e); /* fills config, ports and outputs */
    /* Emits the forward into the current program: an input for each port, the output "loss", and
     * the model's outputs if batch.outputs is set. */
    void (*build)(const struct model *m, struct graph *g, const struct batch *b);
    const char *root;       /* prefix of the published names that some folders leave out */
    bool named_as_found;    /* names of gradients leave the prefix out if the folder does */
};
extern const struct family llama_family, mistral_family, qwen2_family, clip_family, clip_vision_family, siglip_family,
    siglip_vision_family, sam_family, sam_vision_family, tinysam_family;

/* A model without a config.json: the program that uses the library emits its graph. */
struct definition {
    const struct family *family; /* its parse is never called */
    void *config;                /* for the family's build, as model.config */
    const char *config_json;     /* text of config.json in a saved folder */
};

int model_open(struct model *m, const char *path, struct error *e);
int model_preset(struct model *m, const char *name, struct error *e);
/* Opens a folder, or a preset if no folder has this name; a preset has no path. */
int model_find(struct model *m, const char *name, struct error *e);
/* PL_USAGE, with what to do: there is no such folder; there is no such preset; the folder has no
 * config.json. */
int model_missing(const char *path, struct error *e);
int model_missing_preset(const char *name, struct error *e);
int model_missing_config(const char *path, struct error *e);
/* Opens a model from the text of a config.json; `name` identifies it in messages. */
int model_text(struct model *m, const char *config_json, const char *name, struct error *e);
/* `path` is the folder of its weights; NULL: they start from their inits. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e);
void model_close(struct model *m);

/* For families: declare the inputs and outputs of a model. The name of an output is copied. */
void model_add_port(struct model *m, const struct port *p);
void model_add_output(struct model *m, const char *name);
/* For builders: declares `tensor` as the output `name`; emits a tower's loss. */
void model_output(const struct model *m, struct graph *g, const struct batch *b, const char *name, id tensor);

const struct port *model_port(const struct model *m, const char *name); /* NULL: none */
bool model_has_output(const struct model *m, const char *name);
/* "input_ids, labels": for messages. */
char *model_list_ports(const struct model *m, char out[256]);

#endif
