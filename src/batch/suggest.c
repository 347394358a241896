/*
 * suggest.c: see suggest.h.
 *
 * A row of text holds nearly every sample, and several usual ones, so that packing fills it: the
 * least power of two that holds 99 % of the samples and twice the median, within what the model has
 * positions for.
 */
#include "batch/suggest.h"

#include "data/loader.h"
#include "data/text/tokens.h"
#include "batch/embed.h"
#include "batch/text_source.h"
#include "io/json.h"
#include "io/temporary.h"

/* READ_MOST: bytes of text that are tokenized; the numbers of larger files are scaled up. */
enum { SAMPLES_READ = 64, SEQUENCES_TRIED = 64, RECORDS = 4096, MOST_MASKS = 32, SCRATCH = 64 << 20 };
enum { READ_MOST = 64 << 20, LEAST_ROW = 64, MOST_ROW = 4096, MOST_PLAIN = 1024, MOST_VOLUMES = 8 };

int suggest_model(struct suggestion *s, const char *model, struct error *e)
{
    s->name = model;
    int rc = model_find(&s->model, model, e);
    s->preset = !*s->model.path;
    return rc ? error_prepend(e, "--model") : PL_OK;
}

void suggestion_free(struct suggestion *s)
{
    mem_free(s->unused[0]);
    mem_free(s->unused[1]);
    text_free(&s->decided);
    text_free(&s->warning);
    detected_free(&s->data);
    model_close(&s->model);
}

/* --- images --------------------------------------------------------------------------------- */

/* Reads some samples to find the number of masks per image, and the image size of a packed
 * store. */
static void scan_samples(struct suggestion *s, const struct dataset *d)
{
    struct mask *records = mem_alloc(RECORDS * sizeof *records);
    const size_t room = s->sample_memory ? s->sample_memory << 20 : SCRATCH;
    void *scratch = mem_alloc(room);
    uint64_t n = dataset_count(d), n_read = min_u64(n, SAMPLES_READ);
    uint32_t most = 1;
    struct error ignored;
    for (uint64_t i = 0; i < n_read; i++) {
        struct dataset_masks found;
        if (dataset_masks(d, i * n / n_read, scratch, room, records, RECORDS, &found, &ignored)) continue;
        if (found.n > most) most = found.n;
        if (records[0].shape.kind == SHAPE_BITS && !records[0].shape.cells.id) s->cells = records[0].shape.cells.w;
    }
    struct dataset_image image;
    s->image = s->model.image;
    if (!dataset_image(d, 0, scratch, room, &image, &ignored) && image.decoded && !d->format->label &&
        (int64_t)(image.stride / 3) % s->model.masks->patch == 0)
        s->image = (int64_t)(image.stride / 3);
    s->masks = min_i64(MOST_MASKS, (int64_t)align_up(most, 4));
    mem_free(scratch);
    mem_free(records);
}

/* Puts why a key was decided, as a comment: the line of the survey without the key. */
static void put_reason(struct text *out, bool (*print)(const struct dataset *, struct text *), const struct dataset *d)
{
    struct text line = {0};
    if (print(d, &line)) {
        const char *colon = strstr(line.at, ": ");
        text_printf(out, "  # %s\n", colon ? colon + 2 : line.at);
    }
    text_free(&line);
}

/* Puts the keys that were auto as they were decided: every command that reads the run file makes
 * the same decision. */
