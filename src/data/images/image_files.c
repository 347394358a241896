/*
 * image_files.c: see image_files.h.
 *
 * A reference becomes a place: text, a cell of a table, or a range of bytes in a file that may be a
 * tar. Members of a tar are found in an index, sorted by name without a leading "./".
 */
#include "data/images/image_files.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/coding.h"
#include "data/dataset.h"
#include "data/formats/packed.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "io/parquet_rows.h"

enum { PATH_ROOM = 4096 };

struct member {
    uint64_t offset, size;
    size_t name; /* offset in `names` */
};

struct archive {
    char *path;
    int fd;             /* -1: it is closed, until a member is read again */
    dev_t device;       /* which file it is... */
    ino_t number;
    uint64_t size;      /* ...and its size */
    uint32_t readers;   /* of the descriptor */
    uint64_t used;      /* when, in readings */
    VEC(struct member) members;
    struct text names;
};

struct image_files {
    char *where;
    char *root, *real; /* where images must be, as an absolute path, also with links resolved; NULL: anywhere */
    struct names own;               /* tables that are the data itself */
    struct archive *tar;            /* `where` is a tar */
    struct dataset *store;          /* `where` is a packed store */
    pthread_mutex_t lock;           /* guards the rest, and descriptors of archives */
    VEC(struct archive *) archives; /* all that references have named */
    VEC(struct parquet *) tables;   /* the same */
    uint32_t open, most;            /* archives with a descriptor, and how many there may be */
    uint64_t readings;
};

/* Where an image is: in base64, in a table, or in a file. */
struct place {
    const char *base64;
    const struct parquet *table;   /* NULL: it is in none */
    struct parquet_cell cell;
    struct archive *archive;       /* NULL: the file at `path` */
    uint64_t offset, size;
    char path[PATH_ROOM];
};

/* --- tars ------------------------------------------------------------------------------------ */

static const char *plain_name(const char *name)
{
    while (!strncmp(name, "./", 2)) name += 2;
    return name;
}

