/*
 * feed_questions.c: tables of images, masks, questions and answers for PRS-Med (models/prs_med.h).
 *
 *     table ─ dataset (data/formats/csv_set.c) ─┬─ image and mask ─────────────── images,
 *     image_valid, gt_masks, gt_valid
 *                                     └─ question and answer ─ prepare ─ input_ids, labels,
 *                                     image_index, question
 *                                                                        pixel_values: the image as
 *                                                                        the tower takes it
 *
 * `prepare` writes the texts as conversations into the run's folder, and tokenizes them as any
 * others: with the chat template of the model's folder or of data.template, else as in
 * train_prs_med.py. A conversation is a row, without packing. Rows come from threads
 * (data/image_rows.h); training and validation share them: they never read at the same time.
 */
#include <inttypes.h>

#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "batch/text_source.h"
#include "io/file.h"
#include "io/json.h"

struct question_feed {
    struct config text;          /* the configuration of the conversations */
    char *file;                  /* their path */
    struct dataset *set;
    struct conversations rows;
    bool open;                   /* `rows` */
    struct image_files *files;
    uint32_t *row_of;
    struct question_rows_source source;
    struct token_row padding;
    struct feed_mask *masks;     /* [rows] */
};

/* --- opening ---------------------------------------------------------------------------------- */

/* Checks the classes, which are datasets. */
static int check_classes(const struct dataset *set, int64_t classes, struct error *e)
{
    int32_t last = 0;
    for (uint64_t i = 0; i < dataset_count(set); i++) last = (int32_t)max_i64(last, dataset_group(set, i));
    if (!classes || last < classes) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the tables have %d datasets, and the model tells %lld classes (num_classes of config.json)",
                     last + 1, (long long)classes);
}

static int question_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    struct feed_plan *b = r->planned.batches.feed;
    struct dataset *set;
    CHECK(b && r->planned.batches.loader_bytes, "the run was not planned for questions");
    int rc = feed_open_questions(&set, c, role, e);
    if (!rc && (rc = check_classes(set, prs_model(&r->planned.model)->classes, e))) dataset_close(set);
    if (rc) return rc;
    struct question_feed *s = mem_alloc(sizeof *s);
    *s = (struct question_feed){.set = set,
                                .source = {.masks = feed_source(c, set, role),
                                           .reads_answers = c->data_mask_reads == MASK_READS_ANSWER}};
    s->source.masks.sampler.max_masks = 1;
    s->source.masks.augment = (struct loader_augment){0};
    f->order = &s->source.masks.order;
    f->cells = b->questions.masks.cells;
    f->samples = dataset_count(set);
    f->state = s;
    return PL_OK;
}

static void put_turn(struct json_writer *w, const char *from, const char *text)
{
    json_begin_map(w, NULL);
    json_put_string(w, "from", from);
    json_put_string(w, "value", text);
    json_end(w);
}

/* Prints a sample as a line of LLaVA's JSON. */
static void print_sample(const struct dataset *set, uint64_t i, struct text *out)
{
    struct json_writer w = {.out = out};
    struct text question = {0};
    char *image = realpath(dataset_image_path(set, i), NULL); /* of a file that is not there the path stays as it is */
    text_printf(&question, "<image>\n%s", dataset_text(set, i, DATASET_QUESTION));
    json_begin_map(&w, NULL);
    json_put_string(&w, "image", image ? image : dataset_image_path(set, i));
    json_begin_list(&w, "conversations");
    put_turn(&w, "human", question.at);
    put_turn(&w, "gpt", dataset_text(set, i, DATASET_ANSWER));
    json_end(&w);
    json_end(&w);
    text_printf(out, "\n");
    text_free(&question);
    free(image);
}

static int write_conversations(const struct question_feed *s, struct error *e)
{
    struct text out = {0};
    for (uint64_t i = 0; i < dataset_count(s->set); i++) print_sample(s->set, i, &out);
    return file_write_text(PL_OK, s->file, &out, e);
}

