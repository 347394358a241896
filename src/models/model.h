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
#pragma once

#include "base/spelling.h"
#include "graph/emit.h"
#include "io/value.h"

/* A dimension of a port that the batch determines, named by a letter. B is samples and T tokens; a
 * family names its others. */
#define OPEN(letter) (-(int64_t)(letter))
enum { OPEN_LETTERS = 128 };

enum port_values {
    VALUES_REAL,    /* f32 */
    VALUES_IDS,     /* i32, in 0 .. vocabulary - 1 */
    VALUES_LABELS,  /* the same, or -100: ignored */
    /* 1, or 0 for padding at an end of the row; optional. In the graph `ranges` (batch.packed);
     * without padding no input */
    VALUES_PADDING,
    VALUES_POSITIONS, /* i32, 0 or more, below model.positions; optional. In the graph with batch.packed */
    VALUES_COORDS,  /* f32 in pixels; in the graph (x + 1/2) / side, 0 to 1 over the image */
    VALUES_POINTS,  /* label of a point: 1, 0, -1 or -10; in the graph enum point_kind (masks.h) */
    VALUES_MASKS,   /* u8, 0 or 1, rows x columns last; in the graph bits, rows of mask_row_bytes */
    VALUES_INDEX,   /* i32 below port.below; below 0: none */
    VALUES_TARGETS, /* the same, of which the loss is divided by the number */
    VALUES_CLASS,   /* i32 below port.below; below 0: ignored, in the graph -100 */
    VALUES_BYTES,   /* u8 */
    VALUES_RANGE,   /* i32, two: the first token, and one past the last */
    VALUES_GRIDS,   /* i32, three: an image or a video in patches (image_grid.h); what follows is in the graph */
    VALUES_SIZES,   /* i32, two: height and width of an image in pixels (anyres.h) */
    VALUES_KINDS,   /* 1: an image token, 2: a video's, 0: text; optional. It repeats what ids say */
    VALUES_VOLUMES, /* f32; in the graph the patches of a modality (modalities.h) */
    VALUES_ORDER,   /* i32: of each image and volume in the order of their tokens its modality; below 0: an image */
};

/* One input. */
struct port {
    const char *name;
    enum port_values values;
    int rank;
    /* a size, or OPEN(letter); B need not be the first, and an input that all samples share has
     * none */
    int64_t dim[MAX_RANK];
    bool optional;
    int64_t below;          /* VALUES_INDEX, VALUES_TARGETS, VALUES_CLASS: a size, or OPEN(letter) */
};
enum { MODEL_PORTS = 16 };

struct contents;
struct mask_model;
struct image_model;
struct ground_model;
struct head_model;

/* A head over a vision tower (heads.h). HEAD_AUTO: the one that config.json names, or none. */
enum head_kind { HEAD_NONE, HEAD_AUTO, HEAD_CLASSES, HEAD_CONTRASTIVE };

/* What a run chooses for a model besides its config.json: keys of section model. NULL: not
 * given. */
struct model_choices {
    const char *vision_tower; /* the folder of its vision tower */
    const char *decoder;      /* its mask decoder, instead of that of config.json */
    /* side of the images that a PRS-Med's TinySAM takes; 0: that of its configuration. Mask models
     * take any side with a batch */
    int64_t image;
    bool clips;               /* of a preset: it takes clips of videos */
    bool no_dropout;          /* train without the dropout of config.json */
    enum head_kind head;      /* over a vision tower */
    /* [n_classes] names of the classes of HEAD_CLASSES; none: those of config.json, else... */
    char *const *classes;
    uint32_t n_classes;
    const char *class_folder; /* ...the folders in this one, sorted */
    const char *modalities;   /* volumes that it takes besides, a map as JSON (modalities.h) */
};

/* When a prompt goes through program `prompt` as one chunk (batch.cache): never; where it has
 * images, whose tokens see each other or follow from its ids; always, as all of it see each other;
 * always, as it chooses the tokens of its image. */
enum prompt_whole { WHOLE_NEVER, WHOLE_WITH_IMAGES, WHOLE_PROMPT, WHOLE_CHOOSES };