static int compare_members(const void *pa, const void *pb, void *names)
{
    const struct member *a = pa, *b = pb;
    int c = strcmp((char *)names + a->name, (char *)names + b->name);
    return c ? c : a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int index_archive(struct archive *a, struct error *e)
{
    char head[4] = {0};
    if (fd_read_at(a->fd, 0, head, (size_t)min_u64(a->size, sizeof head), e)) return e->code;
    enum tar_kind kind = tar_sniff(head, sizeof head);
    if (kind != TAR_PLAIN)
        return error_set(e, PL_USAGE,
                         "it is compressed with %s and cannot be read in random order: unpack it, or decompress it",
                         kind == TAR_GZIP ? "gzip" : "zstd");
    struct tar *t = mem_alloc(sizeof *t);
    struct tar_member *m = mem_alloc(sizeof *m);
    bool more = true;
    int rc = PL_OK;
    tar_open(t, a->fd, NULL, a->size);
    while (!(rc = tar_next(t, m, &more, e)) && more) {
        const char *name = plain_name(m->name);
        vec_push(&a->members, ((struct member){m->offset, m->size, a->names.n}));
        text_append(&a->names, name, strlen(name) + 1);
    }
    if (a->members.n) qsort_r(a->members.at, a->members.n, sizeof *a->members.at, compare_members, a->names.at);
    if (!rc && !a->members.n) rc = error_set(e, PL_USAGE, "no file is in it: is it a tar?");
    mem_free(t);
    mem_free(m);
    return rc;
}

static void close_archive(struct archive *a)
{
    if (!a) return;
    if (a->fd >= 0) close(a->fd);
    vec_free(&a->members);
    text_free(&a->names);
    mem_free(a->path);
    mem_free(a);
}

/* Closes the archives that were not used for the longest time, until `most` are open. */
static void close_unused(struct image_files *f, uint32_t most)
{
    while (f->open > most) {
        struct archive *oldest = NULL;
        for (uint32_t i = 0; i < f->archives.n; i++) {
            struct archive *a = f->archives.at[i];
            if (a->fd >= 0 && !a->readers && (!oldest || a->used < oldest->used)) oldest = a;
        }
        if (!oldest) return;
        close(oldest->fd);
        oldest->fd = -1;
        f->open--;
    }
}

/* Opens an archive, which must be the file that it was before. */
static int reopen(struct image_files *f, struct archive *a, struct error *e)
{
    struct stat s;
    uint64_t size;
    close_unused(f, f->most - 1);
    a->fd = file_open(a->path, &size, e);
    if (a->fd < 0 && e->no_descriptors) close_unused(f, 0), a->fd = file_open(a->path, &size, e);
    if (a->fd < 0) return e->code;
    f->open++;
    const bool known = !fstat(a->fd, &s), first = !a->members.n;
    if (first && known) a->device = s.st_dev, a->number = s.st_ino, a->size = size;
    if (known && a->device == s.st_dev && a->number == s.st_ino && a->size == size) return PL_OK;
    close(a->fd), a->fd = -1, f->open--;
    return error_set(e, PL_USAGE, "%s: it is not the tar that it was when the run began", a->path);
}

static struct archive *open_archive(struct image_files *f, const char *path, struct error *e)
{
    struct archive *a = mem_alloc(sizeof *a);
    a->path = mem_string(path);
    a->fd = -1;
    int rc = reopen(f, a, e);
    if (!rc && index_archive(a, e)) rc = error_prepend(e, "%s", path), f->open--;
    if (!rc) return a;
    close_archive(a);
    return NULL;
}

/* Returns the archive of this path; it is indexed if no reference has named it before. */
static struct archive *archive_of(struct image_files *f, const char *path, struct error *e)
{
    struct archive *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->archives.n && !found; i++)
        if (!strcmp(f->archives.at[i]->path, path)) found = f->archives.at[i];
    if (!found && (found = open_archive(f, path, e))) vec_push(&f->archives, found);
    pthread_mutex_unlock(&f->lock);
    return found;
}

