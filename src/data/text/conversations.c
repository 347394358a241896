/*
 * conversations.c: see conversations.h.
 */
#include "data/text/conversations.h"
#include "data/text/records.h"

#include "data/order.h"
#include "data/images/image_files.h"

enum { IGNORED = -100 };

/* --- labels --------------------------------------------------------------------------------- */

/* Returns the tokens of a sample that are used: begin to end. */
static struct byte_range part_of(const struct used_sample *u)
{
    return (struct byte_range){u->begin, u->begin + u->size.tokens};
}

/* The label ranges of a part of a sample: the first and the last may reach beyond it. */
struct labels {
    struct byte_range whole;
    const struct byte_range *at;
    uint32_t n;
};

static void find_labels(const struct conversations *c, const struct stored_sample *x, struct byte_range part,
                        struct labels *out)
{
    const struct byte_range *end = c->store.answers + x->first_answer + x->answers;
    *out = (struct labels){.whole = part, .at = c->store.answers + x->first_answer};
    while (out->at < end && out->at->end <= part.begin) out->at++;
    while (out->at + out->n < end && out->at[out->n].begin < part.end) out->n++;
    if (c->o.train_on == TRAIN_ON_LAST && out->n) out->at += out->n - 1, out->n = 1;
    if (c->o.train_on == TRAIN_ON_ALL) out->at = &out->whole, out->n = 1;
}

/* Clips a range: without the first token, which nothing predicts, and without what a cut
 * removed. */
static struct byte_range clip(struct byte_range r, struct byte_range part)
{
    if (r.begin <= part.begin) r.begin = part.begin + 1;
    if (r.end > part.end) r.end = part.end;
    if (r.end < r.begin) r.end = r.begin;
    return r;
}

/* Reports whether a token is of an image: it has no label, also where all tokens have one. */
static bool is_image(const struct conversations *c, int32_t token)
{
    const struct image_rule *o = &c->o.images;
    if (o->anyres.n && anyres_is_token(&o->anyres, token)) return true;
    return o->features && (token == o->token || (o->patches && token == o->video));
}

static uint32_t count_labels(const struct conversations *c, const struct stored_sample *x, struct byte_range part)
{
    struct labels l;
    uint32_t sum = 0;
    find_labels(c, x, part, &l);
    for (uint32_t k = 0; k < l.n; k++) {
        const struct byte_range r = clip(l.at[k], part);
        for (uint32_t t = r.begin; t < r.end; t++) sum += !is_image(c, c->store.ids[x->first + t]);
    }
    return sum;
}

/* --- which samples are used ------------------------------------------------------------------- */

static uint32_t count_image_tokens(const struct conversations *c, const struct stored_sample *x, struct byte_range part)
{
    uint32_t n = 0;
    for (uint32_t k = part.begin; k < part.end; k++) n += is_image(c, c->store.ids[x->first + k]);
    return n;
}

/* The image tokens of a sample that belong to videos, and to volumes, and how many volumes there
 * are. */
struct media_tokens {
    uint32_t frames, volumes, count[MODALITIES];
};

/* Counts those of the videos and volumes that begin in a part. */
static struct media_tokens count_media(const struct conversations *c, const struct stored_sample *x,
                                       struct byte_range part)
{
    const char *name = c->store.names + x->media;
    struct media_tokens n = {0};
    struct error ignored;
    const bool any = c->o.images.frame_features || c->o.images.modalities.n;
    for (uint32_t k = 0; k < x->n_media && any; k++, name += strlen(name) + 1) {
        const struct byte_range r = c->store.images[x->first_image + k];
        if (r.begin < part.begin || r.begin >= part.end) continue;
        const bool video = media_is_video(name), volume = media_is_volume(name);
        if (!video && !volume) continue;
        const struct byte_range inside = {r.begin, r.end < part.end ? r.end : part.end};
        const int modality = volume ? media_modality(&c->o.images.modalities, name, &ignored) : -1;
        *(video ? &n.frames : &n.volumes) += count_image_tokens(c, x, inside);
        if (modality >= 0) n.count[modality]++;
    }
    return n;
}