struct model {
    const struct family *family;
    char path[1024];        /* the folder; "" for a preset */
    struct model_choices chosen; /* in its own memory */
    bool leaves_tower;      /* folders of this model leave out its vision tower (chosen.vision_tower) */
    bool has_decoders;      /* it has mask decoders to choose from (chosen.decoder) */
    char *config_text;      /* config.json, byte for byte */
    struct bump memory;     /* owns the parsed configuration */
    void *config;           /* the family's own struct */
    int64_t vocabulary;     /* token ids are below this */
    int64_t positions;      /* positions are below this (VALUES_POSITIONS); 0: any */
    int64_t longest;        /* tokens of the longest text that it was made for; 0: none is stated */
    int64_t image;          /* side of the images that it was trained on; 0: it takes no images */
    /* the weights of its image encoder, whose output may be stored (PART_IMAGE), as a pattern of
     * model.freeze; "": they are what `vision_tower` means there. NULL: it has none */
    const char *encoder;
    const char *reader;     /* the part that reads the text; NULL: the model itself */
    const char *template;   /* a chat template for folders without one; NULL: there is none */
    /* "attention_dropout is 0.1": a dropout of config.json that the family does not have; NULL:
     * none */
    const char *dropout;
    bool tower;             /* a vision tower of parts.h, without a head */
    bool batch_norm;        /* its step may use batch statistics over images (batch.bn_group) */
    bool balances;          /* its loss balances experts over groups of samples (batch.router_group) */
    struct mask_model *masks; /* masks.h; NULL: it predicts no masks */
    struct image_model *images; /* images.h; NULL: it takes no images among its tokens */
    struct ground_model *ground; /* grounding.h; NULL: it does not match masks with texts */
    struct head_model *head; /* heads.h; NULL: it is no tower with a head */
    struct port ports[MODEL_PORTS];
    int n_ports;
    const char **outputs;   /* in the order of the forward */
    uint32_t n_outputs;
    const char *loss_output; /* the output of which the mean square is the loss; NULL: the model has its own loss */
    struct part *parts;     /* put together from these; each has weights of its own, if path is "" */
    int n_parts;
    bool answers_partly;    /* generation of text builds a part of it */
    enum prompt_whole whole;
    /* modules whose weights the folder does not have: they start from their inits; ended by NULL.
     * NULL: it has all */
    const char *const *fresh;
    /* beginnings of the names of weights that a folder may have beside the model's own, and that
     * are copied as they are; ended by NULL. NULL: none */
    const char *const *copied;
    bool partial;           /* only a part is built: the folder holds weights that the graph does not use */
};

/* A part of a model: parameter NAME of the part is NAME.its_own_name in the graph and in a saved
 * folder; its weights are found in model.path as the part's family spells them, or initialised if
 * that is "". */
struct part {
    char name[96];      /* "": its names are those of the model itself */
    struct model model; /* family NULL: only weights, names as they are in the folder */
};

/* The batch that the forward is built for.
 *
 * packed: a row of T tokens holds several documents, or padding. A language model then has two more
 * inputs besides input_ids and labels, and whoever fills the batch fills them:
 *
 *     position_ids  i32 [B,T]    the position of each token in its document, from 0
 *     ranges        i32 [B,T,2]  the tokens that each token sees: the first, and one past the last
 *
 *     tokens        a b c | d e | -          two documents and padding
 *     position_ids  0 1 2   0 1   0
 *     ranges        0 0 0   3 3   0          a token of a document sees those from its beginning
 *                   1 2 3   4 5   0          to itself; padding sees nothing
 *
 * Layers with a sliding window see the last tokens of a range. The label of a document's first
 * token is -100: the token before it must not predict it. Not packed: the graph has neither input,
 * a token's position is its index, and it sees all tokens up to itself. */
struct batch {
    int64_t B, T;
    bool packed;
    const struct contents *holds; /* what a sample holds besides (contents.h); NULL: the family's default */
    /* Images that share batch-normalisation statistics in the step, a divisor of B; 0: the running
     * statistics, unchanged. Evaluation always uses the running ones. bn_group is for layers whose
     * weights start from their inits, bn_loaded for layers whose weights are in a folder: equal,
     * unless one of them is 0. */
    int64_t bn_group, bn_loaded;
    /* Samples of a group whose tokens share the loss that balances experts, a divisor of B, and the
     * groups of a whole step, over which that loss is a mean; 0: the loss has no such term.
     * Evaluation never has it. */
    int64_t router_group, router_groups;
    /* by letter: the sizes of open dimensions that the inputs have, 0: not given; NULL: the
     * family's defaults */
    const int64_t *size;
    bool outputs;            /* emit all outputs, not only the loss */
    /* Generation of text: the model keeps what it computes for up to `cache` tokens of each of
     * `texts` texts, and gives the logits of the next token of each (family.generates); 0: it keeps
     * nothing. B is `texts`, a row for each text; or 1, and then the row has tokens of any texts,
     * one text after the other. */
    int64_t cache, texts;
    const char *loss_output; /* NULL: the model's default */
};

struct family {
    const char *model_type; /* of config.json */
    int (*parse)(struct model *m, const struct value *config, struct error *e); /* fills config, ports and outputs */
    /* Emits the forward into the current program: an input for each port, the output "loss", and
     * the model's outputs if batch.outputs is set. */
    void (*build)(const struct model *m, struct graph *g, const struct batch *b);
    const char *root;       /* prefix of the published names that some folders leave out */
    bool named_as_found;    /* names of gradients are spelled as in the folder */
    /* reads other files than config.json from model.path; NULL: there are none */
    int (*read_folder)(struct model *m, struct error *e);
    /* `build` takes batch.cache: then the inputs are i32: input_ids [B,T], position_ids [B,T],
     * ranges [B,T,2], the slots of the cache that each token sees, and with T > 1 last_token
     * [B,texts / B], the index in its row of the last token of each text; the output is "logits"
     * [texts,vocabulary]. A row of one text has the slots 0 .. cache - 1, which are the positions
     * of its tokens. A row of several texts has those of all: text i begins at slot i * cache, and
     * the input cache_slots [B,T] has the slot of each token. Padding has a position and a slot
     * below 0, and sees nothing. */
    bool generates;
    bool decoder;           /* a decoder-only language model (decoder.h) */
    bool inside;            /* only a part of other models */
    bool drops;             /* it has the dropout of its config.json */
    const struct spelling *spellings; /* of the published names; NULL: there is one, apart from `root` */
    const struct fused_tensor *fused; /* which other folders have in place of published ones; NULL: none */
};