/* Takes the archive's descriptor, which stays open until give_archive. */
static int take_archive(struct image_files *f, struct archive *a, struct error *e)
{
    pthread_mutex_lock(&f->lock);
    int rc = a->fd < 0 ? reopen(f, a, e) : PL_OK;
    a->readers += !rc;
    a->used = ++f->readings;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static void give_archive(struct image_files *f, struct archive *a)
{
    pthread_mutex_lock(&f->lock);
    a->readers--;
    pthread_mutex_unlock(&f->lock);
}

static const char *member_name(const struct archive *a, uint32_t i) { return a->names.at + a->members.at[i].name; }

/* Returns the first member whose name is not before this one. */
static uint32_t search_members(const struct archive *a, const char *name)
{
    uint32_t low = 0, high = a->members.n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(member_name(a, middle), name) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int find_member(struct archive *a, const char *name, struct place *p, struct error *e)
{
    name = plain_name(name);
    const uint32_t low = search_members(a, name);
    if (low == a->members.n || strcmp(member_name(a, low), name) != 0)
        return error_set(e, PL_USAGE, "it is not in the tar %s, which has %u files, such as %.200s", a->path,
                         a->members.n, member_name(a, 0));
    p->archive = a;
    p->offset = a->members.at[low].offset;
    p->size = a->members.at[low].size;
    return PL_OK;
}

/* --- what may be read ------------------------------------------------------------------------ */

/* Writes the absolute path of a file, without "." and "..", to out[PATH_ROOM]; false: it is too
 * long. Links are not resolved. */
static bool absolute_path(const char *path, char *out)
{
    size_t at = 0;
    if (*path != '/') {
        if (!getcwd(out, PATH_ROOM)) return false;
        at = strcmp(out, "/") ? strlen(out) : 0;
    }
    while (*path) {
        const size_t n = strcspn(path, "/");
        if (n == 2 && !strncmp(path, "..", 2)) {
            while (at && out[--at] != '/') continue;
        } else if (n && !(n == 1 && *path == '.')) {
            if (at + n + 2 > PATH_ROOM) return false;
            out[at++] = '/';
            memcpy(out + at, path, n);
            at += n;
        }
        path += n + (path[n] == '/');
    }
    out[at] = 0;
    return true;
}

static bool begins_with(const char *path, const char *folder)
{
    const size_t n = folder ? strlen(folder) : 0;
    return folder && !strncmp(path, folder, n) && (!path[n] || path[n] == '/');
}

/* Reports whether a path that begins with the folder of the images stays in it. */
static bool stays_inside(const char *path)
{
    int depth = 0;
    while (*path && depth >= 0) {
        const size_t n = strcspn(path, "/\\");
        if (n == 2 && !strncmp(path, "..", 2)) depth--;
        else depth += n && !(n == 1 && *path == '.');
        path += n + (path[n] != 0);
    }
    return depth >= 0;
}

/* Reports whether a file is in the folder or tar of the images, by this name or another one. */
static bool is_inside(const struct image_files *f, const char *path)
{
    char plain[PATH_ROOM], real[PATH_MAX];
    return (absolute_path(path, plain) && begins_with(plain, f->root)) ||
           (realpath(path, real) && begins_with(real, f->real));
}

/* Reports whether a reference may be read: a path, which begins with the folder of the images
 * unless it is absolute. */
static bool may_read(const struct image_files *f, const char *path)
{
    return !f->root || (*path == '/' ? is_inside(f, path) : stays_inside(path));
}

static bool may_read_table(const struct image_files *f, const char *path)
{
    for (uint32_t i = 0; i < f->own.n; i++)
        if (!strcmp(f->own.at[i], path)) return true;
    return !f->root || is_inside(f, path);
}

static int refuse_outside(const struct image_files *f, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "it is outside of %s: set data.images to the folder that has all images, or data.outside_images: "
                     "true to read any file that the data names",
                     *f->root ? f->root : "/");
}

/* --- tables ---------------------------------------------------------------------------------- */

static void close_table(struct parquet *p)
{
    parquet_close(p);
    mem_free(p);
}

/* Opens a table. Columns of bytes may have images: all are indexed. */
static struct parquet *open_table(const char *path, struct error *e)
{
    struct parquet *p = mem_alloc(sizeof *p);
    int rc = parquet_open(p, path, e);
    if (rc) {
        mem_free(p);
        return NULL;
    }
    for (uint32_t i = 0; i < p->n_columns && !rc; i++) {
        if (p->nodes[p->columns[i]].blob) rc = parquet_index(p, i, e);
    }
    if (!rc) return p;
    close_table(p);
    return NULL;
}

/* Returns the open table of this path; it is opened if no reference has named it before. */
static struct parquet *table_of(struct image_files *f, const char *path, struct error *e)
{
    struct parquet *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->tables.n && !found; i++)
        if (!strcmp(f->tables.at[i]->path, path)) found = f->tables.at[i];
    if (!found && !may_read_table(f, path)) refuse_outside(f, e);
    else if (!found && (found = open_table(path, e))) vec_push(&f->tables, found);
    pthread_mutex_unlock(&f->lock);
    return found;
}

static int find_cell(struct image_files *f, const char *reference, struct place *p, struct error *e)
{
    if (!parquet_reference(reference, p->path, sizeof p->path, &p->cell))
        return error_set(e, PL_USAGE, "expected parquet:FILE/ROW/COLUMN/ITEM");
    p->table = table_of(f, p->path, e);
    if (!p->table) return e->code;
    const uint32_t column = p->cell.column;
    const struct parquet_node *leaf = column < p->table->n_columns ? &p->table->nodes[p->table->columns[column]] : NULL;
    return leaf && leaf->blob ? PL_OK : error_set(e, PL_USAGE, "column %u has no images", column);
}