/* Counts the tiles and whole images of a part, and the frames of its videos. */
static void count_tiles(const struct conversations *c, const struct stored_sample *x, struct byte_range part,
                        struct row_size *size)
{
    const struct anyres *a = &c->o.images.anyres;
    const int32_t *ids = c->store.ids + x->first;
    struct anyres_shape shape;
    for (uint32_t k = part.begin; k < part.end;) {
        const bool image = anyres_is_token(a, ids[k]) && anyres_find(a, ids + k, part.end - k, &shape);
        if (image) size->images += (uint32_t)anyres_images(shape), size->frames += (uint32_t)shape.frames;
        k += image ? (uint32_t)anyres_tokens(a, shape) : 1;
    }
}

/* Returns what a part takes of a row. */
static struct row_size count_images(const struct conversations *c, const struct stored_sample *x,
                                    struct byte_range part)
{
    const struct image_rule *o = &c->o.images;
    struct row_size size = {.tokens = part.end - part.begin};
    if (!o->features) return size;
    if (o->anyres.n) return count_tiles(c, x, part, &size), size;
    const struct media_tokens n = count_media(c, x, part);
    size.images = (count_image_tokens(c, x, part) - n.frames - n.volumes) / o->features;
    if (n.frames) size.frames = n.frames / o->frame_features;
    memcpy(size.volumes, n.count, sizeof size.volumes);
    return size;
}

/* Returns the most volumes of one modality. */
static uint32_t most_volumes(const struct row_size *s)
{
    uint32_t most = 0;
    for (int k = 0; k < MODALITIES; k++) most = s->volumes[k] > most ? s->volumes[k] : most;
    return most;
}

static bool has_room(const struct conversations *c, struct row_size s)
{
    return s.images <= c->o.images.most && s.frames <= c->o.images.most_frames &&
           most_volumes(&s) <= c->o.images.most_volumes;
}

/* Returns the end of a part that is too long: that of the last answer that fits; its begin: none
 * does. */
static uint32_t cut_end(const struct conversations *c, const struct stored_sample *x, struct byte_range part)
{
    const uint32_t most = part.begin + (uint32_t)c->o.sequence;
    uint32_t end = part.begin;
    for (uint32_t i = 0; i < x->answers; i++) {
        const uint32_t at = c->store.answers[x->first_answer + i].end;
        if (at > end && at <= most) end = at;
    }
    return x->flags & STORED_PLAIN ? most : end;
}

/* Returns what is done with a sample that is longer than a row. */
static enum too_long too_long_of(const struct conversations *c, const struct stored_sample *x)
{
    if (c->o.too_long != TOO_LONG_AUTO) return c->o.too_long;
    return x->flags & STORED_PLAIN ? TOO_LONG_SPLIT : TOO_LONG_DROP;
}

static void count_cut(struct conversations *c, const struct stored_sample *x, uint32_t end)
{
    const bool text = x->flags & STORED_PLAIN;
    c->cut += !text;
    c->cut_texts += text;
    if (text) c->cut_tokens += x->tokens - end;
}

/* Returns whether the part is used. */
static bool use_part(struct conversations *c, uint64_t i, struct byte_range part)
{
    const struct stored_sample *x = &c->store.samples[i];
    const bool cut = part.end - part.begin > c->o.sequence && too_long_of(c, x) == TOO_LONG_CUT;
    if (cut) part.end = cut_end(c, x, part);
    const struct row_size size = count_images(c, x, part);
    if (!size.tokens || size.tokens > c->o.sequence) return c->too_long++, false;
    if (!has_room(c, size)) {
        if (size.images > c->o.images.most) c->too_many++;
        else if (size.frames > c->o.images.most_frames) c->too_many_frames++;
        else c->too_many_volumes++;
        return false;
    }
    const uint32_t labels = count_labels(c, x, part);
    if (!labels) return c->unlabelled++, false;
    vec_push(&c->used, ((struct used_sample){(uint32_t)i, part.begin, size}));
    if (cut) count_cut(c, x, part.end);
    c->chats += !part.begin && x->flags & STORED_CHAT;
    c->endless += !part.begin && x->flags & STORED_CHAT &&
                  !(x->flags & (c->o.train_on == TRAIN_ON_ALL ? STORED_TEXT_ENDS : STORED_ANSWER_ENDS));
    c->tokens += size.tokens;
    c->labels += labels;
    c->images += size.images;
    c->frames += size.frames;
    for (int k = 0; k < MODALITIES; k++) c->volumes += size.volumes[k];
    return true;
}