static void put_decisions(struct text *out, const struct dataset *d)
{
    static const char *const kinds[] = {"auto", "binary", "classes", "instances"};
    const struct pixel_range *r = &d->range;
    if (dataset_survey(d)->labels) {
        put_reason(out, survey_print_labels, d);
        text_printf(out, "  labels: %s\n", kinds[d->labels.kind]);
        if (d->labels.threshold) text_printf(out, "  threshold: %u\n", d->labels.threshold);
        if (d->labels.ignore > 0) text_printf(out, "  ignore: %d\n", d->labels.ignore);
    }
    if (dataset_survey(d)->range_decided || dataset_survey(d)->volumes) {
        put_reason(out, survey_print_range, d);
        text_printf(out, "  range: %s\n",
                    r->kind == RANGE_WINDOW ? "window"
                    : r->kind == RANGE_FULL ? "full"
                                            : "percentiles");
        if (r->kind == RANGE_WINDOW) text_printf(out, "  window: [%.10g, %.10g]\n", r->window[0], r->window[1]);
    }
    struct text line = {0};
    for (int k = 0; survey_next_warning(d, &k, &line); text_free(&line))
        text_printf(out, "  # warning: %s\n", line.at), log_warn("%s", line.at);
    if (dataset_print_left(d, false, &line)) text_printf(out, "  # %s\n", line.at);
    text_free(&line);
}

/* Finds out whether the store's embeddings are those that this model's encoder would compute, and
 * can be trained from. */
static void find_embeddings(struct suggestion *s, const struct packed_embeddings *x)
{
    struct packed_embeddings own = {0};
    struct error *e = &s->not_used;
    s->embeddings = x;
    if (!x) return;
    if (s->preset) error_set(e, PL_USAGE, "the encoder of a preset has random weights");
    else if (embed_describe(NULL, &s->model, s->image, &own, e)) return;
    else if (own.layers != x->layers || own.weights != x->weights)
        error_set(e, PL_USAGE, "they were made with %s, which has another encoder", x->model);
    else if (embed_pattern(&s->model, s->image, s->freeze, e)) s->freeze[0] = 0;
}

/* Notes the files of a part that are not used, and the memory of its largest sample. */
static void note_part(struct suggestion *s, bool validation, const struct dataset *d)
{
    const uint64_t mib = (uint64_t)ceil_div((int64_t)d->largest, 1 << 20);
    if (d->largest > loader_default_room(d->format->name, false) && mib > s->sample_memory) s->sample_memory = mib;
    if (dataset_unpaired(d)) s->unused[validation] = mem_string(dataset_unpaired(d));
}

static int measure_images(struct suggestion *s, struct error *e)
{
    struct dataset *d;
    struct dataset_options o = detected_options(&s->data, false);
    TRY(dataset_open(&d, &o, e));
    uint64_t n = s->samples = dataset_count(d);
    note_part(s, false, d);
    scan_samples(s, d);
    find_embeddings(s, dataset_embeddings(d));
    put_decisions(&s->decided, d);
    if (detected_validation(&s->data)) {
        o = detected_options(&s->data, true);
        o.labels = d->labels.kind, o.ignore = d->labels.ignore, o.threshold = d->labels.threshold, o.range = d->range;
        dataset_close(d);
        TRY(dataset_open(&d, &o, e));
        s->held_out = dataset_count(d);
        note_part(s, true, d);
    } else if (n > 1) { /* hold out a tenth, at least one sample */
        s->holdout = n >= 10 ? 0.1 : 1.0 / (double)n;
        s->split[1] = s->held_out = dataset_held_out(d, s->holdout, 0, &s->warning);
        s->split[0] = s->samples = n - s->held_out;
    }
    dataset_close(d);
    return PL_OK;
}

/* --- tokens --------------------------------------------------------------------------------- */

/* Counts the samples of a part; `read`: reads some that are spread over the files, too, as training
 * does: ids outside of the vocabulary are an error. */
static int try_tokens(const struct suggestion *s, const struct names *paths, bool read, uint64_t *n, struct error *e)
{
    struct tokens t;
    struct tokens_options o = {.paths = paths->at, .n_paths = paths->n, .sequence = s->sequence,
                               .vocab_size = s->model.vocabulary,
                               .bytes = !strcmp(s->data.set.format, "bytes")};
    *n = 0;
    if (!paths->n) return PL_OK;
    TRY(tokens_open(&t, &o, e));
    *n = tokens_count(&t);
    const uint64_t tried = read ? min_u64(*n, SEQUENCES_TRIED) : 0;
    int32_t *ids = mem_alloc((size_t)s->sequence * sizeof *ids);
    int rc = PL_OK;
    for (uint64_t i = 0; i < tried && !rc; i++) rc = tokens_read(&t, i * *n / tried, ids, e);
    mem_free(ids);
    tokens_close(&t);
    return rc;
}

