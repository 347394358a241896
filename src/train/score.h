/*
 * score.h: how good masks are, counted.
 *
 *     scores_open     rows for each kind of prompt, and within it for each category
 *     scores_add      one mask
 *     scores_print    a table for people;  scores_csv: the same for programs
 *
 *     prompt   category   masks   mean IoU   mean Dice   above 0.50   above 0.75
 *     point    all          812     0.7312      0.8190       84.1 %       61.3 %
 *     point    cat          102     ...
 *
 * All memory is taken when it is opened: adding allocates nothing. The worst masks are kept by
 * number, so that somebody can look at them. The result does not depend on the order of adding
 * but for the rounding of sums.
 */
#ifndef SCORE_H
#define SCORE_H

#include "base/base.h"

/* Pixels of a prediction and a target. */
struct overlap {
    uint64_t both, either, predicted, target;
};
/* Logits above 0 against bits in rows of `stride` bytes (data/grid.h), over the first w columns
 * and h rows; a row of logits has `pitch` elements. */
struct overlap overlap_logits(const float *logits, size_t pitch, const uint8_t *bits, size_t stride, uint32_t w, uint32_t h);
/* The same of bytes that are not 0. */
struct overlap overlap_bytes(const uint8_t *mask, size_t pitch, const uint8_t *bits, size_t stride, uint32_t w, uint32_t h);
/* Two empty masks agree: 1. */
double overlap_iou(const struct overlap *o);
double overlap_dice(const struct overlap *o);
/* Of one mask, Dice follows from IoU. */
static inline double dice_of_iou(double iou) { return 2 * iou / (1 + iou); }

struct score {
    uint64_t masks, above_half, above_most; /* IoU above 0.50, above 0.75 */
    double iou, dice;                       /* sums */
};

/* A mask that went wrong. */
struct worst {
    double iou;       /* set by scores_add */
    uint64_t sample;  /* of the data set */
    int64_t mask;     /* of the sample, by whatever number the caller has */
    float place[4];   /* the prompt, in the caller's measure */
    uint32_t prompt;  /* set by scores_add */
};

struct score_category {
    int32_t id;
    uint32_t row;
};
/* A category's name; NULL: its number stands for it. */
typedef const char *score_name(const void *of, int32_t category);

struct scores {
    const char *const *prompts; /* names of the kinds; not owned */
    uint32_t n_prompts, n_categories, most_categories, n_worst, most_worst;
    score_name *name;           /* NULL: none has one */
    const void *names_of;
    struct score_category *categories; /* that were seen, by ascending id */
    struct score *rows;         /* [prompt][0: all, 1: of categories beyond the most, 2 + row of a category] */
    struct worst *worst;        /* ascending by IoU */
};

/* Categories have rows as they are seen, `categories` of them; the rest together is "other". `worst`: so
 * many are kept. */
void scores_open(struct scores *s, const char *const *prompts, uint32_t n_prompts, uint32_t categories, uint32_t worst);
/* Where the names of categories come from. */
void scores_names(struct scores *s, score_name *name, const void *of);
void scores_close(struct scores *s);
void scores_reset(struct scores *s);
/* `where` says which mask it was, if it is to be kept should it be among the worst; NULL: it is not. */
void scores_add(struct scores *s, uint32_t prompt, int32_t category, double iou, double dice, const struct worst *where);

/* Of one kind of prompt; of all of them when prompt is n_prompts. */
struct score scores_of(const struct scores *s, uint32_t prompt);
double score_iou(const struct score *s);  /* means; 0 without masks */
double score_dice(const struct score *s);

/* Rows without masks are left out; so are those of a single category without a name. */
void scores_print(const struct scores *s, struct text *out);
/* prompt,category,masks,mean_iou,mean_dice,above_50,above_75: shares as 0 to 1. */
void scores_csv(const struct scores *s, struct text *out);

#endif