/* Reads a cell into to[room]; `to` NULL: only its length. */
static int read_cell(const struct place *p, void *to, size_t room, size_t *n, struct error *e)
{
    enum cell_state state;
    if (parquet_cell(p->table, p->cell, to, room, n, &state, e)) return e->code;
    return state == CELL_THERE ? PL_OK : error_set(e, PL_USAGE, "there is no image");
}

/* --- references ------------------------------------------------------------------------------ */

/* Puts the reference before a message: data: URLs are long. */
static int about(const char *reference, struct error *e)
{
    if (media_is_volume(reference)) reference = media_volume_path(reference);
    return error_prepend(e, strlen(reference) > 200 ? "%.60s..." : "%s", reference);
}

static int find_text(const char *reference, struct place *p, struct error *e)
{
    const char *comma = strchr(reference, ',');
    if (!comma) return error_set(e, PL_USAGE, "the data: URL has no comma; expected data:image/png;base64,... ");
    if (comma - reference < 7 || strncasecmp(comma - 7, ";base64", 7) != 0)
        return error_set(e, PL_USAGE, "the data: URL is not in base64; expected data:image/png;base64,...");
    p->base64 = comma + 1;
    p->size = strlen(p->base64) / 4 * 3 + 3;
    return PL_OK;
}

/* Returns the path of a regular file; or a tar and the rest of the path, its member. False: there
 * is neither. */
static bool split_path(struct place *p, const char **member)
{
    *member = NULL;
    if (file_exists(p->path)) return true;
    for (char *at = strstr(p->path, ".tar/"); at; at = strstr(at + 4, ".tar/")) {
        at[4] = 0;
        if (file_exists(p->path)) return *member = at + 5, true;
        at[4] = '/';
    }
    return false;
}

/* Finds the tar that a path leads into and the rest of the path, its member; or the file or folder
 * p->path, and *in is NULL. */
static int locate(struct image_files *f, const char *path, struct place *p, struct archive **in, const char **member,
                  struct error *e)
{
    const char *where = f->where && *path != '/' ? f->where : NULL;
    *in = f->tar && *path != '/' ? f->tar : NULL;
    *member = path;
    if (!may_read(f, path)) return refuse_outside(f, e);
    if (*in) return PL_OK;
    if ((size_t)snprintf(p->path, sizeof p->path, "%s%s%s", where ? where : "", where ? "/" : "", path) >=
        sizeof p->path)
        return error_set(e, PL_USAGE, "the path has more than %d bytes", PATH_ROOM - 1);
    bool found = split_path(p, member);
    if (!found && strchr(p->path, '\\')) path_from_windows(p->path), found = split_path(p, member);
    if (!found && where) return error_set(e, PL_USAGE, "there is no such file in %s", where);
    if (!found) return error_set(e, PL_USAGE, "there is no such file");
    if (*member && !(*in = archive_of(f, p->path, e))) return e->code;
    return PL_OK;
}

static int find_path(struct image_files *f, const char *path, struct place *p, struct error *e)
{
    struct archive *in;
    const char *member;
    if (locate(f, path, p, &in, &member, e)) return e->code;
    if (in) return find_member(in, member, p, e);
    if (dir_exists(p->path)) return error_set(e, PL_USAGE, "it is a folder; expected an image");
    return file_size(p->path, &p->size, e);
}

static int find(struct image_files *f, const char *reference, struct place *p, struct error *e)
{
    p->base64 = NULL;
    p->archive = NULL;
    p->table = NULL;
    if (!*reference) return error_set(e, PL_USAGE, "the path of an image is empty");
    if (f->store)
        return error_set(e, PL_USAGE,
            "%s has embeddings of images, and no images: set data.images to the folder or tar of the images", f->where);
    if (!strncasecmp(reference, "data:", 5)) return find_text(reference, p, e);
    if (!strncasecmp(reference, "file://", 7)) return find_path(f, reference + 7, p, e);
    if (!strncmp(reference, PARQUET_REFERENCE, strlen(PARQUET_REFERENCE))) return find_cell(f, reference, p, e);
    if (strstr(reference, "://"))
        return error_set(e, PL_USAGE, "images are not downloaded: save it as a file, and give its path");
    return find_path(f, reference, p, e);
}

