/*
 * match.c: see match.h.
 *
 * Prefixes and suffixes are found by a vote: a sample of the masks is compared with all images of
 * the same subfolder. The images that have the longest part in common with a mask vote for the rest
 * of both names. The choices with the most votes are then tried on all files.
 */
#include "data/detect/match.h"

#include <ctype.h>

#include "data/volumes/volume.h"
#include "io/file.h"

enum { VOTERS = 48, CHOICES = 4096, TRIED = 8, DEPTH = 8 };

/* --- files ------------------------------------------------------------------------------- */

static bool is_jpeg_name(const char *name) { return path_has_ending(name, ".jpg") || path_has_ending(name, ".jpeg"); }
bool is_image_name(const char *name)
{
    return is_jpeg_name(name) || path_has_ending(name, ".png") || path_has_ending(name, ".webp") ||
           is_volume_name(name, NULL);
}

/* Returns the length of a name without its ending, which may be .nii.gz. */
static size_t stem_length(const char *name)
{
    size_t ending;
    const char *dot = strrchr(name, '.');
    if (is_volume_name(name, &ending)) return strlen(name) - ending;
    return dot ? (size_t)(dot - name) : strlen(name);
}

static char *join_path(const char *folder, const char *name)
{
    struct text t = {0};
    text_printf(&t, "%s%s%s", folder, *folder ? "/" : "", name);
    return t.at;
}

static int read_folder(struct image_tree *t, const char *root, const char *below, const char *skip, int depth,
                       struct error *e)
{
    struct names l;
    char *folder = *below ? join_path(root, below) : mem_string(root);
    int rc = dir_list(folder, &l, e);
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        if (l.at[i][0] == '.') continue;
        char *path = join_path(below, l.at[i]), *full = join_path(folder, l.at[i]);
        const struct unread *u = unread_by_name(path);
        if (is_image_name(path) || is_dicom_folder(full)) {
            struct image_file f = {.path = path, .base = *below ? (uint32_t)strlen(below) + 1 : 0,
                                   .stem = (uint32_t)stem_length(path)};
            vec_push(&t->files, f);
            path = NULL;
        } else if (u) {
            if (!t->unread) t->unread = u, t->unread_example = mem_string(path);
            t->n_unread += u == t->unread;
        } else if (depth && !(skip && !strcmp(skip, path)) && strcmp(l.at[i], "__MACOSX") && dir_exists(full)) {
            rc = read_folder(t, root, path, skip, depth - 1, e);
        }
        mem_free(path);
        mem_free(full);
    }
    names_free(&l);
    mem_free(folder);
    return rc;
}

int image_tree_read(struct image_tree *t, const char *folder, const char *skip, struct error *e)
{
    *t = (struct image_tree){0};
    return read_folder(t, folder, "", skip, DEPTH, e);
}

void image_tree_free(struct image_tree *t)
{
    for (uint32_t i = 0; i < t->files.n; i++) mem_free(t->files.at[i].path);
    vec_free(&t->files);
    mem_free(t->unread_example);
    *t = (struct image_tree){0};
}

int image_paths(struct names *out, const struct names *paths, struct error *e)
{
    struct image_tree t;
    for (uint32_t i = 0; i < paths->n; i++) {
        if (!dir_exists(paths->at[i])) {
            vec_push(out, mem_string(paths->at[i]));
            continue;
        }
        int rc = image_tree_read(&t, paths->at[i], NULL, e);
        for (uint32_t k = 0; k < t.files.n && !rc; k++)
            vec_push(out, path_join(paths->at[i], t.files.at[k].path));
        image_tree_free(&t);
        if (rc) return rc;
    }
    return out->n ? PL_OK : error_set(e, PL_USAGE, "no image is given: add JPEG, PNG or WebP files, or a folder");
}

/* --- usual names --------------------------------------------------------------------------- */

static bool contains(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcasestr(s, *words)) return true;
    return false;
}