/* Returns the end of the part from `begin`: of a text, as many tokens as a row has; else as many
 * whole turns, each up to the end of an answer, as have room in a row; at least one turn. */
static uint32_t split_end(const struct conversations *c, const struct stored_sample *x, uint32_t begin)
{
    uint32_t end = x->tokens;
    bool first = true;
    if (x->flags & STORED_PLAIN) return (uint32_t)min_i64(begin + c->o.sequence, x->tokens);
    for (uint32_t i = 0; i < x->answers; i++) {
        const uint32_t at = i + 1 < x->answers ? c->store.answers[x->first_answer + i].end : x->tokens;
        if (at <= begin) continue;
        if (!first && (at - begin > c->o.sequence || !has_room(c, count_images(c, x, (struct byte_range){begin, at}))))
            break;
        end = at;
        first = false;
    }
    return end;
}

/* Decides which parts are used. `held`: by part, whether it is held out; NULL: none is. */
static bool use_parts(struct conversations *c, uint64_t i, const bool *held)
{
    const struct stored_sample *x = &c->store.samples[i];
    bool used = false;
    uint32_t k = 0;
    for (struct byte_range part = {0, 0}; part.begin < x->tokens; part.begin = part.end, k++) {
        part.end = split_end(c, x, part.begin);
        if (held && held[k] != c->o.held) continue;
        /* nothing predicts the first token of a row */
        if (x->flags & STORED_PLAIN && part.begin && part.end - part.begin == 1) continue;
        used |= use_part(c, i, part);
    }
    return used;
}

static void use_sample(struct conversations *c, uint64_t i, const bool *held)
{
    const struct stored_sample *x = &c->store.samples[i];
    const struct byte_range whole = {0, x->tokens};
    const struct row_size size = count_images(c, x, whole);
    const bool wide = !has_room(c, size) && c->o.images.too_many == TOO_MANY_SPLIT,
               longer = x->tokens > c->o.sequence && too_long_of(c, x) == TOO_LONG_SPLIT;
    if (x->tokens > c->longest) c->longest = x->tokens;
    if (size.images > c->most_images) c->most_images = size.images;
    if (size.frames > c->most_frames) c->most_frames = size.frames;
    if (most_volumes(&size) > c->most_volumes) c->most_volumes = most_volumes(&size);
    c->split += wide;
    c->split_long += !wide && longer && !(x->flags & STORED_PLAIN);
    c->samples += wide || longer ? use_parts(c, i, held) : use_part(c, i, whole);
}

/* Reports whether the samples are one text of several rows, which are held out instead of
 * samples. */
static bool is_one_text(const struct conversations *c)
{
    const struct token_store_header *h = c->store.header;
    return h->report.read == 1 && h->samples == 1 && c->store.samples[0].tokens > c->o.sequence &&
           c->store.samples[0].flags & STORED_PLAIN && too_long_of(c, c->store.samples) == TOO_LONG_SPLIT;
}

/* Returns the samples with images or videos, also those that cannot be used. */
static struct group_member *find_members(const struct token_store *s, uint64_t *n)
{
    const struct token_store_header *h = s->header;
    struct group_member *out = mem_alloc((h->samples + h->members + 1) * sizeof *out);
    *n = h->members;
    if (*n) memcpy(out, s->members, *n * sizeof *out);
    for (uint64_t i = 0; i < h->samples; i++)
        if (s->samples[i].group && s->samples[i].number < h->report.read)
            out[(*n)++] = (struct group_member){s->samples[i].group, s->samples[i].number};
    return out;
}

static void use_samples(struct conversations *c)
{
    const bool rows = is_one_text(c);
    const uint64_t read =
        rows ? (uint64_t)ceil_div(c->store.samples[0].tokens, c->o.sequence) : c->store.header->report.read;
    uint64_t taken = 0, n = 0;
    struct group_member *members = c->o.holdout > 0 ? find_members(&c->store, &n) : NULL;
    bool *held = holdout_mark(read, members, n, c->o.holdout, c->o.split_seed, &c->one_group);
    mem_free(members);
    for (uint64_t i = 0; i < c->store.header->samples; i++) {
        const uint64_t number = c->store.samples[i].number;
        if (i && c->store.samples[i].file != c->store.samples[i - 1].file) taken = 0;
        if (!rows && held && (number < read && held[number]) != c->o.held) continue;
        if (!c->o.max_samples || taken++ < c->o.max_samples) use_sample(c, i, rows ? held : NULL);
    }
    mem_free(held);
}

