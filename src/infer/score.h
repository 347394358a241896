/*
 * score.h: quality of predicted masks: IoU and Dice by prompt and category.
 *
 *     scores_open     rows for each kind of prompt, and within it for each category
 *     scores_add      one mask
 *     scores_print    a table as text;  scores_csv: the same as CSV
 *
 *     prompt   category   masks   mean IoU   mean Dice   above 0.50   above 0.75
 *     point    all          812     0.7312      0.8190       84.1 %       61.3 %
 *     point    cat          102     ...
 *
 * All memory is allocated in scores_open: adding allocates nothing. The masks with the lowest IoU
 * are recorded, so that they can be drawn. Except for the rounding of sums, the result does not
 * depend on the order of adding.
 */
#pragma once

#include "base/base.h"

/* Pixel counts of a prediction and a target. */
struct overlap {
    uint64_t both, either, predicted, target;
};
/* Counts the overlap of two masks of n bytes, where nonzero bytes are set. */
struct overlap overlap_masks(const uint8_t *predicted, const uint8_t *target, size_t n);
/* The IoU and Dice of two empty masks is 1. */
double overlap_iou(const struct overlap *o);
double overlap_dice(const struct overlap *o);
/* Returns Dice, which for a single mask is a function of IoU. */
static inline double dice_of_iou(double iou) { return 2 * iou / (1 + iou); }

/* Returns F of two masks, nonzero bytes [h][w]: how well their boundaries agree (boundary.c).
 * `scratch` has room for 3 * w * h bytes. */
double boundary_score(const uint8_t *predicted, const uint8_t *target, uint32_t w, uint32_t h, uint8_t *scratch);

struct score {
    uint64_t masks, above_half, above_most; /* IoU above 0.50, above 0.75 */
    double iou, dice;                       /* sums */
};

/* One of the masks with the lowest IoU. */
struct worst {
    double iou;       /* set by scores_add */
    uint64_t sample;  /* index in the dataset */
    int64_t mask;     /* the caller's number of the mask within the sample */
    float coords[4];  /* of the prompt, in the caller's coordinates */
    uint32_t prompt;  /* set by scores_add */
};

struct score_category {
    int32_t id;
    uint32_t row;
};
/* A category's name; NULL: it is printed by number. */
typedef const char *score_name(const void *of, int32_t category);

struct scores {
    const char *const *prompts; /* names of the prompt types; not owned */
    uint32_t n_prompts, n_categories, most_categories, n_worst, most_worst;
    score_name *name;           /* NULL: categories have no names */
    const void *names_of;
    struct score_category *categories; /* seen so far, by ascending id */
    struct score *rows;         /* [prompt][0: all, 1: other, 2 + row of a category] */
    struct worst *worst;        /* ascending by IoU */
};

/* Opens the sums. The first `categories` categories that are seen have their own rows; the others
 * share "other". `worst`: number of masks with the lowest IoU to record. */
void scores_open(struct scores *s, const char *const *prompts, uint32_t n_prompts, uint32_t categories, uint32_t worst);
/* Sets the function that names categories. */
void scores_names(struct scores *s, score_name *name, const void *of);
void scores_close(struct scores *s);
void scores_reset(struct scores *s);
/* Adds a mask. `where` identifies it, to be recorded if its IoU is among the lowest; NULL: it is
 * not recorded. */
void scores_add(struct scores *s, uint32_t prompt, int32_t category, double iou, double dice,
                const struct worst *where);

/* The scores of one type of prompt; of all types if prompt is n_prompts. */
struct score scores_of(const struct scores *s, uint32_t prompt);
double score_iou(const struct score *s);  /* mean values; 0 without masks */
double score_dice(const struct score *s);

/* Omits rows without masks, and the row of a single category without a name. */
void scores_print(const struct scores *s, struct text *out);
/* A map, named as the type of prompt: masks, mean_iou and mean_dice; and `categories`, the same of
 * each, where they have names. */
struct json_writer;
void scores_json(const struct scores *s, uint32_t prompt, struct json_writer *w);
/* Puts a field and a comma, quoted if a comma, a quote or a line end would break the row (RFC
 * 4180). */
void csv_put_field(struct text *out, const char *s);
/* Writes CSV: prompt,category,masks,mean_iou,mean_dice,above_50,above_75: fractions from 0 to 1. */
void scores_csv(const struct scores *s, struct text *out);
