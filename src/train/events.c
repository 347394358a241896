/*
 * events.c: TFRecord files of Event messages, written without a protobuf library.
 *
 *     record:  u64 n | masked crc32c of these 8 bytes | n bytes | masked crc32c of them
 *     Event:   1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
 *     Summary: 1 value (repeated): 1 tag string, 2 simple_value float
 *     SessionLog: 1 status (1: START)
 *
 * Fields are protobuf's: a varint (field << 3 | wire type), then the value. All numbers
 * are little-endian, as is every supported machine.
 *
 * Invariant: a file consists of whole records, except that a kill may truncate the last one. The
 * steps of its events ascend, so that removing later steps is a truncation.
 */
#include "train/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/coding.h"
#include "io/file.h"

/* Bytes of a record around its data; the largest data of a record. */
enum { BEFORE = 12, AFTER = 4, DATA_MOST = 1024 };

static const char NAME[] = "events.out.tfevents.";
static const char SUFFIX[] = ".plimsoll";

/* --- records ----------------------------------------------------------------------- */

/* Returns the checksum as TFRecord masks it: a checksum over data that contains checksums would be
 * weak. */
static uint32_t masked_crc(const void *bytes, size_t n)
{
    uint32_t crc = crc32c(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* A message under construction. */
struct bytes {
    uint8_t at[DATA_MOST];
    size_t n;
};

static void put(struct bytes *b, const void *from, size_t n)
{
    CHECK(b->n + n <= sizeof b->at, "an event of more than %d bytes", DATA_MOST);
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_varint(struct bytes *b, uint64_t x)
{
    do {
        uint8_t byte = (uint8_t)((x & 127) | (x > 127 ? 128 : 0));
        put(b, &byte, 1);
        x >>= 7;
    } while (x);
}

enum wire { WIRE_VARINT, WIRE_8, WIRE_BYTES, WIRE_4 = 5 }; /* 3 and 4 are deprecated */

static void put_key(struct bytes *b, int field, enum wire wire) { put_varint(b, (uint64_t)field << 3 | wire); }

static void put_bytes(struct bytes *b, int field, const void *from, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, from, n);
}

static void begin_event(struct bytes *b, int64_t step)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    b->n = 0;
    put_key(b, 1, WIRE_8);
    put(b, &now, sizeof now);
    if (!step) return;
    put_key(b, 2, WIRE_VARINT);
    put_varint(b, (uint64_t)step);
}

static int append(struct events *w, const struct bytes *data, struct error *e)
{
    uint8_t record[BEFORE + DATA_MOST + AFTER];
    uint64_t n = data->n;
    uint32_t crc = masked_crc(&n, sizeof n);
    memcpy(record, &n, sizeof n);
    memcpy(record + 8, &crc, sizeof crc);
    memcpy(record + BEFORE, data->at, n);
    crc = masked_crc(data->at, n);
    memcpy(record + BEFORE + n, &crc, sizeof crc);
    return fd_write(w->fd, record, BEFORE + n + AFTER) ? file_error(w->dir, "append an event", e) : PL_OK;
}

/* --- truncating -------------------------------------------------------------------- */

/* Reads a varint at *at, and moves *at behind it; false: it does not end before `end`. */
static bool take_varint(const uint8_t **at, const uint8_t *end, uint64_t *x)
{
    *x = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* Returns the step of an Event; 0 if it has none; -1 if it is not a valid message. */
static int64_t event_step(const uint8_t *at, size_t n)
{
    const uint8_t *end = at + n;
    int64_t step = 0;
    while (at < end) {
        uint64_t key, x = 0;
        if (!take_varint(&at, end, &key)) return -1;
        enum wire wire = (enum wire)(key & 7);
        if ((wire == WIRE_VARINT || wire == WIRE_BYTES) && !take_varint(&at, end, &x)) return -1;
        if (key == (2 << 3 | WIRE_VARINT)) step = (int64_t)x;
        uint64_t skip = wire == WIRE_BYTES ? x : wire == WIRE_8 ? 8 : wire == WIRE_4 ? 4 : 0;
        if (wire == 3 || wire == 4 || wire > WIRE_4 || skip > (uint64_t)(end - at)) return -1;
        at += skip;
    }
    return step;
}

/* Returns the number of leading bytes that are whole records of steps up to `step`. */
static size_t kept_bytes(const uint8_t *text, size_t size, int64_t step)
{
    size_t at = 0;
    while (size - at >= BEFORE + AFTER) {
        uint64_t n;
        uint32_t crc;
        memcpy(&n, text + at, sizeof n);
        memcpy(&crc, text + at + 8, sizeof crc);
        if (crc != masked_crc(&n, sizeof n) || n > size - at - BEFORE - AFTER) break;
        const uint8_t *data = text + at + BEFORE;
        memcpy(&crc, data + n, sizeof crc);
        if (crc != masked_crc(data, n)) break;
        int64_t found = event_step(data, n);
        if (found < 0 || found > step) break;
        at += BEFORE + n + AFTER;
    }
    return at;
}

static int cut_file(const char *path, int64_t step, struct error *e)
{
    char *text;
    size_t n;
    if (file_read(path, UINT64_MAX, &text, &n, e)) return e->code;
    size_t kept = kept_bytes((const uint8_t *)text, n, step);
    mem_free(text);
    if (kept == n) return PL_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int rc = fd < 0 || ftruncate(fd, (off_t)kept) || fsync(fd) ? file_error(path, "truncate it", e) : PL_OK;
    if (fd >= 0) close(fd);
    return rc;
}

/* Returns the number of steps before the first event of a file, from its name; -1: not one of our
 * files. */
static int64_t name_start(const char *name)
{
    char *end;
    if (strncmp(name, NAME, strlen(NAME))) return -1;
    int64_t start = strtoll(name + strlen(NAME), &end, 10);
    return !strcmp(end, SUFFIX) && start >= 0 ? start : -1;
}

/* Cuts the files of a folder after a step. A file that begins at the step or later is removed as a
 * whole. */
static int cut_folder(const char *dir, int64_t step, struct error *e)
{
    struct names names;
    int rc = PL_OK;
    if (!dir_exists(dir)) return PL_OK;
    if (dir_list(dir, &names, e)) return e->code;
    for (uint32_t i = 0; i < names.n && !rc; i++) {
        char path[EVENTS_PATH + 256];
        int64_t start = name_start(names.at[i]);
        snprintf(path, sizeof path, "%s/%s", dir, names.at[i]);
        if (start >= step) rc = tree_remove(path, e);
        else if (start >= 0) rc = cut_file(path, step, e);
    }
    names_free(&names);
    return rc;
}

/* --- the writer ------------------------------------------------------------------------- */

int events_open(struct events *w, const char *dir, int64_t step, struct error *e)
{
    *w = (struct events){.start = step, .fd = -1};
    CHECK(strlen(dir) < sizeof w->dir, "a path of %zu bytes", strlen(dir));
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    return cut_folder(dir, step, e);
}

static char *file_of(const struct events *w, char path[EVENTS_PATH + 64])
{
    snprintf(path, EVENTS_PATH + 64, "%s/%s%010lld%s", w->dir, NAME, (long long)w->start, SUFFIX);
    return path;
}

/* Writes the first events of a file: its version and, after other files, the session log that
 * invalidates their later steps. */
static int begin_file(struct events *w, struct error *e)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {1 << 3 | WIRE_VARINT, 1};
    char path[EVENTS_PATH + 64];
    struct bytes b;
    if (mkdir(w->dir, 0777) && errno != EEXIST) return file_error(w->dir, "make the folder", e);
    w->fd = open(file_of(w, path), O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) return file_error(path, "make it", e);
    begin_event(&b, 0);
    put_bytes(&b, 3, version, strlen(version));
    if (append(w, &b, e)) return e->code;
    begin_event(&b, w->start + 1);
    put_bytes(&b, 7, start, sizeof start);
    return w->start ? append(w, &b, e) : PL_OK;
}

int events_write(struct events *w, int64_t step, const struct scalar *scalars, int n, struct error *e)
{
    struct bytes event, summary = {.n = 0};
    for (int i = 0; i < n; i++) {
        struct bytes value = {.n = 0};
        float x = (float)scalars[i].value;
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, 2, WIRE_4);
        put(&value, &x, sizeof x);
        put_bytes(&summary, 1, value.at, value.n);
    }
    if (w->fd < 0 && begin_file(w, e)) return e->code;
    begin_event(&event, step);
    put_bytes(&event, 5, summary.at, summary.n);
    return append(w, &event, e);
}

int events_sync(struct events *w, struct error *e)
{
    if (w->fd < 0) return PL_OK;
    return fsync(w->fd) ? file_error(w->dir, "sync the event file", e) : dir_sync(w->dir, e);
}

void events_abandon(struct events *w)
{
    char path[EVENTS_PATH + 64];
    if (*w->dir && w->fd >= 0) {
        unlink(file_of(w, path));
        rmdir(w->dir); /* fails, as intended, if the folder is not empty */
    }
    events_close(w);
}

void events_close(struct events *w)
{
    if (*w->dir && w->fd >= 0) close(w->fd);
    *w = (struct events){.fd = -1};
}