/* Refuses the first id beyond the vocabulary, but for that of images, which need not be in it. */
static int refuse_id(const struct conversations *c, struct error *e)
{
    for (uint64_t i = 0; i < c->store.header->samples; i++) {
        const struct stored_sample *x = &c->store.samples[i];
        for (uint32_t k = 0; k < x->tokens; k++)
            if (c->store.ids[x->first + k] >= c->o.vocabulary && !is_image(c, c->store.ids[x->first + k]))
                return error_set(e, PL_USAGE,
                                 "%s:%s: its token %u has the id %d, but the model's vocabulary has %lld ids: the "
                                 "tokenizer is another model's, or tokens were added to it and not to the model",
                                 c->store.names + x->file, record_place(x->line).text, k, c->store.ids[x->first + k],
                                 (long long)c->o.vocabulary);
    }
    return PL_OK;
}

/* Refuses a store with another image token, or whose images have another number of tokens: it was
 * made for another model. */
static int check_images(const struct conversations *c, struct error *e)
{
    const struct token_store_header *h = c->store.header;
    if (h->images && (!c->o.images.features || h->image_token != c->o.images.token))
        return error_set(e, PL_USAGE,
                         "its images have the image token %d, which is not this model's: make the store again",
                         h->image_token);
    for (uint64_t i = 0; i < c->store.header->samples && c->o.images.features && !c->o.images.anyres.n; i++) {
        const struct stored_sample *x = &c->store.samples[i];
        const struct media_tokens m = count_media(c, x, (struct byte_range){0, x->tokens});
        const uint32_t frames = m.frames,
                       n = count_image_tokens(c, x, (struct byte_range){0, x->tokens}) - frames - m.volumes;
        uint32_t volumes = 0;
        for (int k = 0; k < c->o.images.modalities.n; k++)
            volumes += m.count[k] * (uint32_t)c->o.images.modalities.at[k].tokens;
        if (volumes != m.volumes)
            return error_set(e, PL_USAGE, "%s:%s: its volumes have %u image tokens, and the model has %u for them",
                             c->store.names + x->file, record_place(x->line).text, m.volumes, volumes);
        if (frames && frames % c->o.images.frame_features)
            return error_set(e, PL_USAGE, "%s:%s: its videos have %u image tokens, and a frame has %u",
                             c->store.names + x->file, record_place(x->line).text, frames, c->o.images.frame_features);
        if (n % c->o.images.features)
            return error_set(e, PL_USAGE, "%s:%s: it has %u image tokens, and an image has %u",
                             c->store.names + x->file, record_place(x->line).text, n, c->o.images.features);
    }
    return PL_OK;
}

/* Checks a store before the samples are used: a table of billions of rows without a value is not
 * split. */
static int check_read(const struct conversations *c, struct error *e)
{
    const struct sample_report *r = &c->store.header->report;
    const uint64_t bad = report_bad(r);
    if (!r->read) return error_set(e, PL_USAGE, "the files have no samples");
    if ((double)bad > c->o.max_bad * (double)r->read || bad == r->read) {
        struct text t = {0};
        report_print(r, &t);
        if (bad < r->read)
            error_set(e, PL_USAGE, "%s. data.max_bad is %g; `plimsoll data inspect` shows samples", t.at, c->o.max_bad);
        else error_set(e, PL_USAGE, "%s", t.at);
        text_free(&t);
        return e->code;
    }
    return PL_OK;
}

