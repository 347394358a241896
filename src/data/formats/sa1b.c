/*
 * sa1b.c: builds, stores, checks and uses the index of a shard (see sa1b.h).
 *
 * An index file is a header, the pairs, and the names:
 *
 *     magic, version | size, mtime and hash of the tar | report | counts | crc32c
 *     n pairs of 32 bytes, sorted by name
 *     names, each terminated by a 0
 *
 * It is one block, in the file as in memory. Before an index is used, the tar must have the
 * recorded size, time and hash of the first and last bytes, the checksum must be right, and every
 * offset must lie inside the tar. So an index can be missing or stale, but it cannot cause an
 * invalid read.
 */
#include "data/formats/sa1b.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/coding.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "base/progress.h"
#include "data/masks/annotation.h"
#include "data/dataset.h"

static const char index_magic[8] = "PLSHARD";
enum { INDEX_VERSION = 1, EDGE = 64 << 10, MAX_NAMES = 1 << 30 };

struct index_header {
    char magic[8];
    uint32_t version, crc; /* crc is computed with crc = 0 */
    uint64_t size, mtime, hash;
    struct shard_report report;
    uint64_t n, names_n;
};

/* --- members to pairs --------------------------------------------------------------- */

/* One half of a pair: an image or its annotations. */
struct half {
    uint64_t at;
    uint32_t n, name, number; /* number: its index in the archive */
    uint8_t half;
};

struct builder {
    VEC(struct half) halves;
    struct text names;
    struct shard_report *report;
};

/* Returns the half that a file is, by its extension; -1: neither. */
static int half_of(const char *extension)
{
    static const struct { const char *name; enum shard_half half; } known[] = {
        {"jpg", SHARD_IMAGE}, {"jpeg", SHARD_IMAGE}, {"png", SHARD_IMAGE}, {"webp", SHARD_IMAGE}, {"json", SHARD_TEXT}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcasecmp(extension, known[i].name)) return (int)known[i].half;
    return -1;
}

static uint32_t keep_name(struct builder *b, const char *s, size_t n)
{
    uint32_t at = (uint32_t)b->names.n;
    text_append(&b->names, s, n);
    text_append(&b->names, "", 1);
    return at;
}

/* Adds a member; `path` may contain folders. Some systems put "._x.jpg" beside x.jpg. */
static void add_member(struct builder *b, const char *path, uint64_t at, uint64_t n, bool folder)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    const char *dot = strrchr(base, '.');
    int half = dot && dot > base && strncmp(base, "._", 2) ? half_of(dot + 1) : -1;
    b->report->members++;
    if (half < 0) {
        b->report->others++;
    } else if (n > UINT32_MAX || b->names.n > MAX_NAMES) {
        b->report->too_large++;
    } else {
        struct half h = {.at = folder ? keep_name(b, base, strlen(base)) : at, .n = (uint32_t)n,
                         .number = b->halves.n, .half = (uint8_t)half};
        h.name = keep_name(b, base, (size_t)(dot - base));
        vec_push(&b->halves, h);
    }
}

