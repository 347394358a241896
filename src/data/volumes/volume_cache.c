/*
 * volume_cache.c: see volume_cache.h.
 */
#include "data/volumes/volume_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/gunzip.h"
#include "io/temporary.h"

static const uint64_t kept_free = 1ull << 30;

static int find_folder(const char *given, struct text *out, struct error *e)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given && *given) text_printf(out, "%s", given);
    else if (base && *base) text_printf(out, "%s/plimsoll/volumes", base);
    else if (home && *home) text_printf(out, "%s/.cache/plimsoll/volumes", home);
    else
        return error_set(e, PL_FAIL,
                         "there is no folder for decompressed volumes: set data.volume_cache, or XDG_CACHE_HOME");
    return dir_make(out->at, e);
}

int volume_cache_path(const char *volume, const char *folder, const char *ending, struct text *out, struct error *e)
{
    struct stat s;
    char *full = realpath(volume, NULL);
    if (!full || stat(full, &s)) return free(full), file_error(volume, "open", e);
    const int64_t facts[] = {s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
    const uint64_t hash = hash_bytes(facts, sizeof facts, hash_bytes(full, strlen(full), 0));
    const char *base = strrchr(full, '/') + 1;
    int rc = find_folder(folder, out, e);
    if (!rc) text_printf(out, "/%016llx-%.120s%s", (unsigned long long)hash, base, ending);
    free(full);
    return rc;
}

static int check_disk(const char *path, uint64_t bytes, struct error *e)
{
    uint64_t left;
    char need[32], has[32];
    if (disk_free(path, &left, e)) return e->code;
    if (left >= bytes + kept_free) return PL_OK;
    return error_set(e, PL_FAIL,
                     "it is decompressed to %s, which needs %s and 1 GiB more: the disk has %s free; set "
                     "data.volume_cache to a folder of another disk",
                     path, size_print(bytes, need), size_print(left, has));
}

static int decompress(int from, int to, uint64_t bytes, struct error *e)
{
    struct gunzip_report r;
    if (gunzip_at_most(from, to, bytes, &r, e)) return e->code;
    if (r.out < bytes)
        return error_set(e, PL_USAGE, "its header describes %llu bytes, and it has %llu%s%s", (unsigned long long)bytes,
                         (unsigned long long)r.out, r.damaged ? ": " : "", r.reason);
    if (r.damaged) return error_set(e, PL_USAGE, "it cannot be decompressed: %s", r.reason);
    return PL_OK;
}

int volume_cache_gunzip(const char *from, const char *to, uint64_t bytes, struct error *e)
{
    uint64_t have, packed;
    struct error ignored;
    if (file_exists(to) && !file_size(to, &have, &ignored) && have == bytes) return PL_OK;
    int fd = file_open(from, &packed, e);
    if (fd < 0) return e->code;
    int rc = bytes / 1032 > packed
                 ? error_set(e, PL_USAGE, "its header describes %llu bytes, more than %llu compressed bytes can hold",
                             (unsigned long long)bytes, (unsigned long long)packed)
                 : check_disk(to, bytes, e);
    struct temporary t = {.fd = -1};
    if (!rc) rc = temporary_file(&t, to, e);
    if (!rc) rc = decompress(fd, t.fd, bytes, e);
    if (!rc) rc = temporary_keep(&t, to, false, e);
    temporary_drop(&t);
    close(fd);
    return rc;
}
