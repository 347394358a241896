/*
 * layout.c: see layout.h.
 *
 * 1. Every folder with images gets a kind (images, masks, unknown) and a part (train, validation,
 *    test, none) from the words in its path; the deepest word counts. Subfolders without such words
 *    (cities, patients) belong to the folder above.
 * 2. In each part every folder of images is joined with every folder of masks; the pair with the
 *    most samples is used. Without a folder of masks, masks may be in the folder of the images.
 * 3. `train`, or else the folders without a part, is trained on; `validation`, or else `test`, is
 *    evaluated on.
 */
#include "data/detect/layout.h"

#include <ctype.h>
#include <strings.h>

#include "data/volumes/volume.h"
#include "io/file.h"

enum { DEPTH = 6, FOLDERS = 24, TEXTS = 8 };
enum layout_kind { UNKNOWN, IMAGES, MASKS };
enum part { NONE, TRAIN, VALIDATION, TEST, PARTS };

/* --- the words of a path ---------------------------------------------------------------------- */

static bool is_word(const char *at, size_t n, const char *words)
{
    for (const char *w = words + 1; *w;) {
        size_t m = strcspn(w, " ");
        if (m == n && !strncasecmp(at, w, n)) return true;
        w += m + 1;
    }
    return false;
}

#define IMAGE_WORDS                                                                                                    \
    " image images img imgs jpegimages input inputs photo photos original originals data rgb frames scans slices "

/* Returns the length of the next word of letters in [*at, end); "imagesTr" has two. */
static size_t next_word(const char **at, const char *end)
{
    while (*at < end && !isalpha((unsigned char)**at)) ++*at;
    size_t n = 0;
    while (*at + n < end && isalpha((unsigned char)(*at)[n]) &&
           !(n && isupper((unsigned char)(*at)[n]) && islower((unsigned char)(*at)[n - 1])))
        n++;
    return n;
}

/* Returns the length of the part in a word: trainannot, valmasks and testimages have one in front
 * (CamVid). */
static size_t part_length(const char *at, size_t n)
{
    static const char *const parts[] = {"train", "val", "test"};
    for (size_t i = 0; i < COUNT(parts); i++) {
        size_t m = strlen(parts[i]);
        if (n > m && !strncasecmp(at, parts[i], m) &&
            (names_masks(at + m, n - m) || is_word(at + m, n - m, IMAGE_WORDS)))
            return m;
    }
    return n;
}

static enum part part_of(const char *name, size_t n)
{
    const char *end = name + n;
    enum part found = NONE;
    for (const char *at = name; at < end;) {
        size_t k = next_word(&at, end);
        size_t n_part = part_length(at, k);
        if (is_word(at, n_part, " train training trn tr ")) found = TRAIN;
        if (is_word(at, n_part, " val valid validation dev ")) found = VALIDATION;
        if (is_word(at, n_part, " test testing tst ts te ")) found = TEST;
        at += k;
    }
    return found;
}

static enum layout_kind kind_of(const char *name, size_t n)
{
    const char *end = name + n;
    if (names_masks(name, n)) return MASKS;
    for (const char *at = name; at < end;) {
        size_t k = next_word(&at, end);
        size_t m = part_length(at, k);
        if (is_word(at, k, IMAGE_WORDS) || is_word(at + m, k - m, IMAGE_WORDS)) return IMAGES;
        at += k;
    }
    return UNKNOWN;
}

/* --- folders ---------------------------------------------------------------------------------- */

struct seen_folder {
    char *path; /* relative; "." is the root */
    enum layout_kind kind;
    enum part part;
    struct image_tree tree;
    bool read;
};
struct search {
    const char *root;
    struct bump *memory; /* of the result and of all paths */
    const struct affixes *given; /* NULL: find them */
    VEC(struct seen_folder) folders;
    const struct unread *unread;
    uint64_t n_unread, images;
    const char *unread_example;
    const char *plain_example; /* the first file without an ending */
    const char *yolo_example;
    const char *other_example; /* the first file that may hold annotations: .json, .xml, .csv, .tsv */
    int texts;                 /* .txt files that were looked into */
};