/* A model without a config.json: the program that uses the library emits its graph. */
struct definition {
    const struct family *family; /* with parse NULL the config is here: */
    void *config;                /* for the family's build, as model.config */
    const char *config_json;     /* text of config.json in a saved folder */
    const struct part_folder {
        const char *name, *path;
    } *parts;                    /* folders of weights of its parts */
    int n_parts;
};

int model_open(struct model *m, const char *path, struct error *e);
int model_preset(struct model *m, const char *name, struct error *e);
/* Does the same with the choices of a run, which are refused where the model has no such choice. */
int model_open_with(struct model *m, const char *path, const struct model_choices *c, struct error *e);
int model_preset_with(struct model *m, const char *name, const struct model_choices *c, struct error *e);
/* Opens a folder, or a preset if no folder has this name; a preset has no path. */
int model_find(struct model *m, const char *name, struct error *e);
/* Returns PL_USAGE, with what to do: there is no such folder; there is no such preset; the folder
 * has no config.json. */
int model_missing(const char *path, struct error *e);
int model_missing_preset(const char *name, struct error *e);
int model_missing_config(const char *path, struct error *e);
/* Opens a model from the text of a config.json; `name` identifies it in messages. */
int model_text(struct model *m, const char *config_json, const char *name, struct error *e);
/* Defines a model; `path` is the folder of its weights; NULL: they start from their inits. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e);
void model_close(struct model *m);
/* Counts the weights of the whole model. */
int model_count(const struct model *m, uint64_t *weights, struct error *e);

/* Returns PL_USAGE if training would need a dropout that the family does not have. */
int model_check_dropout(const struct model *m, struct error *e);

/* Declares the inputs and outputs of a model, for families. The name of an output is copied. */
void model_add_port(struct model *m, const struct port *p);
void model_add_output(struct model *m, const char *name);
/* Adds a part, for families; model_part finds it. Its configuration is `config`, a map of the
 * model's own config.json, or if that is NULL the config.json of its folder; `folder` NULL: it has
 * none, the weights are in the model's own. */
int model_add_part(struct model *m, const char *name, const struct value *config, const char *folder, struct error *e);
const struct model *model_part(const struct model *m, const char *name);
/* Puts the configuration of a part that has a folder of its own into config.MAP, instead of the
 * folder's path, config.PATH; *own is that map. */
struct value;
int model_take_config(struct model *m, const char *part, struct value *config, const char *map, const char *path,
                      struct value **own, struct error *e);
/* Makes `config`, with the parts inside, the configuration that is saved. */
void model_gather(struct model *m, const struct value *config);
/* Declares `tensor` as the output `name`, for builders; emits a tower's loss. */
void model_output(const struct model *m, struct graph *g, const struct batch *b, const char *name, id tensor);

/* Returns the group of the layers of a model, or of a part, for builders. */
static inline int64_t model_bn_group(const struct model *m, const struct batch *b)
{
    return *m->path ? b->bn_loaded : b->bn_group;
}

/* Kinds of models by what a sample holds and what a prediction is: the words of model=WORD in
 * config.def, ended by a NULL. */
struct model_kind {
    const char *word, *means; /* "masks", "a mask model (sam, tinysam, sam2)" */
    bool (*is)(const struct model *m);
};
extern const struct model_kind model_kinds[];
/* Reports whether a model is of the kind with this word. */
bool model_is(const struct model *m, const char *word);

/* Returns the model that reads the text, with the folder that tokenizer and image processor are in:
 * itself, or its part model.reader. The caller does not close it. */
struct model model_reader(const struct model *m);

const struct port *model_port(const struct model *m, const char *name); /* NULL: none */
bool model_has_output(const struct model *m, const char *name);
/* Lists the ports, for messages: "input_ids, labels". */
char *model_list_ports(const struct model *m, char out[256]);

/* Lists the families of language models without images, for messages: "llama, mistral or qwen2",
 * where `last` is "or". */
char *model_list_decoders(char out[256], const char *last);

/* ---- Presets ----
 *
 * models that need no folder: each is a name and a config.json. model.preset also takes the names
 * of published models (catalogue.h).
 */

struct preset {
    const char *name, *config;
};
extern const struct preset presets[]; /* terminated by a NULL name */