static uint64_t count_positions(const struct suggestion *s, uint64_t standard)
{
    struct bump b = {0};
    struct value *config;
    struct error ignored;
    uint64_t positions = standard;
    if (!json_parse(s->model.config_text, strlen(s->model.config_text), &b, &config, &ignored))
        value_opt_uint(config, "max_position_embeddings", &positions, &ignored);
    bump_free(&b);
    return positions;
}

/* Finds the longest sequence, up to 1024 and the model's limit, of which both parts have at least
 * one. */
static int measure_tokens(struct suggestion *s, struct error *e)
{
    int rc = PL_FAIL;
    for (s->sequence = (int64_t)min_u64(count_positions(s, 1024), 1024); rc && s->sequence >= 2; s->sequence /= 2) {
        rc = try_tokens(s, &s->data.train, false, &s->samples, e);
        if (!rc) rc = try_tokens(s, &s->data.validation, false, &s->held_out, e);
        if (!rc) break;
    }
    TRY(rc);
    e->code = PL_OK; /* attempts with longer sequences set it */
    TRY(try_tokens(s, &s->data.train, true, &s->samples, e));
    return try_tokens(s, &s->data.validation, true, &s->held_out, e);
}

/* --- text ----------------------------------------------------------------------------------- */

/* Chooses the length of a row. Plain text fills rows of any length. */
static int64_t choose_sequence(const struct suggestion *s, const struct token_store *store)
{
    const uint64_t n = store->header->samples;
    const int64_t longest = s->plain ? MOST_PLAIN : MOST_ROW, positions = (int64_t)count_positions(s, 0),
                  most = positions && positions < longest ? positions : longest;
    int64_t T = LEAST_ROW;
    uint32_t *lengths = token_store_lengths(store);
    while (n && T * 2 <= most && (T < length_at(lengths, n, 0.99) || T < 2 * (int64_t)length_at(lengths, n, 0.5)))
        T *= 2;
    mem_free(lengths);
    return min_i64(T, most);
}

/* Chooses the images of a row, or the tokens of images of any size: as many as rows have on average
 * if there is room for all that fit, and those of any sample. */
static int64_t choose_images(const struct config *c, const struct text_source *t, const char *path, int64_t vocabulary,
                             int64_t *volumes)
{
    struct conversations set;
    struct error ignored;
    const struct conversations_options o = text_rows(c, t, FEED_TRAIN, vocabulary);
    if (!o.images.features || conversations_open(&set, path, &o, &ignored)) return 0;
    const uint64_t mean = (set.images + set.rows.n - 1) / set.rows.n;
    const int64_t most =
        set.images ? (int64_t)min_u64(o.images.most, mean > set.most_images ? mean : set.most_images) : 0;
    *volumes = (int64_t)min_u64(o.images.most_volumes, set.most_volumes);
    conversations_close(&set);
    return most;
}

/* Finds the share of the files' bytes that is read. */
static int find_share(const struct tokenize_options *o, double *share, struct error *e)
{
    struct names files;
    uint64_t total = 0, size;
    int rc = tokenize_files(o->paths, o->n_paths, &files, e);
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = file_size(files.at[i], &size, e), total += size;
    *share = total > READ_MOST ? (double)READ_MOST / (double)total : 1;
    names_free(&files);
    return rc;
}