bool names_masks(const char *name, size_t n)
{
    static const char *const parts[] = {"mask", "label", "segm", "truth", "annot", "manual", "trimap", NULL};
    static const char *const words[] = {"gt", "seg", "segs", "ann", "anno", "lbl", "lbls"};
    char copy[256];
    snprintf(copy, sizeof copy, "%.*s", (int)(n < sizeof copy ? n : sizeof copy - 1), name);
    if (contains(copy, parts)) return true;
    for (char *at = copy; *at;) { /* words of letters, cut where an upper case letter follows a lower case one */
        size_t length = 0;
        while (isalpha((unsigned char)at[length]) &&
               !(length && isupper((unsigned char)at[length]) && islower((unsigned char)at[length - 1])))
            length++;
        for (size_t i = 0; i < COUNT(words); i++)
            if (strlen(words[i]) == length && !strncasecmp(at, words[i], length)) return true;
        at += length ? length : 1;
    }
    return false;
}

int masks_rank(const char *name)
{
    static const char *const later[] = {"instance", "object", "color",   "colour", "visual",
                                        "overlay",  "coarse", "trainid", "human",  NULL};
    return contains(name, later);
}

/* --- joining ------------------------------------------------------------------------------- */

struct keyed {
    const char *key;
    uint32_t file;
};
struct keys {
    VEC(struct keyed) at;
};

static bool has_affixes(const struct image_file *f, const char *prefix, const char *suffix)
{
    size_t n = f->stem - f->base, p = strlen(prefix), s = strlen(suffix);
    return n > p + s && !memcmp(f->path + f->base, prefix, p) && !memcmp(f->path + f->stem - s, suffix, s);
}

static const char *core_key(struct bump *b, const struct image_file *f, const char *prefix, const char *suffix)
{
    size_t p = strlen(prefix), n = f->stem - f->base - p - strlen(suffix);
    char *key = bump_alloc(b, f->base + n + 1);
    memcpy(key, f->path, f->base);
    memcpy(key + f->base, f->path + f->base + p, n);
    key[f->base + n] = 0;
    return key;
}

static bool no_affixes(const struct affixes *a, bool mask)
{
    return !*a->at[mask ? MASK_PREFIX : IMAGE_PREFIX] && !*a->at[mask ? MASK_SUFFIX : IMAGE_SUFFIX];
}

/* Reports whether a file is an image, or a mask. In a common folder a file is one of them: where
 * neither has a prefix or suffix, JPEGs are the images and PNGs the masks. */
static bool is_kind(const struct image_file *f, const struct affixes *a, bool mask, bool common)
{
    bool as_image = has_affixes(f, a->at[IMAGE_PREFIX], a->at[IMAGE_SUFFIX]),
         as_mask = has_affixes(f, a->at[MASK_PREFIX], a->at[MASK_SUFFIX]);
    if (!common) return mask ? as_mask : as_image;
    if (no_affixes(a, true) && no_affixes(a, false)) return is_jpeg_name(f->path) != mask;
    if (mask) return as_mask && !(no_affixes(a, true) && as_image);
    return as_image && !(!no_affixes(a, true) && as_mask);
}

static int compare_keys(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;
    int c = strcmp(a->key, b->key);
    return c ? c : a->file < b->file ? -1 : a->file > b->file;
}

/* Reports whether a suffix is that of nnU-Net's files of one case: _0000, _0001, ..., one per
 * modality. */
static bool is_modality(const char *at, size_t n)
{
    for (size_t i = 1; i < n && n == 5; i++)
        if (!isdigit((unsigned char)at[i])) return false;
    return n == 5 && *at == '_';
}

static bool is_other_modality(const struct image_file *f, const char *suffix)
{
    return f->stem - f->base > 5 && is_modality(suffix, strlen(suffix)) && is_modality(f->path + f->stem - 5, 5);
}