static char *join_path(struct bump *b, const char *folder, const char *name)
{
    if (!strcmp(name, ".")) return bump_string(b, folder);
    return *folder && strcmp(folder, ".") ? bump_format(b, "%s/%s", folder, name) : bump_string(b, name);
}

/* Returns the length of the common folder of two relative paths: 0 is the root. */
static size_t common_folder(const char *a, const char *b)
{
    size_t n = 0, last = 0;
    for (; a[n] && a[n] == b[n]; n++)
        if (a[n] == '/') last = n;
    if ((!a[n] || a[n] == '/') && (!b[n] || b[n] == '/')) last = n;
    return last;
}

static void cut(char **path, size_t n)
{
    if (n) (*path)[n] = 0;
    else strcpy(*path, "."); /* no path is shorter */
}

/* Adds a folder with images. Folders without a kind are merged to the folder that holds all of
 * their part. */
static void add_folder(struct search *s, const char *path)
{
    struct seen_folder f = {.path = bump_string(s->memory, *path ? path : ".")};
    size_t end = 0;
    for (const char *at = path; *at;) {
        size_t n = strcspn(at, "/");
        enum layout_kind kind = kind_of(at, n);
        enum part part = part_of(at, n);
        if (kind) f.kind = kind;
        if (part) f.part = part;
        if (kind || part) end = (size_t)(at - path) + n;
        at += n + (at[n] == '/');
    }
    if (f.kind) cut(&f.path, end);
    for (uint32_t i = 0; i < s->folders.n; i++) {
        struct seen_folder *o = &s->folders.at[i];
        if (o->kind != f.kind || o->part != f.part || (f.kind && strcmp(o->path, f.path))) continue;
        if (!f.kind) cut(&o->path, strcmp(o->path, ".") && strcmp(f.path, ".") ? common_folder(o->path, f.path) : 0);
        return;
    }
    if (s->folders.n < FOLDERS) vec_push(&s->folders, f);
}

/* Reports whether a file begins with a line of YOLO: a class and at least 4 numbers between 0 and
 * 1. */
static bool is_yolo(const char *path)
{
    char line[512];
    double class, x, y, w, h;
    line[file_peek(path, line, sizeof line - 1)] = 0;
    return sscanf(line, "%lf %lf %lf %lf %lf", &class, &x, &y, &w, &h) == 5 && x >= 0 && x <= 1 && y >= 0 && y <= 1;
}

static void note_file(struct search *s, const char *path)
{
    const struct unread *u = unread_by_name(path);
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (u && !s->unread) s->unread = u, s->unread_example = path;
    if (u) s->n_unread += u == s->unread;
    if (!s->yolo_example && text_ends_with(path, ".txt") && s->texts++ < TEXTS) {
        char *full = join_path(s->memory, s->root, path);
        if (is_yolo(full)) s->yolo_example = full;
    }
    if (!s->other_example && (text_ends_with(path, ".json") || text_ends_with(path, ".xml") ||
                              text_ends_with(path, ".csv") || text_ends_with(path, ".tsv")))
        s->other_example = path;
    if (!s->plain_example && !strchr(base, '.')) s->plain_example = path;
}

static bool lists(const struct names *l, const char *name)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i], name)) return true;
    return false;
}

/* Lists folders with images. Where images/ and masks/ are side by side, other folders beside them
 * are left out. */
static int list_folders(struct search *s, const char *below, int depth, struct error *e)
{
    struct names l;
    const char *folder = *below ? join_path(s->memory, s->root, below) : s->root;
    int rc = dir_list(folder, &l, e);
    uint64_t images = 0;
    bool usual = lists(&l, "images") && lists(&l, "masks");
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        if (l.at[i][0] == '.' || !strcmp(l.at[i], "__MACOSX")) continue;
        if (is_image_name(l.at[i])) {
            images++;
            continue;
        }
        char *path = join_path(s->memory, below, l.at[i]), *full = join_path(s->memory, folder, l.at[i]);
        if (!kind_of(l.at[i], strlen(l.at[i])) && is_dicom_folder(full)) images++; /* a series is an image */
        else if (dir_exists(full))
            rc = depth && (!usual || !strcmp(l.at[i], "images") || !strcmp(l.at[i], "masks"))
                     ? list_folders(s, path, depth - 1, e)
                     : PL_OK;
        else note_file(s, path);
    }
    if (!rc && images) add_folder(s, below);
    s->images += images;
    names_free(&l);
    return rc;
}

