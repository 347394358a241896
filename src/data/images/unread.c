/*
 * unread.c: formats that are recognised and not read (see image.h). One row per format.
 */
#include "data/images/image.h"

#include <strings.h>

#include "io/file.h"

#define MAGICK(ending) "convert to PNG, such as with ImageMagick: magick mogrify -format png *." ending

static const struct unread formats[] = {
    {"MetaImage or NRRD", " .mha .mhd .nrrd ",
     "convert to NIfTI with SimpleITK: WriteImage(ReadImage(\"a.mha\"), \"a.nii.gz\")"},
    {"a TIFF with another ending", " ", "name it .tif"},
    {"a NIfTI volume with another ending", " ", "name it .nii, or .nii.gz if it is compressed"},
    {"DICOM", " .dicom .ima ",
     "name the files .dcm, and give each series a folder of its own, beside a folder of label volumes: "
     "images/CASE/*.dcm and labels/CASE.nii.gz"},
    {"Analyze", " .hdr .img ", "convert to NIfTI with nibabel: nibabel.save(nibabel.load(\"a.hdr\"), \"a.nii.gz\")"},
    {"BMP", " .bmp ", MAGICK("bmp")},
    {"GIF", " .gif ", MAGICK("gif")},
    {"NumPy arrays", " .npy .npz ", "write the arrays as PNG with Pillow: Image.fromarray(array).save(\"a.png\")"},
};
enum { META, TIFF, NIFTI, DICOM, ANALYZE, BMP, GIF };

/* Reports whether the path ends in one of the endings, which are between blanks: " .hdr .img ". */
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
    } magics[] = {{TIFF, 0, 4, "II*\0"},  {TIFF, 0, 4, "MM\0*"},   {TIFF, 0, 4, "II+\0"},      {NIFTI, 344, 4, "n+1\0"},
                  {NIFTI, 4, 4, "n+2\0"}, {DICOM, 128, 4, "DICM"}, {ANALYZE, 344, 4, "ni1\0"}, {META, 0, 4, "NRRD"},
                  {BMP, 0, 2, "BM"},      {GIF, 0, 4, "GIF8"}};
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
    if (n == 1)
        return error_set(e, PL_USAGE, "%s%s%s is %s, which is not read: %s", where ? where : "", where ? "/" : "",
                         example, u->name, u->advice);
    return error_set(e, PL_USAGE, "%llu files%s%s are %s (such as %s), which is not read: %s", (unsigned long long)n,
                     where ? " in " : "", where ? where : "", u->name, example, u->advice);
}
