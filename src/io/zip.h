/*
 * zip.h: zip archives of stored (not compressed) members, as torch.save writes them, with the
 * 64-bit extensions. Every length is checked against the file.
 */
#ifndef ZIP_H
#define ZIP_H

#include "base/base.h"

struct zip_member {
    const char *name;      /* in the bump, terminated */
    const uint8_t *data;
    uint64_t bytes;
    bool stored;           /* false: compressed, data is NULL */
};

struct zip {
    VEC(struct zip_member) members; /* sorted by name */
};

bool zip_is(const uint8_t *bytes, size_t n);
/* Reads the directory; names live in `b`. Call zip_free after a failure too. */
int zip_read(struct zip *z, const uint8_t *bytes, size_t n, struct bump *b, struct error *e);
void zip_free(struct zip *z);
const struct zip_member *zip_find(const struct zip *z, const char *name);

#endif