static void make_keys(struct match *m, struct keys *k, const struct image_tree *t, const struct affixes *a, bool mask,
                      bool common)
{
    const char *prefix = a->at[mask ? MASK_PREFIX : IMAGE_PREFIX], *suffix = a->at[mask ? MASK_SUFFIX : IMAGE_SUFFIX];
    for (uint32_t i = 0; i < t->files.n; i++) {
        const struct image_file *f = &t->files.at[i];
        bool more = mask && a->optional && has_affixes(f, "", "_mask");
        if (!is_kind(f, a, mask, common)) {
            if (!mask && is_other_modality(f, suffix)) continue;
            if (!common && !m->others[mask]++) m->first_other[mask] = i;
            if (common && mask && !is_kind(f, a, false, true) && !m->others[0]++) m->first_other[0] = i;
            continue;
        }
        struct keyed new = {core_key(&m->keys, f, prefix, more ? "_mask" : suffix), i};
        vec_push(&k->at, new);
    }
    if (k->at.n) qsort(k->at.at, k->at.n, sizeof *k->at.at, compare_keys);
}

static void leave_alone(struct match *m, bool mask, uint32_t file)
{
    if (!m->alone[mask]++) m->first_alone[mask] = file;
}

void match_join(struct match *m, const struct image_tree *images, const struct image_tree *masks,
                const struct affixes *a)
{
    struct keys ik = {0}, mk = {0};
    *m = (struct match){0};
    make_keys(m, &ik, images, a, false, images == masks);
    make_keys(m, &mk, masks, a, true, images == masks);
    for (uint32_t i = 0, k = 0; i < ik.at.n || k < mk.at.n;) {
        int c = i == ik.at.n ? 1 : k == mk.at.n ? -1 : strcmp(ik.at.at[i].key, mk.at.at[k].key);
        if (c < 0) leave_alone(m, false, ik.at.at[i++].file);
        else if (c > 0) leave_alone(m, true, mk.at.at[k++].file);
        else {
            struct matched pair = {ik.at.at[i].file, mk.at.at[k].file, ik.at.at[i].key};
            vec_push(&m->pairs, pair);
            for (i++; i < ik.at.n && !strcmp(ik.at.at[i].key, pair.key); i++) m->duplicates++;
            for (k++; k < mk.at.n && !strcmp(mk.at.at[k].key, pair.key); k++) m->duplicates++;
        }
    }
    vec_free(&ik.at);
    vec_free(&mk.at);
}

void match_free(struct match *m)
{
    vec_free(&m->pairs);
    bump_free(&m->keys);
    *m = (struct match){0};
}

uint64_t match_count(const struct image_tree *images, const struct image_tree *masks, const struct affixes *a)
{
    struct match m;
    match_join(&m, images, masks, a);
    uint64_t n = m.pairs.n;
    match_free(&m);
    return n;
}

static void print_count(struct text *out, uint64_t n, const char *one, const char *many, const char *what,
                        const char *example)
{
    if (!n) return;
    text_printf(out, "%s%llu %s %s", out->n ? ", " : "", (unsigned long long)n, n == 1 ? one : many, what);
    if (example) text_printf(out, " (%s%s)", n == 1 ? "" : "such as ", example);
}

void match_print(const struct match *m, const struct image_tree *images, const struct image_tree *masks,
                 struct text *out)
{
    const struct image_tree *const trees[] = {images, masks};
    for (int k = 0; k < 2; k++) {
        const char *alone = m->alone[k] ? trees[k]->files.at[m->first_alone[k]].path : NULL,
                   *other = m->others[k] ? trees[k]->files.at[m->first_other[k]].path : NULL;
        print_count(out, m->alone[k], k ? "mask has" : "image has", k ? "masks have" : "images have",
                    k ? "no image" : "no mask", alone);
        print_count(out, m->others[k], k ? "file of the masks has" : "file of the images has",
                    k ? "files of the masks have" : "files of the images have", "another prefix or suffix", other);
    }
    print_count(out, m->duplicates, "file has", "files have", "the name of another one", NULL);
}

