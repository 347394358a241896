/*
 * not_tokens.c: see not_tokens.h.
 */
#include "data/text/not_tokens.h"

#include <string.h>
#include <unistd.h>

enum { LOOKED_AT = 4096, TEXT_LEAST = 32, WIDTH_LEAST = 32 };

/* First bytes are compared in files of any name, so they have at least 4: fewer could be the ids
 * of a token file by chance. */
static const struct {
    const char *ending, *magic;
    size_t n; /* bytes of magic */
    const char *what;
} kinds[] = {
    {".parquet", "PAR1", 4, "a Parquet table"},
    {".arrow", "ARROW1", 6, "an Arrow table"},
    {".feather", NULL, 0, "an Arrow table"},
    {".jsonl", NULL, 0, "JSON records"},
    {".ndjson", NULL, 0, "JSON records"},
    {".json", NULL, 0, "JSON"},
    {".csv", NULL, 0, "a table of text"},
    {".tsv", NULL, 0, "a table of text"},
    {".txt", NULL, 0, "text"},
    {".text", NULL, 0, "text"},
    {".md", NULL, 0, "text"},
    {".rst", NULL, 0, "text"},
    {".tex", NULL, 0, "text"},
    {".html", NULL, 0, "text"},
    {".xml", NULL, 0, "text"},
    {".yaml", NULL, 0, "text"},
    {".py", NULL, 0, "text"},
    {".ipynb", NULL, 0, "text"},
    {".pdf", "%PDF-", 5, "a PDF"},
    {".gz", "\x1f\x8b\x08\x00", 4, "gzip data"},
    {".tgz", "\x1f\x8b\x08\x08", 4, "gzip data"},
    {".zst", "\x28\xb5\x2f\xfd", 4, "zstd data"},
    {".xz", "\xfd" "7zXZ", 5, "xz data"},
    {".bz2", NULL, 0, "bzip2 data"},
    {".7z", "7z\xbc\xaf\x27\x1c", 6, "a 7z archive"},
    {".zip", "PK\x03\x04", 4, "a zip archive"}, /* also .npz, .docx, and what torch.save writes */
    {".npz", NULL, 0, "a zip archive"},
    {".tar", NULL, 0, "a tar archive"},
    {".pt", NULL, 0, "what torch.save wrote"},
    {".pth", NULL, 0, "what torch.save wrote"},
    {".pkl", NULL, 0, "a Python pickle"},
    {".pickle", NULL, 0, "a Python pickle"},
    {".h5", "\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
    {".hdf5", NULL, 0, "an HDF5 file"},
    {".db", "SQLite format 3", 15, "an SQLite database"},
    {".gguf", "GGUF", 4, "a model in GGUF format"},
    {".png", "\x89PNG\r\n\x1a\n", 8, "a PNG image"},
    {".jpg", "\xff\xd8\xff\xe0", 4, "a JPEG image"},
    {".jpeg", "\xff\xd8\xff\xe1", 4, "a JPEG image"},
    {".idx", "MMIDIDX", 7, "Megatron's index; the tokens are in the .bin beside it"},
};

static size_t peek(int fd, unsigned char out[LOOKED_AT])
{
    ssize_t n = pread(fd, out, LOOKED_AT, 0);
    return n < 0 ? 0 : (size_t)n;
}

/* `path` NULL: by the first bytes alone. */
static const char *find_kind(const char *path, int fd)
{
    unsigned char head[LOOKED_AT];
    size_t n = peek(fd, head);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        bool magic = kinds[i].magic && n >= kinds[i].n && !memcmp(head, kinds[i].magic, kinds[i].n);
        if (magic || (path && path_has_ending(path, kinds[i].ending))) return kinds[i].what;
    }
    return NULL;
}

const char *not_tokens(const char *path, int fd) { return find_kind(path, fd); }
const char *not_tokens_bytes(int fd) { return find_kind(NULL, fd); }

bool is_plain_text(const char *path)
{
    static const char *const endings[] = {".txt", ".text", ".md", ".rst", ".tex"};
    for (size_t i = 0; i < COUNT(endings); i++)
        if (path_has_ending(path, endings[i])) return true;
    return false;
}

/* The length of the UTF-8 character that starts with this byte; 0: none does. */
static size_t utf8_length(unsigned char c)
{
    if (c < 0x80) return c >= 0x20 || (c >= '\t' && c <= '\r') ? 1 : 0;
    return c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

bool not_tokens_utf16(int fd)
{
    unsigned char head[LOOKED_AT];
    size_t n = peek(fd, head);
    return n >= 4 && ((head[0] == 0xff && head[1] == 0xfe) || (head[0] == 0xfe && head[1] == 0xff));
}

const char *not_tokens_text(int fd)
{
    unsigned char head[LOOKED_AT];
    size_t n = peek(fd, head);
    if (n < TEXT_LEAST) return NULL;
    for (size_t i = 0; i < n;) {
        size_t length = utf8_length(head[i]);
        if (!length) return NULL;
        for (size_t k = 1; k < length && i + k < n; k++) /* the last character may be cut */
            if ((head[i + k] & 0xc0) != 0x80) return NULL;
        i += length;
    }
    return "text";
}

uint32_t not_tokens_width(int fd)
{
    unsigned char head[LOOKED_AT];
    size_t n = peek(fd, head) / 8 * 8;
    bool used[4] = {false}; /* whether element i % 4 of the uint16 is ever other than 0 */
    for (size_t i = 0; i < n; i += 2) used[i / 2 % 4] |= head[i] || head[i + 1];
    if (n < WIDTH_LEAST || !used[0] || used[1] || used[3]) return 2;
    return used[2] ? 4 : 8;
}