/* --- pairs of folders ------------------------------------------------------------------------- */

static int read_folder(const struct search *s, struct seen_folder *f, const struct seen_folder *masks, struct error *e)
{
    if (f->read && f != masks) image_tree_free(&f->tree), f->read = false; /* another folder of masks may be inside */
    if (f->read) return PL_OK;
    size_t n = strcmp(f->path, ".") ? strlen(f->path) : 0;
    const char *skip = NULL;
    if (f != masks && n && !strncmp(masks->path, f->path, n) && masks->path[n] == '/') skip = masks->path + n + 1;
    if (f != masks && !n) skip = masks->path;
    int rc = image_tree_read(&f->tree, join_path(s->memory, s->root, f->path), skip, e);
    f->read = !rc;
    return rc;
}

struct found {
    struct layout_part best;
    const struct seen_folder *used;   /* its images */
    struct error ambiguous;      /* the names fit in two ways; code PL_OK: no */
    const char *first, *second;  /* two folders of masks that fit equally well */
    const char *more;            /* another folder of images with masks; NULL: none */
    uint64_t n_more;
};

static int try_pair(const struct search *s, struct seen_folder *images, struct seen_folder *masks, struct found *f,
                    struct error *e)
{
    struct affixes a;
    uint64_t n;
    if (read_folder(s, masks, masks, e) || (images != masks && read_folder(s, images, masks, e))) return e->code;
    struct error fits_twice = {0};
    if (s->given) a = *s->given, n = match_count(&images->tree, &masks->tree, &a);
    else if (match_find(&images->tree, &masks->tree, &a, &n, &fits_twice)) {
        if (!f->ambiguous.code) f->ambiguous = fits_twice;
        return PL_OK;
    }
    bool other = f->best.images && strcmp(f->best.images, images->path);
    const uint64_t fewer = min_u64(n, f->best.pairs);
    if (other && fewer > f->n_more) /* the largest of the folders of images that are not used */
        f->more = n > f->best.pairs ? f->used->path : images->path, f->n_more = fewer;
    if (!n || n < f->best.pairs || (n == f->best.pairs && other)) return PL_OK;
    if (n == f->best.pairs) {
        int order = masks_rank(masks->path) - masks_rank(f->best.masks);
        /* beside the images, before those elsewhere */
        if (!order)
            order = (int)common_folder(images->path, f->best.masks) - (int)common_folder(images->path, masks->path);
        if (!order) f->first = f->best.masks, f->second = masks->path;
        if (order >= 0) return PL_OK;
    } else {
        f->first = f->second = NULL;
    }
    f->used = images;
    f->best = (struct layout_part){images->path, masks->path, a, n};
    return PL_OK;
}

/* Refuses two folders of masks for the same images: only the user knows which one is meant. */
static int check_choice(const struct found *f, struct error *e)
{
    if (f->first)
        return error_set(e, PL_USAGE,
                         "two folders of masks fit the images in %s, with %llu samples each: %s and %s; set "
                         "data.images and data.masks (--images and --masks of init)",
                         f->best.images, (unsigned long long)f->best.pairs, f->first, f->second);
    if (!f->best.pairs && f->ambiguous.code) return *e = f->ambiguous, e->code;
    return PL_OK;
}

static int find_part(const struct search *s, enum part part, struct layout_part *out, struct error *e)
{
    struct found f = {0};
    uint32_t kinds[3] = {0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < s->folders.n; i++)
        if (s->folders.at[i].part == part) kinds[s->folders.at[i].kind]++;
    /* Dataset_with_GT/ may hold the images, too */
    const bool only_masks = kinds[MASKS] && !kinds[IMAGES] && !kinds[UNKNOWN];
    for (uint32_t i = 0; i < s->folders.n && !rc; i++) {
        struct seen_folder *a = &s->folders.at[i];
        if (a->part != part ||
            (a->kind == MASKS ? !only_masks : kinds[MASKS] && a->kind != (kinds[IMAGES] ? IMAGES : UNKNOWN)))
            continue;
        if (!kinds[MASKS] || only_masks) rc = try_pair(s, a, a, &f, e);
        if (only_masks) continue;
        for (uint32_t k = 0; k < s->folders.n && !rc; k++)
            if (s->folders.at[k].part == part && s->folders.at[k].kind == MASKS)
                rc = try_pair(s, a, &s->folders.at[k], &f, e);
    }
    if (!rc) rc = check_choice(&f, e);
    if (!rc && f.more)
        log_warn("%s: only %s is used; %s has masks for %llu images, too", s->root, f.best.images, f.more,
                 (unsigned long long)f.n_more);
    *out = f.best;
    return rc;
}