/* Makes the configuration of the conversations: one file, a row each, an image each. */
static void configure(struct question_feed *s, const struct config *c, const struct model *llava)
{
    s->text = *c;
    s->text.data_train = (struct config_list){&s->file, 1};
    s->text.data_validation = (struct config_list){0};
    s->text.data_images = s->text.data_validation_images = s->text.data_store = NULL;
    s->text.data_outside_images = true; /* they are those of the table */
    s->text.data_holdout = 0;
    s->text.data_packing = false;
    s->text.data_max_images = 1;
    if (!c->data_tokenizer && *llava->path) s->text.data_tokenizer = (char *)llava->path;
}

/* Opens the texts; without a template of the folder, with the family's. */
static int open_texts(struct question_feed *s, const char *template, const struct model *llava,
                      struct text_source *source, struct error *e)
{
    int rc = text_source_open(source, &s->text, FEED_TRAIN, llava, e);
    if (rc || source->template) return rc;
    text_source_close(source);
    s->text.data_template = (char *)template;
    return text_source_open(source, &s->text, FEED_TRAIN, llava, e);
}

/* Matches rows with samples; those whose texts cannot be used are left out of the dataset. */
static int match_rows(struct feed *f, struct error *e)
{
    struct question_feed *s = f->state;
    const uint64_t n = dataset_count(s->set);
    uint32_t *row = mem_alloc(n * sizeof *row);
    bool *keep = mem_alloc(n * sizeof *keep);
    for (uint32_t k = 0; k < s->rows.used.n; k++) {
        const uint64_t i = s->rows.store.samples[s->rows.used.at[k].sample].number;
        keep[i] = true;
        row[i] = k;
    }
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++)
        if (keep[i]) row[kept++] = row[i];
    dataset_keep(s->set, keep);
    mem_free(keep);
    s->row_of = row;
    f->samples = kept;
    return kept ? PL_OK : error_set(e, PL_USAGE, "none of %" PRIu64 " samples has texts that can be used", n);
}

static void report(const struct feed *f, const struct conversations *c)
{
    struct text left = {0};
    log_note("%s: %u questions in rows of %" PRId64 " tokens, %.1f %% filled; %.1f %% of the tokens have labels",
             f->role == FEED_TRAIN ? "data.train" : "data.validation", c->used.n, c->o.sequence,
             100.0 * (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence),
             100.0 * (double)c->labels / (double)c->tokens);
    conversations_print_left(c, &left);
    if (left.n) log_warn("%s: %s", f->role == FEED_TRAIN ? "data.train" : "data.validation", left.at);
    text_free(&left);
}

static int question_prepare(struct feed *f, struct run *r, const char *folder, struct error *e)
{
    struct question_feed *s = f->state;
    struct text_source source = {0};
    struct text path = {0};
    const struct model llava = model_reader(&r->planned.model);
    text_printf(&path, "%s/%s.questions.jsonl", folder, f->role == FEED_TRAIN ? "train" : "validation");
    s->file = mem_string(path.at);
    path.n = 0;
    configure(s, f->config, &llava);
    int rc = write_conversations(s, e);
    if (!rc) rc = open_texts(s, r->planned.model.template, &llava, &source, e);
    if (rc) {
        text_free(&path);
        return rc;
    }
    source.options.interrupted = f->interrupted;
    rc = text_store_find(&source, &s->text, folder, f->role, &path, e);
    const struct conversations_options o = text_rows(&s->text, &source, FEED_TRAIN, r->planned.model.vocabulary);
    if (!rc) rc = conversations_open(&s->rows, path.at, &o, e);
    text_free(&path);
    s->files = source.images.files, source.images.files = NULL; /* rows are read from them */
    text_source_close(&source);
    if (rc) return rc;
    s->open = true;
    const size_t T = (size_t)o.sequence * sizeof(int32_t);
    s->padding = (struct token_row){.ids = mem_alloc(T), .labels = mem_alloc(T), .positions = mem_alloc(T),
                                    .ranges = mem_alloc(2 * T)};
    if ((rc = match_rows(f, e))) return rc;
    s->source.set = &s->rows;
    s->source.row_of = s->row_of;
    s->source.files = s->files;
    f->fingerprint =
        hash_bytes(&(uint64_t){conversations_fingerprint(&s->rows)}, sizeof(uint64_t), dataset_fingerprint(s->set));
    report(f, &s->rows);
    return PL_OK;
}