/* --- a store --------------------------------------------------------------------------------- */

static int open_store(struct image_files *f, const char *path, struct error *e)
{
    char *const paths[] = {(char *)path};
    return dataset_open(&f->store, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1,
                                                  .embeddings_alone = true},
                        e);
}

const struct dataset *image_files_store(const struct image_files *f) { return f->store; }

int image_files_output(const struct image_files *f, const char *reference, struct packed_output *out, struct error *e)
{
    if (packed_find(f->store, reference, out)) return PL_OK;
    error_set(e, PL_USAGE, "it is not in the store %s, which has %llu images: was it made of these conversations?",
              f->where, (unsigned long long)dataset_count(f->store));
    return about(reference, e);
}

enum data_fault image_files_embeddings(const struct image_files *f, const char *reference, uint32_t count, void *to,
                                       size_t bytes, uint32_t *replaced, struct error *e)
{
    struct packed_output x;
    if (image_files_output(f, reference, &x, e)) return FAULT_READ;
    if (x.fault) return error_set(e, PL_USAGE, "%s", x.why), x.fault;
    if (x.count != count)
        return error_set(e, PL_USAGE, "%.100s: the store has %u embeddings of it, and its text was tokenized with %u",
                         reference, x.count, count), FAULT_SIZE;
    if (dataset_check(f->store, x.sample, e)) return about(reference, e), FAULT_READ;
    memcpy(to, x.at, bytes);
    *replaced = x.replaced;
    return FAULT_NONE;
}

/* --- the interface --------------------------------------------------------------------------- */

/* Allows only what is below `where`, and tables that are the data itself, without `anywhere`. */
static void confine(struct image_files *f, const struct image_scope *s)
{
    char path[PATH_ROOM], real[PATH_MAX];
    if (s->anywhere) return;
    f->root = mem_string(absolute_path(s->where ? s->where : ".", path) ? path : "");
    f->real = realpath(f->root, real) ? mem_string(real) : NULL;
    for (uint32_t i = 0; i < s->n_tables; i++) vec_push(&f->own, mem_string(s->tables[i]));
}

uint32_t image_files_descriptors(void)
{
    enum { LEAST = 4, MOST = 64 };
    return (uint32_t)min_i64(MOST, max_i64(LEAST, files_limit() / 4));
}

int image_files_open(struct image_files **out, const struct image_scope *scope, struct error *e)
{
    struct image_files *f = mem_alloc(sizeof *f);
    const char *where = scope->where;
    *out = NULL;
    pthread_mutex_init(&f->lock, NULL);
    f->most = image_files_descriptors();
    confine(f, scope);
    int rc = PL_OK;
    if (where && packed_is(where)) {
        rc = open_store(f, where, e);
    } else if (where && file_exists(where) && !dir_exists(where)) {
        f->tar = archive_of(f, where, e);
        if (!f->tar) rc = e->code;
    } else if (where && !dir_exists(where)) {
        rc = error_set(e, PL_USAGE, "%s: there is no such folder or tar", where);
    }
    f->where = where ? mem_string(where) : NULL;
    if (rc) image_files_close(f);
    else *out = f;
    return rc;
}

void image_files_close(struct image_files *f)
{
    if (!f) return;
    dataset_close(f->store);
    for (uint32_t i = 0; i < f->archives.n; i++) close_archive(f->archives.at[i]);
    for (uint32_t i = 0; i < f->tables.n; i++) close_table(f->tables.at[i]);
    vec_free(&f->archives);
    vec_free(&f->tables);
    pthread_mutex_destroy(&f->lock);
    names_free(&f->own);
    mem_free(f->root);
    mem_free(f->real);
    mem_free(f->where);
    mem_free(f);
}