/* --- the result ------------------------------------------------------------------------------- */

/* Moves the folder that images and masks have in common to the root, which it returns. */
static const char *shift_root(struct bump *b, struct layout_part *p, const char *root)
{
    size_t n = strcmp(p->images, ".") && strcmp(p->masks, ".") ? common_folder(p->images, p->masks) : 0;
    if (!n) return root;
    root = bump_format(b, "%s/%.*s", root, (int)n, p->images);
    p->images = p->images[n] ? p->images + n + 1 : ".";
    p->masks = p->masks[n] ? p->masks + n + 1 : ".";
    return root;
}

/* Sets the roots. Parts in folders of their own (train/images, val/images) have two roots.
 * Otherwise both parts share one, and their folders differ. */
static void set_roots(struct bump *b, struct layout *l, const char *folder)
{
    struct layout_part t = l->train, v = l->validation;
    const char *t_root = shift_root(b, &t, folder), *v_root = v.pairs ? shift_root(b, &v, folder) : folder;
    l->root = l->validation_root = bump_string(b, folder);
    if (v.pairs && (strcmp(t.images, v.images) || strcmp(t.masks, v.masks) || !strcmp(t_root, v_root))) return;
    l->train = t, l->validation = v;
    l->root = t_root, l->validation_root = v_root;
}

/* Finds the lists of Pascal VOC. */
static void find_voc(struct bump *b, struct layout *l)
{
    const char *train = bump_format(b, "%s/ImageSets/Segmentation/train.txt", l->root),
               *validation = bump_format(b, "%s/ImageSets/Segmentation/val.txt", l->root);
    l->voc = !strncmp(l->train.masks, "SegmentationClass", 17) && !strcmp(l->train.images, "JPEGImages");
    if (l->voc && file_exists(train) && file_exists(validation))
        l->train_list = train, l->validation_list = validation;
}

/* Adds to the message what the folder's own annotations are, if it has some. */
static void print_other(const struct search *s, struct error *e)
{
    struct error found = *e;
    const char *name = s->other_example;
    if (!name) return;
    if (text_ends_with(name, ".csv") || text_ends_with(name, ".tsv"))
        error_set(e, PL_USAGE,
                  "%s. The table %s does not name a mask file for each image, in columns such as image and mask; masks "
                  "as run lengths in a table (Kaggle) are not read: write them as PNG",
                  found.text, name);
    else
        error_set(e, PL_USAGE, "%s. %s is in a format that is not read: export the annotations as COCO", found.text,
                  name);
}