/* Compares by name, then by half, then by order: partners become neighbours. */
static int compare_halves(const void *pa, const void *pb, void *names)
{
    const struct half *a = pa, *b = pb;
    int c = strcmp((char *)names + a->name, (char *)names + b->name);
    if (c) return c;
    if (a->half != b->half) return a->half < b->half ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Builds the block: a header, the pairs, the names. */
static void pair_up(struct builder *b, struct shard *s)
{
    if (b->halves.n) qsort_r(b->halves.at, b->halves.n, sizeof *b->halves.at, compare_halves, b->names.at);
    size_t pairs_bytes = b->halves.n / 2 * sizeof(struct shard_pair);
    char *block = mem_alloc(sizeof(struct index_header) + pairs_bytes + b->names.n);
    struct shard_pair *pairs = (struct shard_pair *)(block + sizeof(struct index_header));
    uint32_t n = 0;
    for (uint32_t i = 0, end; i < b->halves.n; i = end) {
        const struct half *first[2] = {NULL, NULL};
        for (end = i; end < b->halves.n; end++) {
            const struct half *h = &b->halves.at[end];
            if (strcmp(b->names.at + h->name, b->names.at + b->halves.at[i].name)) break;
            if (first[h->half]) b->report->duplicates++;
            else first[h->half] = h;
        }
        if (!first[SHARD_IMAGE]) b->report->no_image++;
        else if (!first[SHARD_TEXT]) b->report->no_text++;
        else
            pairs[n++] = (struct shard_pair){.at = {first[0]->at, first[1]->at}, .n = {first[0]->n, first[1]->n},
                                             .name = first[0]->name};
    }
    s->block = block;
    s->n = n;
    s->pairs = pairs;
    s->names = (char *)(pairs + n);
    s->names_n = b->names.n;
    if (b->names.n) memcpy(s->names, b->names.at, b->names.n);
    vec_free(&b->halves);
    text_free(&b->names);
}

static int build_from_tar(struct shard *s, struct error *e)
{
    struct builder b = {.report = &s->report};
    struct tar *t = mem_alloc(sizeof *t);
    struct tar_member *m = mem_alloc(sizeof *m);
    bool more = true;
    int rc = PL_OK;
    tar_open(t, s->fd, NULL, s->size);
    while (!(rc = tar_next(t, m, &more, e)) && more) add_member(&b, m->name, m->offset, m->size, false);
    s->report.others += t->others;
    s->report.damaged = t->damaged;
    s->report.lost = t->lost;
    s->report.first_bad = t->first_bad;
    s->report.partial = t->partial;
    pair_up(&b, s);
    mem_free(t);
    mem_free(m);
    return rc;
}

static int build_from_folder(struct shard *s, struct error *e)
{
    struct builder b = {.report = &s->report};
    struct names l = {0};
    if (dir_list(s->path, &l, e)) return e->code;
    for (uint32_t i = 0; i < l.n; i++) add_member(&b, l.at[i], 0, 0, true);
    names_free(&l);
    pair_up(&b, s);
    return PL_OK;
}

/* --- the index file ------------------------------------------------------------------ */

static uint64_t mtime_of(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

/* Hashes the first and last bytes, to distinguish tars of the same size and time. */
static int edge_hash(int fd, uint64_t size, uint64_t *hash, struct error *e)
{
    char *bytes = mem_alloc(EDGE);
    size_t n = (size_t)min_u64(size, EDGE);
    int rc = fd_read_at(fd, 0, bytes, n, e);
    uint64_t h = hash_bytes(bytes, n, size);
    if (!rc) rc = fd_read_at(fd, size - n, bytes, n, e);
    *hash = hash_bytes(bytes, n, h);
    mem_free(bytes);
    return rc;
}

static uint32_t index_crc(const char *block, size_t n)
{
    struct index_header h;
    memcpy(&h, block, sizeof h);
    h.crc = 0;
    return crc32c(crc32c(0, &h, sizeof h), block + sizeof h, n - sizeof h);
}

/* Returns why an index of n bytes cannot be used for this tar; NULL when it can. */
static const char *index_fault(const struct shard *s, const struct index_header *now, const char *block, size_t n)
{
    struct index_header h;
    if (n < sizeof h) return "it is truncated";
    memcpy(&h, block, sizeof h);
    if (memcmp(h.magic, index_magic, sizeof h.magic)) return "it is not an index";
    if (h.version != INDEX_VERSION) return "it has another version";
    uint64_t rest = n - sizeof h;
    if (h.n > rest / sizeof(struct shard_pair) || h.names_n != rest - h.n * sizeof(struct shard_pair))
        return "it is truncated";
    if (index_crc(block, n) != h.crc) return "its checksum is wrong";
    if (h.size != now->size || h.mtime != now->mtime || h.hash != now->hash) return "the shard has changed since";
    const struct shard_pair *p = (const struct shard_pair *)(block + sizeof h);
    const char *names = (const char *)(p + h.n);
    if (h.n > UINT32_MAX || (h.names_n && names[h.names_n - 1])) return "its names are truncated";
    for (uint64_t i = 0; i < h.n; i++) {
        if (p[i].name >= h.names_n) return "a name lies outside of it";
        for (int k = 0; k < 2; k++)
            if (p[i].at[k] > s->size || p[i].n[k] > s->size - p[i].at[k]) return "a member lies outside of the shard";
    }
    return NULL;
}

/* Loads a usable index; returns false, with a line in the log, when there is none. */
static bool index_load(struct shard *s, const struct index_header *now, const char *path)
{
    struct error e;
    char *block;
    size_t n;
    if (!file_exists(path) || file_read(path, 4ull << 30, &block, &n, &e)) return false;
    const char *fault = index_fault(s, now, block, n);
    if (fault) {
        log_note("%s is not used: %s; indexing the shard again", path, fault);
        mem_free(block);
        return false;
    }
    struct index_header h;
    memcpy(&h, block, sizeof h);
    s->block = block;
    s->n = (uint32_t)h.n;
    s->pairs = (struct shard_pair *)(block + sizeof h);
    s->names = (char *)(s->pairs + s->n);
    s->names_n = h.names_n;
    s->report = h.report;
    s->cached = true;
    return true;
}

static bool index_store(struct shard *s, const struct index_header *now, const char *path)
{
    struct error e;
    struct index_header h = *now;
    size_t n = sizeof h + s->n * sizeof *s->pairs + s->names_n;
    memcpy(h.magic, index_magic, sizeof h.magic);
    h.version = INDEX_VERSION;
    h.report = s->report;
    h.n = s->n;
    h.names_n = s->names_n;
    memcpy(s->block, &h, sizeof h);
    h.crc = index_crc(s->block, n);
    memcpy(s->block, &h, sizeof h);
    return !file_write_atomic(path, s->block, n, &e);
}

/* Prints the path of the index for a shard whose own folder is not writable: it contains the hash
 * of the full path, so that shards of the same name do not collide. Returns false if there is no
 * such folder. */
static bool cache_path(const char *path, struct text *out, bool make)
{
    struct error e;
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base) text_printf(out, "%s/plimsoll", base);
    else if (home && *home) text_printf(out, "%s/.cache/plimsoll", home);
    else return false;
    if (make && dir_make(out->at, &e)) return false;
    char *full = realpath(path, NULL);
    if (!full) return false;
    const char *name = strrchr(full, '/');
    text_printf(out, "/%016llx-%s.idx", (unsigned long long)hash_bytes(full, strlen(full), 0), name ? name + 1 : full);
    free(full);
    return true;
}

static int index_tar(struct shard *s, const struct stat *st, struct error *e)
{
    struct index_header now = {.size = s->size, .mtime = mtime_of(st)};
    struct text beside = {0}, cache = {0};
    if (edge_hash(s->fd, s->size, &now.hash, e)) return e->code;
    text_printf(&beside, "%s.idx", s->path);
    bool has_cache = cache_path(s->path, &cache, false), done = index_load(s, &now, beside.at);
    if (!done && has_cache) done = index_load(s, &now, cache.at);
    int rc = done ? PL_OK : build_from_tar(s, e);
    if (!rc && !done && !index_store(s, &now, beside.at)) {
        text_free(&cache);
        if (!cache_path(s->path, &cache, true) || !index_store(s, &now, cache.at))
            log_note("%s: its index cannot be stored beside it or in the cache folder, so each run indexes it again",
                     s->path);
    }
    text_free(&beside);
    text_free(&cache);
    return rc;
}

/* --- opening and reading ---------------------------------------------------------------- */

static int open_tar(struct shard *s, const struct stat *st, struct error *e)
{
    char head[4] = {0};
    s->size = (uint64_t)st->st_size;
    if (fd_read_at(s->fd, 0, head, (size_t)min_u64(s->size, sizeof head), e)) return e->code;
    enum tar_kind kind = tar_sniff(head, sizeof head);
    if (kind != TAR_PLAIN)
        return error_set(e, PL_USAGE, "it is compressed with %s and cannot be read in random order: "
                         "repack it once with `plimsoll data prepare`", kind == TAR_GZIP ? "gzip" : "zstd");
    return index_tar(s, st, e);
}

/* Returns the fingerprint of a shard. Folders are distinguished only by their names. */
static uint64_t fingerprint(const struct shard *s)
{
    return hash_bytes(s->names, s->names_n, hash_bytes(s->pairs, s->n * sizeof *s->pairs, s->size));
}

int shard_open(struct shard *s, const char *path, struct error *e)
{
    struct stat st;
    *s = (struct shard){.path = mem_string(path), .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    int rc;
    if (s->fd < 0 || fstat(s->fd, &st)) rc = file_error(path, "open it", e);
    else if (S_ISDIR(st.st_mode)) s->folder = true, rc = build_from_folder(s, e);
    else if (S_ISREG(st.st_mode) && file_refuse_pointer(path, s->fd, (uint64_t)st.st_size, e)) rc = e->code;
    else if (S_ISREG(st.st_mode)) rc = open_tar(s, &st, e) ? error_prepend(e, "%s", path) : PL_OK;
    else rc = error_set(e, PL_USAGE, "%s is neither a file nor a folder: a shard is a tar or a folder of pairs", path);
    if (rc) shard_close(s);
    else s->fingerprint = fingerprint(s);
    return rc;
}

void shard_close(struct shard *s)
{
    if (s->fd >= 0) close(s->fd);
    mem_free(s->path);
    mem_free(s->block);
    *s = (struct shard){.fd = -1};
}

const char *shard_key(const struct shard *s, uint32_t i)
{
    CHECK(i < s->n);
    return s->names + s->pairs[i].name;
}

static int too_small(const char *name, size_t n, size_t room, struct error *e)
{
    return error_set(e, PL_NOFIT, "%s has %zu bytes; expected at most %zu", name, n, room);
}

/* Reads a file in a folder, which is open only meanwhile. */
static int read_file(const struct shard *s, const char *name, void *to, size_t room, size_t *n, struct error *e)
{
    struct stat st;
    int fd = openat(s->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_set(e, PL_FAIL, "%s/%s: cannot open it: %s", s->path, name, strerror(errno));
    int rc = PL_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        rc = error_set(e, PL_FAIL, "%s/%s is not a regular file", s->path, name);
    else if ((*n = (size_t)st.st_size) > room) rc = too_small(name, *n, room, e);
    else if (fd_read_at(fd, 0, to, *n, e)) rc = error_prepend(e, "%s/%s", s->path, name);
    close(fd);
    return rc;
}

int shard_read(const struct shard *s, uint32_t i, enum shard_half half, void *to, size_t room, size_t *n,
               struct error *e)
{
    CHECK(i < s->n);
    const struct shard_pair *p = &s->pairs[i];
    if (s->folder) return read_file(s, s->names + p->at[half], to, room, n, e);
    *n = p->n[half];
    if (*n > room) return too_small(shard_key(s, i), *n, room, e);
    if (fd_read_at(s->fd, p->at[half], to, *n, e)) return error_prepend(e, "%s: %s", s->path, shard_key(s, i));
    return PL_OK;
}

void shard_prefetch(const struct shard *s, uint32_t i)
{
    if (s->folder || i >= s->n) return;
    for (int k = 0; k < 2; k++) posix_fadvise(s->fd, (off_t)s->pairs[i].at[k], s->pairs[i].n[k], POSIX_FADV_WILLNEED);
}

bool shard_report_print(const struct shard_report *r, char *out, size_t room)
{
    const struct { uint64_t count; const char *what; } parts[] = {
        {r->no_image, "annotations without an image"}, {r->no_text, "images without annotations"},
        {r->duplicates, "duplicates"}, {r->too_large, "members too large"}, {r->damaged, "damaged headers"},
        {r->partial, "member truncated at the end"}};
    size_t n = 0;
    if (room) out[0] = 0;
    for (size_t i = 0; i < COUNT(parts); i++)
        if (parts[i].count && n < room)
            n += (size_t)snprintf(out + n, room - n, "%s%llu %s", n ? ", " : "", (unsigned long long)parts[i].count,
                                  parts[i].what);
    if (r->damaged && n < room)
        snprintf(out + n, room - n, " (the first at byte %llu, %llu bytes lost)", (unsigned long long)r->first_bad,
                 (unsigned long long)r->lost);
    return n > 0;
}

/* ---- The format sa1b ----
 *
 * the format `sa1b`: shards of images and annotations, one after the other.
 *
 * Sample i is in the last shard that has its first sample at or before i. A key that occurs in two
 * shards is two samples: their names contain the shard's name.
 */

struct sa1b {
    struct shard *shards;
    uint64_t *first; /* index of each shard's first sample */
    uint32_t n;
};

static const struct shard *find_shard(const struct sa1b *s, uint64_t i, uint32_t *pair)
{
    uint32_t low = 0, high = s->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(s->first[middle] <= i ? &low : &high) = middle;
    }
    *pair = (uint32_t)(i - s->first[low]);
    return &s->shards[low];
}

static void add_report(struct shard_report *sum, const struct shard_report *r)
{
    if (!sum->damaged) sum->first_bad = r->first_bad;
    sum->members += r->members;
    sum->others += r->others;
    sum->no_image += r->no_image;
    sum->no_text += r->no_text;
    sum->duplicates += r->duplicates;
    sum->too_large += r->too_large;
    sum->damaged += r->damaged;
    sum->lost += r->lost;
    sum->partial += r->partial;
}

static void sa1b_close(struct dataset *d)
{
    struct sa1b *s = d->state;
    for (uint32_t i = 0; i < s->n; i++) shard_close(&s->shards[i]);
    mem_free(s->shards);
    mem_free(s->first);
}

/* Opens folders: a folder of tars is replaced by its tars; any other folder is a shard of
 * extracted files. */
static int open_folders(struct names *paths, struct error *e)
{
    struct names out = {0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        if (dir_exists(paths->at[i])) rc = dir_list_ending(paths->at[i], ".tar", &found, e);
        for (uint32_t k = 0; k < found.n; k++) vec_push(&out, mem_string(found.at[k]));
        if (!found.n) vec_push(&out, mem_string(paths->at[i]));
        names_free(&found);
    }
    names_free(paths);
    *paths = out;
    return rc;
}

static int sa1b_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    enum { LOGGED = 10 }; /* shards with faults that are logged one by one */
    struct sa1b *s = d->state;
    (void)o;
    int rc = open_folders(paths, e);
    s->shards = mem_alloc(paths->n * sizeof *s->shards);
    s->first = mem_alloc(paths->n * sizeof *s->first);
    uint32_t faulty = 0;
    struct progress progress;
    progress_begin(&progress, "opening", "shards", paths->n); /* a shard without an index is read once */
    for (uint32_t i = 0; i < paths->n && !rc; i++, progress_add(&progress, 1)) {
        struct shard *shard = &s->shards[s->n];
        if (text_ends_with(paths->at[i], ".idx")) continue; /* a pattern for tars may match their indexes */
        if ((rc = shard_open(shard, paths->at[i], e))) break;
        char what[512];
        if (shard_report_print(&shard->report, what, sizeof what) && faulty++ < LOGGED)
            log_warn("%s: %s", paths->at[i], what);
        s->first[s->n++] = d->total;
        d->total += shard->n;
        d->fingerprint = hash_bytes(&shard->fingerprint, sizeof shard->fingerprint, d->fingerprint);
        add_report(&d->report, &shard->report);
    }
    progress_clear();
    if (faulty > LOGGED) log_warn("%u more shards have faults", faulty - LOGGED);
    return rc;
}

/* Prints "sa_000020/sa_223750": the shard without folder and .tar, and the key. */
static void sa1b_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    size_t n = strlen(s->path);
    while (n > 1 && s->path[n - 1] == '/') n--;
    size_t from = n;
    while (from && s->path[from - 1] != '/') from--;
    if (n - from > 4 && !memcmp(s->path + n - 4, ".tar", 4)) n -= 4;
    *key = shard_key(s, pair);
    snprintf(name, room, "%.*s/%s", (int)(n - from), s->path + from, *key);
}

static enum data_fault read_half(const struct dataset *d, uint64_t i, enum shard_half half, void *to, size_t room,
                                 size_t *n, struct error *e)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    int rc = shard_read(s, pair, half, to, room, n, e);
    return !rc ? FAULT_NONE : rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
}

static enum data_fault sa1b_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    return read_half(d, i, SHARD_IMAGE, to, room, &out->n, e);
}

static enum data_fault sa1b_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    size_t length;
    struct annotation a;
    enum data_fault f = read_half(d, i, SHARD_TEXT, scratch, n, &length, e);
    if (f) return f;
    f = annotation_read(scratch, length, &a, masks, room, e);
    *out = (struct dataset_masks){.n = a.masks, .empty = a.empty, .h = a.h, .w = a.w};
    return f;
}

static void sa1b_prefetch(const struct dataset *d, uint64_t i)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    shard_prefetch(s, pair);
}

const struct dataset_format dataset_sa1b = {
    .name = "sa1b", .state = sizeof(struct sa1b), .open = sa1b_open, .close = sa1b_close, .describe = sa1b_describe,
    .image = sa1b_image, .masks = sa1b_masks, .prefetch = sa1b_prefetch, .no_categories = "sa1b",
};