bool media_is_video(const char *reference) { return !strncmp(reference, VIDEO_REFERENCE, strlen(VIDEO_REFERENCE)); }

/* Lists the files of a folder in a tar, without those in folders of it and hidden ones; they
 * follow one another, sorted by name. */
static void list_folder(const struct archive *a, const char *name, struct video_at *out)
{
    VEC(struct video_part) parts = {0};
    struct text folder = {0};
    text_printf(&folder, "%s%s", plain_name(name), *name && name[strlen(name) - 1] == '/' ? "" : "/");
    for (uint32_t i = search_members(a, folder.at);
         i < a->members.n && !strncmp(member_name(a, i), folder.at, folder.n); i++) {
        const char *file = member_name(a, i) + folder.n;
        if (*file && *file != '.' && !strchr(file, '/'))
            vec_push(&parts, ((struct video_part){a->members.at[i].offset, a->members.at[i].size}));
    }
    out->parts = parts.at;
    out->n_parts = parts.n;
    text_free(&folder);
}

/* Finds a video in a tar. It has a descriptor of its own, which video_at_free closes. */
static int find_in_archive(struct image_files *f, struct archive *a, const char *name, struct video_at *out,
                           struct error *e)
{
    struct place p;
    list_folder(a, name, out);
    if (!out->n_parts) {
        if (find_member(a, name, &p, e)) return e->code;
        out->offset = p.offset;
        out->size = p.size;
    }
    if (take_archive(f, a, e)) return e->code;
    out->fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (out->fd < 0) file_error(a->path, "open it", e);
    give_archive(f, a);
    return out->fd < 0 ? e->code : PL_OK;
}

void video_at_free(struct video_at *v)
{
    if (v->fd >= 0) close(v->fd);
    mem_free((void *)v->path);
    mem_free((void *)v->parts);
    *v = (struct video_at){.fd = -1};
}

int image_files_video(struct image_files *f, const char *reference, struct video_at *out, struct error *e)
{
    const char *path = reference + (media_is_video(reference) ? strlen(VIDEO_REFERENCE) : 0), *member;
    struct archive *in = NULL;
    struct place p;
    int rc = PL_OK;
    *out = (struct video_at){.fd = -1};
    if (f->store)
        return error_set(e, PL_USAGE,
            "%s: %s has embeddings of frames, and no videos: set data.images to the folder or tar of the videos",
            reference, f->where);
    if (!strncasecmp(path, "file://", 7)) path += 7;
    if (!*path) rc = error_set(e, PL_USAGE, "the path of a video is empty");
    else if (!strncasecmp(path, "data:", 5))
        rc = error_set(e, PL_USAGE, "videos are not read from data: URLs: give a path");
    else if (strstr(path, "://"))
        rc = error_set(e, PL_USAGE, "videos are not downloaded: save it as a file, and give its path");
    else if (!(rc = locate(f, path, &p, &in, &member, e)) && in) rc = find_in_archive(f, in, member, out, e);
    if (rc) video_at_free(out);
    if (rc) return about(reference, e);
    out->path = mem_string(in ? path : p.path);
    return PL_OK;
}

/* Finds the file or the folder of a volume. */
static int find_volume(struct image_files *f, const char *reference, char found[PATH_ROOM], struct error *e)
{
    const char *path = media_volume_path(reference), *member;
    struct archive *in;
    struct place p;
    int rc = PL_OK;
    if (f->store)
        rc = error_set(e, PL_USAGE, "%s has embeddings of images, and volumes are read from files: set data.images to "
                       "their folder", f->where);
    else if (!*path) rc = error_set(e, PL_USAGE, "the path of a volume is empty");
    else if (strstr(path, "://")) rc = error_set(e, PL_USAGE, "volumes are not downloaded: give the path of a file");
    else if (!(rc = locate(f, path, &p, &in, &member, e)) && in)
        rc = error_set(e, PL_USAGE, "volumes are not read from a tar: unpack it");
    if (rc) return about(reference, e);
    memcpy(found, p.path, PATH_ROOM);
    return PL_OK;
}

