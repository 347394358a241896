/*
 * unread.c: see unread.h. One row per format.
 */
#include "data/images/unread.h"

#include <string.h>
#include <strings.h>

#include "io/file.h"

#define MAGICK(ending) "convert to PNG, such as with ImageMagick: magick mogrify -format png *." ending

static const struct unread formats[] = {
    {"TIFF", " .tif .tiff ", MAGICK("tif")},
    {"NIfTI", " .nii .nii.gz ", "write the slices as PNG with nibabel and Pillow; the guide to datasets (docs/guides/datasets.md) has the script"},
    {"DICOM", " .dcm .dicom .ima ", "convert to PNG, such as with DCMTK: dcm2pnm --write-png +Wi 1 IN.dcm OUT.png"},
    {"MetaImage or NRRD", " .mha .mhd .nrrd ", "write the slices as PNG with SimpleITK and Pillow"},
    {"BMP", " .bmp ", MAGICK("bmp")},
    {"GIF", " .gif ", MAGICK("gif")},
    {"WebP", " .webp ", MAGICK("webp")},
    {"NumPy arrays", " .npy .npz ", "write the arrays as PNG with Pillow: Image.fromarray(array).save(\"a.png\")"},
};
enum { TIFF, NIFTI, DICOM, META, BMP, GIF, WEBP };

static bool has_ending(const char *path, const char *endings)
{
    size_t n = strlen(path);
    for (const char *at = endings + 1; *at;) {
        size_t m = strcspn(at, " ");
        if (n > m && !strncasecmp(path + n - m, at, m)) return true;
        at += m + 1;
    }
    return false;
}

const struct unread *unread_by_name(const char *path)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (has_ending(path, formats[i].endings)) return &formats[i];
    return NULL;
}

static bool bytes_at(const void *bytes, size_t n, size_t at, const char *magic, size_t length)
{
    return n >= at + length && !memcmp((const char *)bytes + at, magic, length);
}

const struct unread *unread_by_bytes(const void *bytes, size_t n)
{
    static const struct {
        int format;
        size_t at, n;
        const char *magic;
    } magics[] = {{TIFF, 0, 4, "II*\0"}, {TIFF, 0, 4, "MM\0*"}, {TIFF, 0, 4, "II+\0"}, {NIFTI, 344, 4, "n+1\0"}, {NIFTI, 4, 4, "n+2\0"},
                  {DICOM, 128, 4, "DICM"}, {META, 0, 4, "NRRD"}, {BMP, 0, 2, "BM"}, {GIF, 0, 4, "GIF8"}, {WEBP, 8, 4, "WEBP"}};
    for (size_t i = 0; i < COUNT(magics); i++)
        if (bytes_at(bytes, n, magics[i].at, magics[i].magic, magics[i].n)) return &formats[magics[i].format];
    return NULL;
}

const struct unread *unread_file(const char *path)
{
    const struct unread *u = unread_by_name(path);
    if (u) return u;
    char head[512];
    return unread_by_bytes(head, file_peek(path, head, sizeof head));
}

int unread_refuse(const struct unread *u, uint64_t n, const char *where, const char *example, struct error *e)
{
    if (n == 1) return error_set(e, PL_USAGE, "%s%s%s is %s, which is not read: %s", where ? where : "", where ? "/" : "", example, u->name, u->advice);
    return error_set(e, PL_USAGE, "%llu files%s%s are %s (such as %s), which is not read: %s", (unsigned long long)n, where ? " in " : "", where ? where : "", u->name,
                     example, u->advice);
}
