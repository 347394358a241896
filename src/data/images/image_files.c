/*
 * image_files.c: see image_files.h.
 *
 * A reference becomes a place: text, or a range of bytes in a file that may be a tar. Members of a tar
 * are found in an index, sorted by name without a leading "./".
 */
#include "data/images/image_files.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/base64.h"
#include "data/formats/tar.h"
#include "io/file.h"

enum { PATH_ROOM = 4096 };

struct member {
    uint64_t offset, size;
    size_t name; /* offset in `names` */
};

struct archive {
    char *path;
    int fd;
    VEC(struct member) members;
    struct text names;
};

struct image_files {
    char *where;
    struct archive *tar;            /* `where` is a tar */
    pthread_mutex_t lock;           /* guards the list */
    VEC(struct archive *) archives; /* all that references have named */
};

/* Where an image is: in base64, or in a file. */
struct place {
    const char *base64;
    const struct archive *archive; /* NULL: the file at `path` */
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

static int index_archive(struct archive *a, uint64_t size, struct error *e)
{
    char head[4] = {0};
    if (fd_read_at(a->fd, 0, head, (size_t)min_u64(size, sizeof head), e)) return e->code;
    enum tar_kind kind = tar_sniff(head, sizeof head);
    if (kind != TAR_PLAIN)
        return error_set(e, PL_USAGE, "it is compressed with %s and cannot be read in random order: unpack it, or decompress it", kind == TAR_GZIP ? "gzip" : "zstd");
    struct tar *t = mem_alloc(sizeof *t);
    struct tar_member *m = mem_alloc(sizeof *m);
    bool more = true;
    int rc = PL_OK;
    tar_open(t, a->fd, NULL, size);
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

static struct archive *open_archive(const char *path, struct error *e)
{
    struct archive *a = mem_alloc(sizeof *a);
    uint64_t size;
    a->path = mem_string(path);
    a->fd = file_open(path, &size, e);
    int rc = a->fd < 0 ? e->code : index_archive(a, size, e) ? error_prepend(e, "%s", path) : PL_OK;
    if (!rc) return a;
    close_archive(a);
    return NULL;
}

/* The open archive of this path; it is opened if no reference has named it before. */
static struct archive *archive_of(struct image_files *f, const char *path, struct error *e)
{
    struct archive *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->archives.n && !found; i++)
        if (!strcmp(f->archives.at[i]->path, path)) found = f->archives.at[i];
    if (!found && (found = open_archive(path, e))) vec_push(&f->archives, found);
    pthread_mutex_unlock(&f->lock);
    return found;
}

static int find_member(const struct archive *a, const char *name, struct place *p, struct error *e)
{
    uint32_t low = 0, high = a->members.n;
    name = plain_name(name);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(a->names.at + a->members.at[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    if (low == a->members.n || strcmp(a->names.at + a->members.at[low].name, name) != 0)
        return error_set(e, PL_USAGE, "it is not in the tar %s, which has %u files, such as %.200s", a->path, a->members.n, a->names.at + a->members.at[0].name);
    p->archive = a;
    p->offset = a->members.at[low].offset;
    p->size = a->members.at[low].size;
    return PL_OK;
}

/* --- references ------------------------------------------------------------------------------ */

/* The reference for messages: data: URLs are long. */
static int about(const char *reference, struct error *e)
{
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

/* The path of a regular file; or a tar and the rest of the path, its member. False: there is neither. */
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

static int find_path(struct image_files *f, const char *path, struct place *p, struct error *e)
{
    const char *member, *where = f->where && *path != '/' ? f->where : NULL;
    if (f->tar && *path != '/') return find_member(f->tar, path, p, e);
    if ((size_t)snprintf(p->path, sizeof p->path, "%s%s%s", where ? where : "", where ? "/" : "", path) >= sizeof p->path)
        return error_set(e, PL_USAGE, "the path has more than %d bytes", PATH_ROOM - 1);
    if (dir_exists(p->path)) return error_set(e, PL_USAGE, "it is a folder; expected an image");
    bool found = split_path(p, &member);
    if (!found && strchr(p->path, '\\')) path_from_windows(p->path), found = split_path(p, &member);
    if (!found && where) return error_set(e, PL_USAGE, "there is no such file in %s", where);
    if (!found) return error_set(e, PL_USAGE, "there is no such file");
    if (!member) return file_size(p->path, &p->size, e);
    const struct archive *a = archive_of(f, p->path, e);
    return a ? find_member(a, member, p, e) : e->code;
}

static int find(struct image_files *f, const char *reference, struct place *p, struct error *e)
{
    p->base64 = NULL;
    p->archive = NULL;
    if (!*reference) return error_set(e, PL_USAGE, "the path of an image is empty");
    if (!strncasecmp(reference, "data:", 5)) return find_text(reference, p, e);
    if (!strncasecmp(reference, "file://", 7)) return find_path(f, reference + 7, p, e);
    if (strstr(reference, "://")) return error_set(e, PL_USAGE, "images are not downloaded: save it as a file, and give its path");
    return find_path(f, reference, p, e);
}

/* --- the interface --------------------------------------------------------------------------- */

int image_files_open(struct image_files **out, const char *where, struct error *e)
{
    struct image_files *f = mem_alloc(sizeof *f);
    *out = NULL;
    pthread_mutex_init(&f->lock, NULL);
    int rc = PL_OK;
    if (where && file_exists(where) && !dir_exists(where)) {
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
    for (uint32_t i = 0; i < f->archives.n; i++) close_archive(f->archives.at[i]);
    vec_free(&f->archives);
    pthread_mutex_destroy(&f->lock);
    mem_free(f->where);
    mem_free(f);
}

bool media_is_video(const char *reference) { return !strncmp(reference, VIDEO_REFERENCE, strlen(VIDEO_REFERENCE)); }

int image_files_video(const struct image_files *f, const char *reference, struct text *out, struct error *e)
{
    const char *path = reference + (media_is_video(reference) ? strlen(VIDEO_REFERENCE) : 0);
    int rc = PL_OK;
    if (!strncasecmp(path, "file://", 7)) path += 7;
    if (!*path) rc = error_set(e, PL_USAGE, "the path of a video is empty");
    else if (!strncasecmp(path, "data:", 5)) rc = error_set(e, PL_USAGE, "videos are not read from data: URLs: give a path");
    else if (strstr(path, "://")) rc = error_set(e, PL_USAGE, "videos are not downloaded: save it as a file, and give its path");
    else if (f->tar && *path != '/') rc = error_set(e, PL_USAGE, "videos are not read from a tar: unpack it");
    if (rc) return about(reference, e);
    text_printf(out, "%s%s%s", f->where && *path != '/' ? f->where : "", f->where && *path != '/' ? "/" : "", path);
    if (!file_exists(out->at) && strchr(out->at, '\\')) path_from_windows(out->at);
    return PL_OK;
}

/* A video is looked for, and not opened. */
static int find_video(const struct image_files *f, const char *reference, struct error *e)
{
    struct text path = {0};
    int rc = image_files_video(f, reference, &path, e);
    if (!rc && !file_exists(path.at)) error_set(e, rc = PL_USAGE, "%s: there is no such video", path.at);
    text_free(&path);
    return rc;
}

int image_files_find(struct image_files *f, const char *reference, uint64_t *bytes, struct error *e)
{
    struct place p;
    *bytes = 0;
    if (media_is_video(reference)) return find_video(f, reference, e);
    if (find(f, reference, &p, e)) return about(reference, e);
    *bytes = p.size;
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

static int read_place(const struct place *p, void *to, size_t *n, struct error *e)
{
    if (p->base64) return read_text(p, to, n, e);
    if (p->archive) return fd_read_at(p->archive->fd, p->offset, to, *n, e);
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
    if (!rc) *n = (size_t)p.size;
    if (!rc && p.size > room) rc = error_set(e, PL_NOFIT, "the image has %llu bytes; expected at most %zu", (unsigned long long)p.size, room);
    if (!rc) rc = read_place(&p, to, n, e);
    return rc ? about(reference, e) : PL_OK;
}