int image_files_volume(struct image_files *f, const char *reference, const struct volume_options *o, struct volume *v,
                       struct error *e)
{
    char path[PATH_ROOM];
    TRY(find_volume(f, reference, path, e));
    return volume_open(v, path, o, e) ? about(reference, e) : PL_OK;
}

/* Finds a video, without opening it. */
static int find_video(struct image_files *f, const char *reference, struct error *e)
{
    struct video_at v;
    TRY(image_files_video(f, reference, &v, e));
    video_at_free(&v);
    return PL_OK;
}

int image_files_allow(const struct image_files *f, const char *reference, struct error *e)
{
    struct place p;
    const char *path = media_is_volume(reference) ? media_volume_path(reference)
                       : media_is_video(reference) ? reference + strlen(VIDEO_REFERENCE)
                                                   : reference;
    if (!strncasecmp(path, "file://", 7)) path += 7;
    if (!f->root || f->store || !strncasecmp(path, "data:", 5)) return PL_OK;
    if (parquet_reference(path, p.path, sizeof p.path, &p.cell) ? may_read_table(f, p.path) : may_read(f, path))
        return PL_OK;
    refuse_outside(f, e);
    return about(reference, e);
}

int image_files_find(struct image_files *f, const char *reference, uint64_t *bytes, struct error *e)
{
    struct place p;
    struct packed_output x;
    *bytes = 0;
    if (f->store)
        return image_files_output(f, reference, &x, e) ? e->code
               : x.fault                               ? error_set(e, PL_USAGE, "%s", x.why)
                                                       : PL_OK;
    if (media_is_video(reference)) return find_video(f, reference, e);
    if (media_is_volume(reference)) return find_volume(f, reference, p.path, e);
    size_t n;
    if (find(f, reference, &p, e) || (p.table && read_cell(&p, NULL, 0, &n, e))) return about(reference, e);
    *bytes = p.table ? n : p.size;
    return PL_OK;
}

static int read_text(const struct place *p, void *to, size_t *n, struct error *e)
{
    size_t bad;
    int64_t got = base64_decode(to, p->base64, strlen(p->base64), &bad);
    if (got < 0) return error_set(e, PL_USAGE, "its base64 is wrong at character %zu", bad + 1);
    *n = (size_t)got;
    return PL_OK;
}

static int read_member(struct image_files *f, const struct place *p, void *to, size_t n, struct error *e)
{
    if (take_archive(f, p->archive, e)) return e->code;
    int rc = fd_read_at(p->archive->fd, p->offset, to, n, e);
    give_archive(f, p->archive);
    return rc;
}

static int read_place(struct image_files *f, const struct place *p, void *to, size_t *n, struct error *e)
{
    if (p->base64) return read_text(p, to, n, e);
    if (p->archive) return read_member(f, p, to, *n, e);
    int fd = file_open(p->path, NULL, e);
    if (fd < 0) return e->code;
    int rc = fd_read_at(fd, 0, to, *n, e);
    close(fd);
    return rc;
}

int image_files_read(struct image_files *f, const char *reference, void *to, size_t room, size_t *n, struct error *e)
{
    struct place p;
    int rc = find(f, reference, &p, e);
    if (!rc && p.table) return read_cell(&p, to, room, n, e) ? about(reference, e) : PL_OK;
    if (!rc) *n = (size_t)p.size;
    if (!rc && p.size > room)
        rc = error_set(e, PL_NOFIT, "the image has %llu bytes; expected at most %zu", (unsigned long long)p.size, room);
    if (!rc) rc = read_place(f, &p, to, n, e);
    return rc ? about(reference, e) : PL_OK;
}