int match_refuse(const struct image_tree *images, const char *images_name, const struct image_tree *masks,
                 const char *masks_name, struct error *e)
{
    for (int k = 0; k < 2; k++) {
        const struct image_tree *t = k ? masks : images;
        const char *name = k ? masks_name : images_name;
        if (t->unread) return unread_refuse(t->unread, t->n_unread, name, t->unread_example, e);
        if (!t->files.n)
            return error_set(e, PL_USAGE, "there is no %s (.jpg, .jpeg, .png or .webp) in %s", k ? "mask" : "image",
                             name);
    }
    if (images == masks)
        return error_set(e, PL_USAGE,
                         "no image in %s has a mask beside it, such as a.jpg and a_mask.png (the first file is %s); "
                         "data.mask_suffix and data.mask_prefix say how masks are named",
                         images_name, images->files.at[0].path);
    return error_set(e, PL_USAGE,
                     "no image in %s has a mask in %s: the names differ (the first are %s and %s); data.image_prefix, "
                     "image_suffix, mask_prefix and mask_suffix remove what differs",
                     images_name, masks_name, images->files.at[0].path, masks->files.at[0].path);
}

/* --- finding prefixes and suffixes ------------------------------------------------------------ */

struct choice {
    struct affixes affixes;
    uint32_t votes;
    uint64_t pairs;
};
struct vote {
    VEC(struct choice) choices;
};

struct span {
    const char *at;
    size_t n;
};

static bool put(struct affixes *a, enum affix which, const char *at, size_t n)
{
    if (n >= AFFIX_ROOM) return false;
    memcpy(a->at[which], at, n);
    return true;
}

/* Reports whether a number would be cut: 1 is not a part of 12. */
static bool cuts_number(struct span whole, size_t at)
{
    return at && at < whole.n && isdigit((unsigned char)whole.at[at - 1]) && isdigit((unsigned char)whole.at[at]);
}

/* Returns the position of `part` in `whole`: at its beginning, at its end, or in between; whole.n:
 * none. */
static size_t find(struct span whole, struct span part)
{
    if (part.n > whole.n) return whole.n;
    size_t last = whole.n - part.n;
    for (size_t k = 0; k <= last + 1; k++) {
        size_t at = k == 0 ? 0 : k == 1 ? last : k - 1;
        if (!memcmp(whole.at + at, part.at, part.n) && !cuts_number(whole, at) && !cuts_number(whole, at + part.n))
            return at;
    }
    return whole.n;
}

static bool is_separator(char c) { return c == '_' || c == '-' || c == '.' || c == ' '; }

/* Returns the length of the common beginning of both names. Neither a word nor a number is cut, and
 * separators belong to the rest. */
static size_t common_begin(struct span a, struct span b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.at[n] == b.at[n]) n++;
    while (n && ((isalpha((unsigned char)a.at[n - 1]) && n < a.n && n < b.n && isalpha((unsigned char)a.at[n]) &&
                  isalpha((unsigned char)b.at[n])) ||
                 cuts_number(a, n) || cuts_number(b, n)))
        n--;
    while (n && is_separator(a.at[n - 1])) n--;
    return n;
}

static size_t common_end(struct span a, struct span b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.at[a.n - 1 - n] == b.at[b.n - 1 - n]) n++;
    while (n && ((isalpha((unsigned char)a.at[a.n - n]) && n < a.n && n < b.n &&
                  isalpha((unsigned char)a.at[a.n - n - 1]) && isalpha((unsigned char)b.at[b.n - n - 1])) ||
                 cuts_number(a, a.n - n) || cuts_number(b, b.n - n)))
        n--;
    while (n && is_separator(a.at[a.n - n])) n--;
    return n;
}

static bool has_letter(const char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isalpha((unsigned char)at[i])) return true;
    return false;
}

