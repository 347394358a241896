/*
 * tokens.c: reads samples of int32 ids from token files.
 *
 * Opening inspects each file once and reduces it to four values: element type, first byte, number
 * of tokens, index of its first sample. Reading a sample is then one binary search and positioned
 * reads through a fixed buffer, the same for every format. Nothing is allocated after opening.
 *
 * Two checks make sure that the ids are valid: sizes are checked against headers when a file is
 * opened, and every id against the vocabulary when it is read. One of them detects a wrong element
 * type, which would otherwise only show in the loss.
 */
#include "data/text/tokens.h"

#include "data/formats/npy.h"
#include "io/file.h"
#include "io/safetensors.h"

#include <errno.h>
#include <unistd.h>

static const struct {
    const char *name;
    uint32_t size;
    char npy; /* NumPy's letter for the type */
    const char *safetensors;
} dtypes[] = {
    [TOKENS_AUTO] = {"auto", 0, 0, ""},
    [TOKENS_U8] = {"uint8", 1, 'u', "U8"},
    [TOKENS_U16] = {"uint16", 2, 'u', "U16"},
    [TOKENS_U32] = {"uint32", 4, 'u', "U32"},
    [TOKENS_I32] = {"int32", 4, 'i', "I32"},
    [TOKENS_I64] = {"int64", 8, 'i', "I64"},
};

/* --- formats: each fills dtype, start and count of a file -------------------- */

static int detect_npy(int fd, uint64_t size, struct tokens_file *f, struct error *e)
{
    struct npy_header h = {0};
    if (npy_read_header(fd, size, &h, e)) return e->code;
    for (int t = TOKENS_U8; t <= TOKENS_I64; t++)
        if (h.type == dtypes[t].npy && h.size == dtypes[t].size) f->dtype = (enum tokens_dtype)t;
    if (!f->dtype || h.big_endian)
        return error_set(e, PL_USAGE,
            "its elements are %s%c%u; expected little-endian u1, u2, u4, i4 or i8: save a.astype(\"uint32\")",
            h.big_endian ? "big-endian " : "", h.type, h.size);
    if (h.rank < 1 || h.rank > 2)
        return error_set(e, PL_USAGE, "it has %u dimensions; expected 1 or 2: save a.reshape(-1)", h.rank);
    if (h.fortran_order && h.rank == 2)
        return error_set(e, PL_USAGE, "it is in Fortran order; expected C order: "
                                      "save numpy.ascontiguousarray(a) instead");
    f->start = h.data;
    f->count = h.count;
    return PL_OK;
}

/* The header of llm.c: magic, version, number of tokens, then zeros up to 256 ints. */
enum { LLMC_HEADER = 256 * 4 };
static const struct {
    uint32_t magic, version;
    enum tokens_dtype dtype;
} llmc_kinds[] = {
    {20240520, 1, TOKENS_U16}, /* GPT-2's vocabulary */
    {20240801, 7, TOKENS_U32}, /* Llama 3's vocabulary */
};

/* Leaves dtype at AUTO, without error, when the file has no such header. */
static int detect_llmc(int fd, uint64_t size, struct tokens_file *f, struct error *e)
{
    unsigned char b[12];
    uint32_t word[3];
    if (size < LLMC_HEADER || pread(fd, b, sizeof b, 0) != (ssize_t)sizeof b) return PL_OK;
    for (int i = 0; i < 3; i++)
        word[i] = b[4 * i] | (uint32_t)b[4 * i + 1] << 8 | (uint32_t)b[4 * i + 2] << 16 |
                  (uint32_t)b[4 * i + 3] << 24;
    for (size_t i = 0; i < COUNT(llmc_kinds); i++) {
        if (word[0] != llmc_kinds[i].magic || word[1] != llmc_kinds[i].version) continue;
        enum tokens_dtype dtype = llmc_kinds[i].dtype;
        uint64_t bytes = (uint64_t)word[2] * dtypes[dtype].size;
        if (bytes != size - LLMC_HEADER)
            return error_set(e, PL_USAGE, "its llm.c header describes %u tokens of %u bytes, but %llu bytes follow it",
                             word[2], dtypes[dtype].size, (unsigned long long)(size - LLMC_HEADER));
        f->dtype = dtype;
        f->start = LLMC_HEADER;
        f->count = word[2];
    }
    return PL_OK;
}

/* Refuses a file that holds something else than token ids. */
static int refuse(const char *what, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "it holds %s, not token ids. The model's tokenizer makes rows of plain text with data.format: "
                     "text, and of conversations and texts in JSON or "
                     "Parquet with data.format: conversations. To train on the bytes of the file as they are, set "
                     "data.format: bytes (`init --bytes`)", what);
}