static int check_used(const struct conversations *c, struct error *e)
{
    const struct sample_report *r = &c->store.header->report;
    if (c->o.vocabulary && c->store.header->largest >= c->o.vocabulary) return refuse_id(c, e);
    if (check_images(c, e)) return e->code;
    const bool left = c->too_long || c->too_many || c->too_many_frames || c->too_many_volumes || c->unlabelled;
    if (!c->used.n && !left && c->o.holdout > 0)
        return error_set(e, PL_USAGE, "data.holdout is %g of %llu samples, which leaves none %s", c->o.holdout,
                         (unsigned long long)r->read, c->o.held ? "to evaluate on" : "to train on");
    if (!c->used.n && c->too_long)
        return error_set(e, PL_USAGE,
                         "all %llu samples are longer than data.sequence, %lld tokens; the longest has %llu: set "
                         "data.sequence, or data.too_long: cut or split",
                         (unsigned long long)c->too_long, (long long)c->o.sequence, (unsigned long long)c->longest);
    const uint64_t unit = c->o.images.patches;
    if (!c->used.n && c->too_many && unit)
        return error_set(e, PL_USAGE,
                         "the images of all %llu samples have more patches than data.max_patches, which is %llu; the "
                         "most are %llu: set data.max_patches, or data.max_pixels, the pixels of an image",
                         (unsigned long long)c->too_many, (unsigned long long)(c->o.images.most * unit),
                         (unsigned long long)(c->most_images * unit));
    if (!c->used.n && c->too_many)
        return error_set(e, PL_USAGE,
                         "all %llu samples have more images than data.max_images, which is %u; the most are %llu: set "
                         "data.max_images, or data.too_many_images: split",
                         (unsigned long long)c->too_many, c->o.images.most, (unsigned long long)c->most_images);
    if (!c->used.n && c->too_many_frames)
        return error_set(e, PL_USAGE,
                         "all %llu samples have more frames of videos than data.max_frames, which is %u; the most are "
                         "%llu: set data.max_frames", (unsigned long long)c->too_many_frames, c->o.images.most_frames,
                         (unsigned long long)c->most_frames);
    if (!c->used.n && c->too_many_volumes)
        return error_set(e, PL_USAGE,
                         "all %llu samples have more volumes of a modality than data.max_volumes, which is %u; the "
                         "most are %llu: set data.max_volumes", (unsigned long long)c->too_many_volumes,
                         c->o.images.most_volumes, (unsigned long long)c->most_volumes);
    return c->used.n ? PL_OK : error_set(e, PL_USAGE, "no sample has a token to train on");
}

int conversations_open(struct conversations *c, const char *path, const struct conversations_options *o,
                       struct error *e)
{
    memset(c, 0, sizeof *c);
    c->o = *o;
    TRY(token_store_open(&c->store, path, e));
    c->path = mem_string(path);
    int rc = check_read(c, e);
    if (!rc) {
        use_samples(c);
        rc = check_used(c, e);
    }
    if (rc) {
        conversations_close(c);
        return rc;
    }
    struct row_size *sizes = mem_alloc(((size_t)c->used.n + 1) * sizeof *sizes);
    struct row_size most = {.tokens = (uint32_t)o->sequence, .images = o->images.most, .frames = o->images.most_frames};
    for (int k = 0; k < o->images.modalities.n; k++) most.volumes[k] = o->images.most_volumes;
    for (uint32_t i = 0; i < c->used.n; i++) sizes[i] = c->used.at[i].size;
    rows_pack(&c->rows, sizes, c->used.n, most, o->packing);
    mem_free(sizes);
    return PL_OK;
}

void conversations_close(struct conversations *c)
{
    rows_free(&c->rows);
    vec_free(&c->used);
    mem_free(c->path);
    token_store_close(&c->store);
    c->path = NULL;
}

/* --- a row ------------------------------------------------------------------------------------ */

static void pad_from(const struct conversations *c, uint32_t at, struct token_row *out)
{
    for (uint32_t t = at; t < c->o.sequence; t++) {
        out->ids[t] = c->o.padding;
        out->labels[t] = IGNORED;
        out->positions[t] = 0;
        out->ranges[2 * t] = out->ranges[2 * t + 1] = 0; /* sees nothing */
    }
}

static void put_sample(const struct conversations *c, const struct used_sample *u, uint32_t at, struct token_row *out)
{
    const struct stored_sample *x = &c->store.samples[u->sample];
    const int32_t *ids = c->store.ids + x->first + u->begin;
    struct labels l;
    for (uint32_t t = 0; t < u->size.tokens; t++) {
        out->ids[at + t] = ids[t];
        out->labels[at + t] = IGNORED;
        out->positions[at + t] = (int32_t)t;
        out->ranges[2 * (at + t)] = (int32_t)at;
        out->ranges[2 * (at + t) + 1] = (int32_t)(at + t + 1);
    }
    find_labels(c, x, part_of(u), &l);
    for (uint32_t k = 0; k < l.n; k++) {
        const struct byte_range r = clip(l.at[k], part_of(u));
        for (uint32_t t = r.begin - u->begin; t < r.end - u->begin; t++) {
            if (is_image(c, ids[t])) continue;
            out->labels[at + t] = ids[t];
            out->labelled++;
        }
    }
}