/* Says what the folder has instead of images with masks. */
static int refuse(const struct search *s, struct error *e)
{
    const struct unread *magic = s->plain_example && !s->images
                                     ? unread_file(join_path(s->memory, s->root, s->plain_example))
                                     : NULL;
    uint32_t kinds[3] = {0}, first[3] = {0};
    for (uint32_t i = s->folders.n; i-- > 0;) kinds[s->folders.at[i].kind]++, first[s->folders.at[i].kind] = i;
    if (s->unread) unread_refuse(s->unread, s->n_unread, s->root, s->unread_example, e);
    else if (magic) unread_refuse(magic, 1, s->root, s->plain_example, e);
    else if (s->yolo_example)
        error_set(e, PL_USAGE,
                  "%s is a label file of YOLO, which is not read. Export the dataset as COCO (Roboflow, CVAT and Label "
                  "Studio do), or convert it with Python's supervision: "
                  "sv.DetectionDataset.from_yolo(IMAGES, LABELS, \"data.yaml\", "
                  "force_masks=True).as_coco(annotations_path=\"train.json\")",
                  s->yolo_example);
    else if (!s->images) error_set(e, PL_USAGE, "%s: there is no image (.jpg, .jpeg, .png or .webp) in it", s->root);
    else if (!kinds[MASKS])
        error_set(e, PL_USAGE,
                  "%s: there are images in %s, but no folder of masks (such as masks/ or labels/) and no masks beside "
                  "them (such as a_mask.png); data.masks and data.mask_suffix name others",
                  s->root, s->folders.at[0].path),
            print_other(s, e);
    else {
        const struct seen_folder *m = &s->folders.at[first[MASKS]],
                            *i = &s->folders.at[first[kinds[IMAGES] ? IMAGES : UNKNOWN]];
        if (i == m || !i->tree.files.n || !m->tree.files.n)
            error_set(e, PL_USAGE, "%s: there are masks in %s, but no folder of images beside it", s->root, m->path);
        else match_refuse(&i->tree, i->path, &m->tree, m->path, e), error_prepend(e, "%s", s->root);
    }
    return e->code;
}

static uint64_t count_files(const struct search *s, const char *path)
{
    struct image_tree t;
    struct error ignored;
    uint64_t n = image_tree_read(&t, join_path(s->memory, s->root, path), NULL, &ignored) ? 0 : t.files.n;
    image_tree_free(&t);
    return n;
}

/* Refuses a folder for each image, with a file for each mask, as in Kaggle's data science bowl:
 * x/images/x.png and x/masks/1.png, 2.png, ... */
static int refuse_folder_each(const struct search *s, struct error *e)
{
    const struct seen_folder *images = NULL, *masks = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->folders.n; i++)
        if (s->folders.at[i].kind == IMAGES && !n++) images = &s->folders.at[i];
    const char *slash = n > 1 ? strrchr(images->path, '/') : NULL;
    for (uint32_t i = 0; i < s->folders.n && slash && !masks; i++) {
        const struct seen_folder *f = &s->folders.at[i];
        if (f->kind == MASKS && common_folder(f->path, images->path) == (size_t)(slash - images->path)) masks = f;
    }
    if (!masks || count_files(s, images->path) != 1 || count_files(s, masks->path) < 2) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: a folder for each image (%s) with a file for each mask (%s) is not read: write one PNG for "
                     "each image with the values 1, 2, ... and set data.labels to instances",
                     s->root, images->path, masks->path);
}

/* Chooses the parts among those that were found; the others are named as not used. */
static int find_parts(struct search *s, struct layout *l, struct error *e)
{
    static const enum part train[] = {TRAIN, NONE, VALIDATION, TEST}, validation[] = {VALIDATION, TEST};
    struct layout_part parts[PARTS] = {0};
    TRY(refuse_folder_each(s, e));
    for (int p = 0; p < PARTS; p++) TRY(find_part(s, (enum part)p, &parts[p], e));
    for (size_t i = 0; i < COUNT(train) && !l->train.pairs; i++)
        l->train = parts[train[i]], parts[train[i]].pairs = 0;
    for (size_t i = 0; i < COUNT(validation) && !l->validation.pairs; i++)
        l->validation = parts[validation[i]], parts[validation[i]].pairs = 0;
    for (int p = 0; p < PARTS; p++)
        if (parts[p].pairs)
            log_note("%s: %llu samples in %s and %s are in neither part and are not used", s->root,
                     (unsigned long long)parts[p].pairs, parts[p].images, parts[p].masks);
    return l->train.pairs ? PL_OK : refuse(s, e);
}

int layout_find(struct layout *l, const char *folder, const struct affixes *given, struct bump *memory,
                struct error *e)
{
    struct search s = {.root = folder, .given = given, .memory = memory};
    *l = (struct layout){0};
    int rc = list_folders(&s, "", DEPTH, e);
    if (!rc) rc = find_parts(&s, l, e);
    if (!rc) set_roots(memory, l, folder), find_voc(memory, l);
    for (uint32_t i = 0; i < s.folders.n; i++) image_tree_free(&s.folders.at[i].tree);
    vec_free(&s.folders);
    return rc;
}