/* Detects raw integers: of the configured type, or uint16 in a file that is named .bin or
 * .tokens. */
static int detect_raw(int fd, uint64_t size, enum tokens_dtype wanted, struct tokens_file *f, struct error *e)
{
    const char *what = not_tokens(f->path, fd);
    if (what) return refuse(what, e);
    bool known = path_has_ending(f->path, ".bin") || path_has_ending(f->path, ".tokens");
    if (!wanted && not_tokens_utf16(fd)) return refuse("text in UTF-16", e);
    if ((what = wanted == TOKENS_U8 ? NULL : not_tokens_text(fd))) return refuse(what, e);
    if (!wanted && !known)
        return error_set(e, PL_USAGE,
            "it is not a known token file: .npy, .safetensors, or raw uint16 as .bin or .tokens. If it holds raw "
            "integers, set data.token_dtype to their type; to train on its bytes as they are, set data.format: bytes "
            "(`init --bytes`)");
    uint32_t width = wanted ? 0 : not_tokens_width(fd);
    if (width > 2)
        return error_set(e, PL_USAGE,
                         "it seems to hold integers of %u bytes: read as uint16, %s 0. Set data.token_dtype to %s, "
                         "or to uint16 if this is right",
                         width, width == 4 ? "every second one is" : "three of four are",
                         width == 4 ? "uint32" : "int64");
    f->dtype = wanted ? wanted : TOKENS_U16;
    f->count = size / dtypes[f->dtype].size;
    if (size % dtypes[f->dtype].size)
        return error_set(e, PL_USAGE, "its %llu bytes are not a whole number of %s tokens: it is truncated, or "
                         "data.token_dtype is not its type", (unsigned long long)size, dtypes[f->dtype].name);
    return PL_OK;
}

/* Finds the tensor of the tokens: by name, or the only one. */
static const struct st_entry *tokens_tensor(const struct st_file *st)
{
    const struct st_entry *t = st_find(st, "tokens");
    if (!t) t = st_find(st, "input_ids");
    return t || st->n_entries != 1 ? t : &st->entries[0];
}

static int detect_safetensors(struct tokens_file *f, struct error *e)
{
    struct st_file st;
    if (st_open(f->path, &st, e)) return e->code; /* its messages name the path */
    int rc = PL_OK;
    const struct st_entry *t = tokens_tensor(&st);
    for (int i = TOKENS_U8; t && i <= TOKENS_I64; i++)
        if (!strcmp(t->dtype_name, dtypes[i].safetensors)) f->dtype = (enum tokens_dtype)i;
    if (!t) {
        rc = error_set(e, PL_USAGE, "it has %u tensors and none is named tokens or input_ids", st.n_entries);
    } else if (!f->dtype) {
        rc = error_set(e, PL_USAGE, "its tensor %s is %s; expected U8, U16, U32, I32 or I64", t->name, t->dtype_name);
    } else if ((uint64_t)t->elements > t->bytes || (uint64_t)t->elements * dtypes[f->dtype].size != t->bytes) {
        rc = error_set(e, PL_USAGE, "its tensor %s has %lld elements of %s in %llu bytes", t->name,
                       (long long)t->elements, t->dtype_name, (unsigned long long)t->bytes);
    } else {
        f->start = st.data_begin + t->begin;
        f->count = (uint64_t)t->elements;
    }
    st_close(&st);
    return rc ? error_prepend(e, "%s", f->path) : PL_OK;
}

/* Detects all formats except safetensors, which has a reader that opens the file itself. */
static int detect(int fd, uint64_t size, enum tokens_dtype wanted, struct tokens_file *f, struct error *e)
{
    int rc = path_has_ending(f->path, ".npy") ? detect_npy(fd, size, f, e) : detect_llmc(fd, size, f, e);
    if (!rc && !f->dtype) rc = detect_raw(fd, size, wanted, f, e);
    return rc ? error_prepend(e, "%s", f->path) : PL_OK;
}

/* --- the dataset ------------------------------------------------------------- */

/* Finds the ids of a file. A dtype in the file's header must equal the configured dtype. `bytes`:
 * every byte of the file is an id, whatever the file is. */