/* Counts the rows of a part of the store. */
static int count_rows(struct suggestion *s, const struct config *c, const struct text_source *t, const char *path,
                      enum feed_role role, double share, struct error *e)
{
    const bool validation = role == FEED_VALIDATION;
    struct conversations set;
    const struct conversations_options o = text_rows(c, t, role, s->model.vocabulary);
    TRY(conversations_open(&set, path, &o, e));
    s->split[validation] = (uint64_t)((double)(s->plain ? set.rows.n : set.samples) / share);
    *(validation ? &s->held_out : &s->samples) = (uint64_t)((double)set.rows.n / share);
    if (!validation && !s->warning.n) text_print_endless(t->tokenizer, set.chats, set.endless, &s->warning);
    if (!validation || c->data_holdout > 0) s->too_long += (uint64_t)((double)set.too_long / share);
    conversations_close(&set);
    return PL_OK;
}

/* Splits the store in two; a part without a row is none. */
static void choose_holdout(struct suggestion *s, struct config *c, const struct text_source *t, const char *path,
                           uint64_t n, double share)
{
    struct error ignored;
    /* of one text rows are held out */
    if (n == 1 && s->plain && !count_rows(s, c, t, path, FEED_TRAIN, share, &ignored)) n = s->samples;
    c->data_holdout = n >= 10 ? 0.1 : n > 1 ? 1.0 / (double)n : 0;
    s->too_long = 0;
    if (n < 2 || count_rows(s, c, t, path, FEED_TRAIN, share, &ignored) ||
        count_rows(s, c, t, path, FEED_VALIDATION, share, &ignored))
        c->data_holdout = 0, s->too_long = 0, s->held_out = 0;
    s->holdout = c->data_holdout;
}

/* Tokenizes the files of a part, of large ones the beginning, into a temporary store and measures
 * it. */
static int measure_part(struct suggestion *s, struct config *c, enum feed_role role, struct error *e)
{
    char path[4096];
    struct text_source t;
    struct model own;
    const struct model *model;
    struct token_store_key key = {0};
    struct token_store store;
    struct text left_out = {0};
    struct temporary tmp;
    double share = 1;
    uint64_t read = 0;
    const struct model_choices chosen = text_choices(c);
    TRY(text_image_model(&own, c->model_path, &chosen, &model, e));
    int rc = text_source_open(&t, c, role, model, e);
    if (model) model_close(&own);
    TRY(rc);
    if (temporary_work(&tmp, e)) return text_source_close(&t), e->code;
    snprintf(path, sizeof path, "%s/tokenized", tmp.path);
    t.options.most = READ_MOST;
    rc = find_share(&t.options, &share, e);
    if (!rc) rc = tokenize_build(&t.options, &key, path, e);
    if (!rc && !(rc = token_store_open(&store, path, e))) {
        report_print(&store.header->report, &left_out);
        if (left_out.n) log_warn("data.%s: %s", role == FEED_VALIDATION ? "validation" : "train", left_out.at);
        if (left_out.n) s->unused[role == FEED_VALIDATION] = left_out.at;
        if (role == FEED_TRAIN) c->data_sequence = s->sequence = choose_sequence(s, &store);
        read = store.header->report.read;
        token_store_close(&store);
    }
    if (!rc && role == FEED_TRAIN) {
        const int64_t most = choose_images(c, &t, path, s->model.vocabulary, &s->max_volumes),
                      unit = image_source_patches_per_token(&t.images);
        if (unit) c->data_max_patches = s->max_patches = most * unit;
        else if ((s->max_images = most) || s->max_volumes) c->data_max_images = most;
        if (s->max_volumes) c->data_max_volumes = s->max_volumes;
    }
    if (!rc && !c->data_validation.n) choose_holdout(s, c, &t, path, read, share);
    if (!rc && !s->holdout) rc = count_rows(s, c, &t, path, role, share, e);
    temporary_drop(&tmp);
    text_source_close(&t);
    return rc;
}