/* Runs after the memory is allocated. */
static void question_start(struct feed *f, struct run *r)
{
    struct question_feed *s = f->state;
    /* training reads the one, evaluations the other */
    if (batch_writes(f->writer, ROW_QUESTION_MASK))
        batch_leave_out(f->writer, f->role == FEED_TRAIN ? ROW_QUESTION : ROW_QUESTION_MASK);
    s->masks = mem_alloc((size_t)planned_samples(&r->planned) * sizeof *s->masks);
    f->masks = s->masks;
}

static void question_close(struct feed *f)
{
    struct question_feed *s = f->state;
    dataset_close(s->set);
    if (s->open) conversations_close(&s->rows);
    image_files_close(s->files);
    mem_free(s->file);
    mem_free(s->row_of);
    mem_free(s->padding.ids), mem_free(s->padding.labels), mem_free(s->padding.positions), mem_free(s->padding.ranges);
    mem_free(s->masks);
    mem_free(s);
}

uint64_t question_number(const struct feed *f, uint64_t sample)
{
    const struct question_feed *s = f->state;
    return s->rows.store.samples[s->rows.used.at[s->row_of[sample]].sample].number;
}

const struct dataset *question_dataset(const struct feed *f) { return ((const struct question_feed *)f->state)->set; }

/* --- a batch ---------------------------------------------------------------------------------- */

/* Reports whether a sample's class is learned: in training in the epochs of loss.class_epochs. */
static bool learns_class(const struct feed *f, uint64_t position)
{
    const uint64_t epochs = (uint64_t)f->config->loss_class_epochs;
    return f->role != FEED_TRAIN || !epochs || position / f->samples < epochs;
}

/* Writes a row. Padding repeats the pixels of the row before it: what is in fresh memory may be
 * NaN. */
static int question_row(struct feed *f, const struct batch_target *t, const struct feed_row *at,
                        struct feed_batch *out, struct error *e)
{
    struct question_feed *s = f->state;
    const struct question_row *x = at->slot, *last = at->last;
    const struct loader_sample *m = x ? x->image : NULL;
    struct token_row row = x ? x->tokens : s->padding;
    if (x) out->count[0] += row.labelled, out->count[1] += m->n, out->units += 1;
    else conversations_pad(&s->rows, &row);
    const bool target = m && m->n;
    const int32_t none[2] = {0, 0}, size[2] = {m ? (int32_t)m->rows : 0, m ? (int32_t)m->columns : 0};
    const int32_t class = target && learns_class(f, m->position) ? dataset_group(s->set, m->sample) : -100;
    const int32_t area[2] = {target ? (int32_t)m->mask_rows : 0, target ? (int32_t)m->mask_columns : 0};
    s->masks[at->at] = target ? (struct feed_mask){m->sample, m->masks[0].id, m->masks[0].category, m->masks[0].area}
                          : (struct feed_mask){0};
    const struct batch_record record = {.is = {[ROW_IDS] = {row.ids},
                                               [ROW_LABELS] = {row.labels},
                                               [ROW_PIXELS] = {last ? last->pixels : NULL},
                                               [ROW_QUESTION] = {x ? x->question : none},
                                               [ROW_IMAGES] = {m ? m->image : NULL},
                                               [ROW_IMAGE_VALID] = {size},
                                               [ROW_MASKS] = {target ? m->bits : NULL},
                                               [ROW_MASK_VALID] = {area},
                                               [ROW_CLASS] = {&class}}};
    return batch_write(f->writer, t, at->at, &record, e);
}

static const char *const passes[] = {"question"};
const struct feed_ops questions_feed = {.port = "question",
                                        .unit = "images",
                                        .counts = {"tokens", "masks"},
                                        .passes = passes,
                                        .n_passes = COUNT(passes),
                                        .open = question_open,
                                        .prepare = question_prepare,
                                        .start = question_start,
                                        .row = question_row,
                                        .close = question_close};