static int inspect(struct tokens_file *f, enum tokens_dtype wanted, bool bytes, struct error *e)
{
    uint64_t size = 0;
    if (dir_exists(f->path))
        return error_set(e, PL_USAGE, "%s is a folder, not a regular file; for all files of a folder write FOLDER/*",
                         f->path);
    int fd = file_open(f->path, &size, e);
    if (fd < 0) return e->code;
    int rc = size ? PL_OK : error_set(e, PL_USAGE, "%s: the file is empty", f->path);
    if (!rc && bytes) f->dtype = TOKENS_U8, f->count = size;
    else if (!rc)
        rc = path_has_ending(f->path, ".safetensors") ? detect_safetensors(f, e) : detect(fd, size, wanted, f, e);
    close(fd);
    if (rc) return rc;
    if (!f->count) return error_set(e, PL_USAGE, "%s: it has no tokens", f->path);
    if (wanted && wanted != f->dtype && bytes)
        return error_set(
            e, PL_USAGE,
            "%s: data.format is bytes, but data.token_dtype is %s: leave that key at auto, or set data.format: tokens",
            f->path, dtypes[wanted].name);
    if (wanted && wanted != f->dtype)
        return error_set(e, PL_USAGE, "%s: its header says %s, but data.token_dtype is %s: leave the key at auto",
                         f->path, dtypes[f->dtype].name, dtypes[wanted].name);
    return PL_OK;
}

static int find_files(struct tokens *t, const struct tokens_options *o, struct error *e)
{
    VEC(struct tokens_file) files = {0};
    int rc = PL_OK;
    for (uint32_t i = 0; !rc && i < o->n_paths; i++) {
        struct names found = {0};
        rc = file_glob(o->paths[i], &found, e);
        if (!rc && !found.n)
            rc = error_set(e, PL_USAGE, "%s: no file has this name or matches it as a glob", o->paths[i]);
        for (uint32_t j = 0; j < found.n; j++)
            vec_push(&files, (struct tokens_file){.path = mem_string(found.at[j])});
        names_free(&found);
    }
    if (!rc && !files.n) rc = error_set(e, PL_USAGE, "no token files are given");
    t->files = files.at;
    t->n_files = files.n;
    return rc;
}

/* Counts the samples. Short files among longer ones are skipped with a warning; a dataset without
 * a sample is an error. */
static int number_samples(struct tokens *t, struct error *e)
{
    uint32_t short_files = 0;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < t->n_files; i++) {
        struct tokens_file *f = &t->files[i];
        f->first = t->samples;
        t->samples += f->count / t->sequence;
        if (f->count > longest) longest = f->count;
        if (f->count < t->sequence) short_files++;
    }
    if (!t->samples)
        return error_set(e, PL_USAGE, "%s: %s too short for one sample: %llu tokens, but data.sequence is %llu",
                         t->files[0].path, t->n_files > 1 ? "this and the other files are" : "the file is",
                         (unsigned long long)longest, (unsigned long long)t->sequence);
    if (short_files)
        log_warn("%u of %u token files are shorter than data.sequence (%llu) and are left out",
                 short_files, t->n_files, (unsigned long long)t->sequence);
    return PL_OK;
}

int tokens_open(struct tokens *t, const struct tokens_options *o, struct error *e)
{
    CHECK(o->sequence > 0 && o->vocab_size > 0, "sequence %lld", (long long)o->sequence);
    *t = (struct tokens){.sequence = (uint64_t)o->sequence, .vocab_size = (uint64_t)o->vocab_size};
    for (int i = 0; i < TOKENS_SLOTS; i++) t->slots[i].fd = -1;
    t->buffer = mem_alloc(TOKENS_BUFFER);
    int rc = find_files(t, o, e);
    for (uint32_t i = 0; !rc && i < t->n_files; i++) rc = inspect(&t->files[i], o->dtype, o->bytes, e);
    if (!rc) rc = number_samples(t, e);
    if (rc) tokens_close(t);
    return rc;
}

void tokens_close(struct tokens *t)
{
    for (int i = 0; i < TOKENS_SLOTS; i++)
        if (t->slots[i].file) close(t->slots[i].fd);
    for (uint32_t i = 0; i < t->n_files; i++) mem_free(t->files[i].path);
    mem_free(t->files);
    mem_free(t->buffer);
    *t = (struct tokens){0};
}

/* --- reading ---------------------------------------------------------------------- */

/* Returns the last file that has its first sample at or before `sample`. A file without samples
 * has the same `first` as the next file, and the search skips it. */
static uint32_t file_of(const struct tokens *t, uint64_t sample)
{
    uint32_t low = 0, high = t->n_files;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (t->files[middle].first <= sample) low = middle;
        else high = middle;
    }
    return low;
}

static int descriptor(struct tokens *t, uint32_t file, int *fd, struct error *e)
{
    uint32_t slot = file % TOKENS_SLOTS;
    if (t->slots[slot].file != file + 1) {
        if (t->slots[slot].file) close(t->slots[slot].fd);
        t->slots[slot].file = 0;
        int opened = file_open(t->files[file].path, NULL, e);
        if (opened < 0) return e->code;
        t->slots[slot].fd = opened;
        t->slots[slot].file = file + 1;
    }
    *fd = t->slots[slot].fd;
    return PL_OK;
}

/* Reads bytes of a file that was long enough when it was opened: a short read means that it
 * changed during the run. */