/* Splits both names around their common part; returns its length, 0 for none. */
static size_t relate(struct span image, struct span mask, struct affixes *a)
{
    *a = (struct affixes){0};
    size_t in_mask = find(mask, image), in_image = find(image, mask);
    if (in_mask < mask.n) {
        size_t end = in_mask + image.n;
        return put(a, MASK_PREFIX, mask.at, in_mask) && put(a, MASK_SUFFIX, mask.at + end, mask.n - end) ? image.n : 0;
    }
    if (in_image < image.n) {
        size_t end = in_image + mask.n;
        return put(a, IMAGE_PREFIX, image.at, in_image) && put(a, IMAGE_SUFFIX, image.at + end, image.n - end) ? mask.n
                                                                                                               : 0;
    }
    size_t begin = common_begin(image, mask), end = common_end(image, mask);
    /* what both have is their beginning; what differs must be words: 2007_1 is not the mask of
     * 2012_1 */
    bool first = begin >= end;
    if (!has_letter(image.at + (first ? begin : 0), image.n - (first ? begin : end)) ||
        !has_letter(mask.at + (first ? begin : 0), mask.n - (first ? begin : end)))
        return 0;
    if (first)
        return put(a, IMAGE_SUFFIX, image.at + begin, image.n - begin) &&
                       put(a, MASK_SUFFIX, mask.at + begin, mask.n - begin)
                   ? begin
                   : 0;
    return put(a, IMAGE_PREFIX, image.at, image.n - end) && put(a, MASK_PREFIX, mask.at, mask.n - end) ? end : 0;
}

static bool same_affixes(const struct affixes *a, const struct affixes *b)
{
    for (int i = 0; i < AFFIXES; i++)
        if (strcmp(a->at[i], b->at[i])) return false;
    return a->optional == b->optional;
}

static void count_vote(struct vote *v, const struct affixes *a)
{
    for (uint32_t i = 0; i < v->choices.n; i++)
        if (same_affixes(&v->choices.at[i].affixes, a)) {
            v->choices.at[i].votes++;
            return;
        }
    if (v->choices.n < CHOICES) vec_push(&v->choices, ((struct choice){*a, 1, 0}));
}

static struct span stem_of(const struct image_file *f) { return (struct span){f->path + f->base, f->stem - f->base}; }

static bool same_folder(const struct image_file *a, const struct image_file *b)
{
    return a->base == b->base && !memcmp(a->path, b->path, a->base);
}

/* Relates two files; returns the length of their common part. In a common folder a word must tell
 * the mask from the image; beside a JPEG, a PNG with any suffix is a mask (CHASE_DB1:
 * Image_01L.jpg, Image_01L_1stHO.png). */
static size_t relate_files(const struct image_file *image, const struct image_file *mask, bool common,
                           struct affixes *a)
{
    if (!same_folder(image, mask) || (common && image == mask)) return 0;
    size_t core = relate(stem_of(image), stem_of(mask), a);
    if (!core || !common) return core;
    for (int i = 0; i < AFFIXES; i++)
        if (names_masks(a->at[i], strlen(a->at[i])) && i < MASK_PREFIX) return 0;
    if (is_jpeg_name(image->path) && !is_jpeg_name(mask->path) && !*a->at[IMAGE_PREFIX] && !*a->at[IMAGE_SUFFIX] &&
        !*a->at[MASK_PREFIX] && *a->at[MASK_SUFFIX])
        return core;
    return names_masks(a->at[MASK_PREFIX], strlen(a->at[MASK_PREFIX])) ||
                   names_masks(a->at[MASK_SUFFIX], strlen(a->at[MASK_SUFFIX]))
               ? core
               : 0;
}

static void vote(struct vote *v, const struct image_tree *images, const struct image_file *mask, bool common)
{
    size_t most = 0;
    struct affixes a;
    for (int count = 0; count < 2; count++)
        for (uint32_t i = 0; i < images->files.n; i++) {
            size_t core = relate_files(&images->files.at[i], mask, common, &a);
            if (core > most && !count) most = core;
            if (core && core == most && count) count_vote(v, &a);
        }
}

static int most_votes(const void *pa, const void *pb)
{
    const struct choice *a = pa, *b = pb;
    return a->votes != b->votes ? (a->votes < b->votes ? 1 : -1) : memcmp(&a->affixes, &b->affixes, sizeof a->affixes);
}