/* Measures text, which needs a tokenizer: a preset has none. */
static int measure_text(struct suggestion *s, struct error *e)
{
    struct config c;
    const struct names *train = &s->data.train, *validation = &s->data.validation;
    if (s->preset)
        return error_set(
            e, PL_USAGE,
            "%s is a preset, which has no tokenizer; give --model a folder with tokenizer.json or tokenizer.model%s",
            s->name, s->plain ? ", or train on the bytes of the text (`init --bytes`)" : "");
    if (s->model.images && !s->data.set.images) s->data.set.images = detect_images(train->at[0], &s->data.memory);
    config_init(&c);
    c.data_format = s->plain ? FORMAT_TEXT : FORMAT_CONVERSATIONS;
    c.model_path = s->model.path;
    c.data_template = (char *)s->template;
    c.data_images = (char *)s->data.set.images;
    c.data_max_frames = (int64_t)s->max_frames;
    c.data_max_volumes = MOST_VOLUMES;
    c.data_train = (struct config_list){train->at, train->n};
    c.data_validation = (struct config_list){validation->at, validation->n};
    int rc = measure_part(s, &c, FEED_TRAIN, e);
    if (!rc && validation->n) rc = measure_part(s, &c, FEED_VALIDATION, e);
    if (!rc && s->warning.n) log_warn("data.train: %s", s->warning.at);
    c.model_path = NULL; /* the model's */
    config_free(&c);
    return rc;
}

/* --- any data ------------------------------------------------------------------------------- */

/* Sets the error for a language model and data of no known format: what the reader of tokens says
 * about the first file, because that message has what to do. `e` keeps the detection's error if
 * there is none. */
static void explain_tokens(const char *data, struct error *e)
{
    struct names l = {0};
    struct error ignored;
    struct tokens t;
    char *path = mem_string(data);
    if (dir_exists(data) && !dir_list(data, &l, &ignored))
        for (uint32_t i = 0; i < l.n && dir_exists(path); i++) mem_free(path), path = path_join(data, l.at[i]);
    struct tokens_options o = {.paths = &path, .n_paths = 1, .sequence = 2, .vocab_size = INT32_MAX};
    if (file_exists(path) && !dir_exists(path) && !tokens_open(&t, &o, e)) tokens_close(&t);
    names_free(&l);
    mem_free(path);
}

/* Checks that the model takes the data: images with masks need one that predicts masks, tokens a
 * model with a vocabulary. */
static int check_model(const struct suggestion *s, struct error *e)
{
    const struct model *m = &s->model;
    const char *type = m->family->model_type, *format = s->data.set.format;
    const bool tokens = s->text || !strcmp(format, "tokens") || !strcmp(format, "bytes");
    if (!m->masks && !m->vocabulary)
        return error_set(
            e, PL_USAGE,
            "%s is a %s, which cannot be trained by itself; use a SAM, a language model, or a CLIP or SigLIP", s->name,
            type);
    if (tokens && m->masks)
        return error_set(e, PL_USAGE, "the data are %s, but %s is a %s, which needs images with masks", s->data.what,
                         s->name, type);
    if (!tokens && !m->masks)
        return error_set(e, PL_USAGE, "the data are %s, images with masks, but %s is a %s, which needs tokens",
                         s->data.what, s->name, type);
    if (s->max_frames && (!m->images || s->max_frames > 4096))
        return error_set(e, PL_USAGE, "--max-frames: expected at most 4096, and a model that takes images; %s is a %s",
                         s->name, type);
    return PL_OK;
}

int suggest_data(struct suggestion *s, const char *data, bool bytes, const struct dataset_options *given,
                 struct error *e)
{
    if (detect_data(&s->data, data, bytes, given, e)) {
        s->data = (struct detected){0};
        if (s->model.vocabulary && !s->model.masks) explain_tokens(data, e);
        return e->code;
    }
    s->plain = !strcmp(s->data.set.format, "text");
    s->text = s->plain || !strcmp(s->data.set.format, "conversations");
    TRY(check_model(s, e));
    if (s->model.masks ? measure_images(s, e) : s->text ? measure_text(s, e) : measure_tokens(s, e))
        return error_prepend(e, "%s (%s)", data, s->data.what);
    return PL_OK;
}