static int read_fully(int fd, unsigned char *to, size_t bytes, uint64_t at, struct error *e)
{
    while (bytes) {
        ssize_t got = pread(fd, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(e, PL_FAIL, "cannot read: %s", strerror(errno));
        if (got == 0) return error_set(e, PL_FAIL, "the file became shorter while it was in use");
        to += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return PL_OK;
}

/* Returns one element, little-endian. Signed types are sign-extended, so that a negative id is
 * outside of any vocabulary. */
static int64_t element(const unsigned char *p, enum tokens_dtype dtype)
{
    uint64_t x = 0;
    for (uint32_t i = 0; i < dtypes[dtype].size; i++) x |= (uint64_t)p[i] << (8 * i);
    return dtype == TOKENS_I32 ? (int32_t)(uint32_t)x : (int64_t)x;
}

/* Converts n elements of the buffer to ids; returns the number of ids before the first that is
 * outside of the vocabulary. */
static uint64_t convert(const struct tokens *t, enum tokens_dtype dtype, uint64_t n, int32_t *out)
{
    uint32_t size = dtypes[dtype].size;
    for (uint64_t i = 0; i < n; i++) {
        int64_t id = element(t->buffer + i * size, dtype);
        if (id < 0 || (uint64_t)id >= t->vocab_size || id > INT32_MAX) return i;
        out[i] = (int32_t)id;
    }
    return n;
}

int tokens_read(struct tokens *t, uint64_t sample, int32_t *out, struct error *e)
{
    CHECK(sample < t->samples, "sample %llu of %llu", (unsigned long long)sample, (unsigned long long)t->samples);
    uint32_t number = file_of(t, sample);
    const struct tokens_file *f = &t->files[number];
    uint32_t size = dtypes[f->dtype].size;
    uint64_t token = (sample - f->first) * t->sequence, left = t->sequence;
    int fd = -1;
    if (descriptor(t, number, &fd, e)) return e->code;
    while (left) {
        uint64_t n = left < TOKENS_BUFFER / size ? left : TOKENS_BUFFER / size;
        if (read_fully(fd, t->buffer, n * size, f->start + token * size, e))
            return error_prepend(e, "%s", f->path);
        uint64_t good = convert(t, f->dtype, n, out);
        if (good < n)
            return error_set(e, PL_USAGE,
                             "%s: token %llu is %lld, but the model's vocabulary has %llu ids: the file is from "
                             "another tokenizer, or is not %s", f->path, (unsigned long long)(token + good),
                             (long long)element(t->buffer + good * size, f->dtype),
                             (unsigned long long)t->vocab_size, dtypes[f->dtype].name);
        out += n;
        token += n;
        left -= n;
    }
    return PL_OK;
}

/* --- the fingerprint --------------------------------------------------------------- */

int tokens_fingerprint(struct tokens *t, uint64_t *out, struct error *e)
{
    uint64_t h = hash_bytes(&t->sequence, sizeof t->sequence, 0);
    for (uint32_t i = 0; i < t->n_files; i++) {
        const struct tokens_file *f = &t->files[i];
        const uint64_t bytes = f->count * dtypes[f->dtype].size, blocks = (bytes + TOKENS_BUFFER - 1) / TOKENS_BUFFER,
                       read = min_u64(blocks, TOKENS_WHOLE / TOKENS_BUFFER), facts[] = {(uint64_t)f->dtype, f->count};
        int fd = -1;
        if (descriptor(t, i, &fd, e)) return e->code;
        h = hash_bytes(facts, sizeof facts, h);
        for (uint64_t k = 0; k < read; k++) {
            const uint64_t at = (read > 1 ? k * (blocks - 1) / (read - 1) : 0) * TOKENS_BUFFER,
                           n = min_u64(TOKENS_BUFFER, bytes - at);
            if (read_fully(fd, t->buffer, n, f->start + at, e)) return error_prepend(e, "%s", f->path);
            h = hash_bytes(t->buffer, n, h);
        }
    }
    *out = h ? h : 1;
    return PL_OK;
}

/* ---- Files that are not tokens ---- */

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

/* Judges a file; `path` NULL: only by the first bytes. */
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

bool is_token_file(const char *path)
{
    return path_has_ending(path, ".bin") || path_has_ending(path, ".tokens") || path_has_ending(path, ".npy") ||
           path_has_ending(path, ".safetensors");
}

bool is_plain_text(const char *path)
{
    static const char *const endings[] = {".txt", ".text", ".md", ".rst", ".tex"};
    for (size_t i = 0; i < COUNT(endings); i++)
        if (path_has_ending(path, endings[i])) return true;
    return false;
}

/* Returns the length of the UTF-8 character that starts with this byte; 0: none does. */
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