static int refuse_choice(const struct choice *a, const struct choice *b, const struct image_tree *images,
                         struct error *e)
{
    static const char *const keys[AFFIXES] = {"image_prefix", "image_suffix", "mask_prefix", "mask_suffix"};
    static const char *const options[AFFIXES] = {"image-prefix", "image-suffix", "mask-prefix", "mask-suffix"};
    int k = 0;
    while (k + 1 < AFFIXES && !strcmp(a->affixes.at[k], b->affixes.at[k])) k++;
    return error_set(e, PL_USAGE,
                     "the names fit in two ways, %llu files each: with data.%s %s, or with %s; set data.%s (--%s of "
                     "init; the first image is %s)",
                     (unsigned long long)a->pairs, keys[k], *a->affixes.at[k] ? a->affixes.at[k] : "\"\"",
                     *b->affixes.at[k] ? b->affixes.at[k] : "\"\"", keys[k], options[k], images->files.at[0].path);
}

/* Chooses by the number of pairs; among equals plain names come first, then the usual masks. */
static int choose(struct vote *v, uint32_t tried, const struct image_tree *images, struct choice *best, struct error *e)
{
    const struct choice *equal = NULL;
    for (uint32_t i = 0; i < tried; i++) {
        const struct choice *c = &v->choices.at[i];
        bool plain = no_affixes(&best->affixes, false) && no_affixes(&best->affixes, true);
        int order = masks_rank(c->affixes.at[MASK_SUFFIX]) - masks_rank(best->affixes.at[MASK_SUFFIX]);
        if (c->pairs < best->pairs || !c->pairs || same_affixes(&c->affixes, &best->affixes) ||
            (c->pairs == best->pairs && (plain || order > 0)))
            continue;
        if (c->pairs == best->pairs && !order) {
            const char *a = best->affixes.at[IMAGE_SUFFIX], *b = c->affixes.at[IMAGE_SUFFIX];
            const bool modalities = is_modality(a, strlen(a)) && is_modality(b, strlen(b));
            if (modalities && strcmp(b, a) < 0) *best = *c; /* the first modality of a case */
            else if (!modalities) equal = c;
            continue;
        }
        *best = *c;
        equal = NULL;
    }
    return equal ? refuse_choice(best, equal, images, e) : PL_OK;
}

int match_find(const struct image_tree *images, const struct image_tree *masks, struct affixes *a, uint64_t *n,
               struct error *e)
{
    struct vote v = {0};
    bool common = images == masks;
    uint32_t most = VOTERS * (common ? 4 : 1), voters = masks->files.n < most ? masks->files.n : most;
    uint64_t fewest = (images->files.n < masks->files.n ? images->files.n : masks->files.n) / (common ? 2 : 1);
    struct choice best = {.affixes.optional = !common}, stated = {.affixes.at[MASK_SUFFIX] = "_mask"};
    best.pairs = match_count(images, masks, &best.affixes);
    /* every mask has it: state it */
    if (!common && best.pairs && match_count(images, masks, &stated.affixes) == best.pairs)
        best.affixes = stated.affixes;
    if (best.pairs == fewest) voters = 0; /* no other choice gives more */
    for (uint32_t i = 0; i < voters; i++)
        vote(&v, images, &masks->files.at[(uint64_t)i * masks->files.n / voters], common);
    if (v.choices.n) qsort(v.choices.at, v.choices.n, sizeof *v.choices.at, most_votes);
    uint32_t tried = v.choices.n < TRIED ? v.choices.n : TRIED;
    for (uint32_t i = 0; i < tried; i++) {
        struct choice *c = &v.choices.at[i];
        c->pairs = match_count(images, masks, &c->affixes);
        if (c->pairs * 2 < fewest) c->pairs = 0; /* a coincidence of some names */
    }
    int rc = choose(&v, tried, images, &best, e);
    *a = best.affixes;
    *n = best.pairs;
    vec_free(&v.choices);
    return rc;
}
