/*
 * volume_cache.h: files that are made of volumes once and found again by later runs: decompressed
 * .nii.gz, and which slices of a label volume have labels.
 *
 * They lie in the folder data.volume_cache, else $XDG_CACHE_HOME/plimsoll/volumes
 * (~/.cache/plimsoll/volumes). A name holds a hash of the volume's path, size and time, so a
 * changed volume gets a new file; the folder may be deleted at any time between runs.
 */
#ifndef VOLUME_CACHE_H
#define VOLUME_CACHE_H

#include "base/base.h"

/* The path of the cache file of a volume with this ending; creates the folder. PL_FAIL: there is no
 * folder that can be written. */
int volume_cache_path(const char *volume, const char *folder, const char *ending, struct text *out, struct error *e);
/* Decompresses `from` to the file, unless it is there: exactly `bytes` of it, or PL_USAGE: the file
 * is cut, damaged, or longer. The disk keeps 1 GiB free: PL_FAIL. */
int volume_cache_gunzip(const char *from, const char *to, uint64_t bytes, struct error *e);

#endif