struct row_samples conversations_samples(const struct conversations *c, uint64_t row)
{
    CHECK(row < c->rows.n, "row %llu of %u", (unsigned long long)row, c->rows.n);
    return (struct row_samples){c->rows.samples + c->rows.first[row], c->rows.first[row + 1] - c->rows.first[row]};
}

void conversations_fill(const struct conversations *c, struct row_samples samples, struct token_row *out)
{
    out->tokens = out->labelled = 0;
    for (uint32_t k = 0; k < samples.n; k++) {
        const struct used_sample *u = &c->used.at[samples.at[k]];
        put_sample(c, u, out->tokens, out);
        out->tokens += u->size.tokens;
    }
    pad_from(c, out->tokens, out);
}

struct sample_image conversations_image(const struct conversations *c, const struct used_sample *u, uint32_t nth)
{
    const struct stored_sample *x = &c->store.samples[u->sample];
    const char *name = c->store.names + x->media;
    uint32_t before = 0;
    for (uint32_t k = 0; k < x->n_media; k++, name += strlen(name) + 1) {
        const struct byte_range r = c->store.images[x->first_image + k];
        if (r.begin < u->begin || media_is_volume(name) || (!c->o.images.patches && media_is_video(name))) continue;
        const struct sample_image image = {name, count_images(c, x, r).images};
        if (before == nth && image.count) return image;
        before += image.count;
    }
    return (struct sample_image){"", 1};
}

bool conversations_media(const struct conversations *c, const struct used_sample *u, uint32_t nth,
                         struct sample_media *out)
{
    const struct stored_sample *x = &c->store.samples[u->sample];
    const char *name = c->store.names + x->media;
    struct error ignored;
    for (uint32_t k = 0; k < x->n_media; k++, name += strlen(name) + 1) {
        const struct byte_range r = c->store.images[x->first_image + k];
        const bool volume = media_is_volume(name);
        if ((!volume && !media_is_video(name)) || r.begin < u->begin || r.end > u->begin + u->size.tokens || nth--)
            continue;
        *out = (struct sample_media){name, count_images(c, x, r).frames,
                                     volume ? media_modality(&c->o.images.modalities, name, &ignored) : -1,
                                     {r.begin - u->begin, r.end - u->begin}};
        return true;
    }
    return false;
}

int conversations_check(const struct conversations *c, struct error *e)
{
    return token_store_check(&c->store, c->path, e);
}

int conversations_read(const struct conversations *c, uint64_t row, struct token_row *out, struct error *e)
{
    conversations_fill(c, conversations_samples(c, row), out);
    return conversations_check(c, e);
}

void conversations_pad(const struct conversations *c, struct token_row *out)
{
    out->tokens = out->labelled = 0;
    pad_from(c, 0, out);
}

uint64_t conversations_fingerprint(const struct conversations *c)
{
    const struct token_store_header *h = c->store.header;
    const uint64_t facts[] = {h->tokens_sum, h->index_sum,  h->tokens,   (uint64_t)c->o.sequence,
                              c->o.train_on, c->o.too_long, c->o.packing};
    uint64_t hash = hash_bytes(facts, sizeof facts, 0);
    if (c->o.holdout > 0) hash = hash_bytes(&c->o.holdout, sizeof c->o.holdout, hash ^ c->o.split_seed);
    if (c->o.max_samples) hash = hash_bytes(&c->o.max_samples, sizeof c->o.max_samples, hash);
    if (c->o.images.features) {
        const uint64_t images[] = {c->o.images.features, c->o.images.most, c->o.images.too_many};
        hash = hash_bytes(images, sizeof images, hash);
        if (c->o.images.frame_features)
            hash = hash_bytes((const uint32_t[]){c->o.images.frame_features, c->o.images.most_frames},
                              2 * sizeof(uint32_t), hash);
        if (c->o.images.modalities.n) hash = hash_bytes(&c->o.images.most_volumes, sizeof(uint32_t), hash);
    }
    return hash ? hash : 1;
}

void conversations_print_left(const struct conversations *c, struct text *out)
{
    report_print(&c->store.header->report, out);
    if (c->too_long)
        text_printf(out, "%s%llu %s longer than data.sequence (%lld tokens; the longest has %llu) and left out%s",
                    out->n ? ". " : "", (unsigned long long)c->too_long, c->too_long == 1 ? "sample is" : "samples are",
                    (long long)c->o.sequence, (unsigned long long)c->longest,
                    c->o.too_long == TOO_LONG_CUT     ? ": no answer ends within it"
                    : c->o.too_long == TOO_LONG_SPLIT ? ": a single turn is longer"
                                                      : "; data.too_long: cut keeps the turns that fit, split all");
    if (c->cut)
        text_printf(out, "%s%llu %s longer than data.sequence and cut after the last answer that fits",
                    out->n ? ". " : "", (unsigned long long)c->cut, c->cut == 1 ? "sample is" : "samples are");
    if (c->cut_texts)
        text_printf(out,
                    "%s%llu %s longer than data.sequence and cut: %llu of %llu tokens are left out; data.too_long: "
                    "split keeps them",
                    out->n ? ". " : "", (unsigned long long)c->cut_texts, c->cut_texts == 1 ? "text is" : "texts are",
                    (unsigned long long)c->cut_tokens, (unsigned long long)(c->tokens + c->cut_tokens));
    if (c->split_long)
        text_printf(out, "%s%llu %s longer than data.sequence and split at turns", out->n ? ". " : "",
                    (unsigned long long)c->split_long, c->split_long == 1 ? "sample is" : "samples are");
    const uint64_t unit = c->o.images.patches;
    if (c->too_many && unit)
        text_printf(out, "%s%llu %s images of more patches than data.max_patches (%llu; the most are %llu) and %s left "
                    "out; data.max_pixels makes images smaller", out->n ? ". " : "", (unsigned long long)c->too_many,
                    c->too_many == 1 ? "sample has" : "samples have", (unsigned long long)(c->o.images.most * unit),
                    (unsigned long long)(c->most_images * unit), c->too_many == 1 ? "is" : "are");
    else if (c->too_many)
        text_printf(out, "%s%llu %s more images than data.max_images (%u; the most are %llu) and %s left out%s",
                    out->n ? ". " : "", (unsigned long long)c->too_many,
                    c->too_many == 1 ? "sample has" : "samples have", c->o.images.most,
                    (unsigned long long)c->most_images, c->too_many == 1 ? "is" : "are",
                    c->o.images.too_many == TOO_MANY_SPLIT ? ": a single turn has more"
                                                           : "; data.too_many_images: split makes several of each");
    if (c->too_many_frames)
        text_printf(out, "%s%llu %s more frames of videos than data.max_frames (%u; the most are %llu) and %s left out",
                    out->n ? ". " : "", (unsigned long long)c->too_many_frames,
                    c->too_many_frames == 1 ? "sample has" : "samples have", c->o.images.most_frames,
                    (unsigned long long)c->most_frames, c->too_many_frames == 1 ? "is" : "are");
    if (c->too_many_volumes)
        text_printf(out, "%s%llu %s more volumes of a modality than data.max_volumes (%u; the most are %llu) and %s "
                    "left out", out->n ? ". " : "", (unsigned long long)c->too_many_volumes,
                    c->too_many_volumes == 1 ? "sample has" : "samples have", c->o.images.most_volumes,
                    (unsigned long long)c->most_volumes, c->too_many_volumes == 1 ? "is" : "are");
    if (c->split)
        text_printf(out, "%s%llu %s more images than data.max_images and %s split at turns", out->n ? ". " : "",
                    (unsigned long long)c->split, c->split == 1 ? "sample has" : "samples have",
                    c->split == 1 ? "is" : "are");
    if (c->unlabelled)
        text_printf(out, "%s%llu %s no token to train on", out->n ? ". " : "", (unsigned long long)c->unlabelled,
                    c->unlabelled == 1 ? "sample has" : "samples have");
}
