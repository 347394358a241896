/*
 * dicom_parse.c: the elements of a DICOM file (see dicom.h).
 *
 *     128 bytes, "DICM", elements of group 2 (explicit), then elements in the transfer syntax that
 *     these name:
 *     group element [VR] length value
 *
 * Values of sequences are skipped, whether their length is written or marked by a delimiter. Every
 * read is checked against the end of the file, and every element moves forward, so that no file
 * loops.
 */
#include <math.h>

#include "data/volumes/dicom.h"
#include "io/file.h"

enum { UNDEFINED = -1, DEPTH = 16 };

static bool get(const struct dicom_source *s, uint64_t at, void *to, size_t n)
{
    struct error ignored;
    if (at > s->n || n > s->n - at) return false;
    if (s->bytes) return memcpy(to, s->bytes + at, n), true;
    return !fd_read_at(s->fd, at, to, n, &ignored);
}

static uint32_t u16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32(const uint8_t *p) { return u16(p) | u16(p + 2) << 16; }

struct element {
    uint32_t tag;      /* group << 16 | element */
    bool sequence;
    int64_t n;         /* bytes of the value; UNDEFINED: until a delimiter */
    uint64_t value;    /* offset */
};

/* Returns the element at *at, which moves to its value. */
static bool next_element(const struct dicom_source *s, bool implicit, uint64_t *at, struct element *x)
{
    static const char *const longs[] = {"OB", "OD", "OF", "OL", "OV", "OW", "SQ", "SV", "UC", "UN", "UR", "UT", "UV"};
    uint8_t h[12];
    if (!get(s, *at, h, 8)) return false;
    *x = (struct element){.tag = u16(h) << 16 | u16(h + 2)};
    uint32_t n = u32(h + 4);
    *at += 8;
    if (!implicit && x->tag >> 16 != 0xfffe) {
        const char vr[3] = {(char)h[4], (char)h[5], 0};
        bool is_long = false;
        for (size_t i = 0; i < COUNT(longs); i++) is_long |= !strcmp(vr, longs[i]);
        x->sequence = !strcmp(vr, "SQ");
        if (is_long) {
            if (!get(s, *at, h + 8, 4)) return false;
            n = u32(h + 8);
            *at += 4;
        } else {
            n = u16(h + 6);
        }
    }
    x->n = n == 0xffffffff ? UNDEFINED : (int64_t)n;
    x->value = *at;
    return x->n == UNDEFINED || (uint64_t)x->n <= s->n - *at;
}

/* Reports whether value representations are written, by those of the element at `at`: two capital
 * letters. The length of an implicit element would be above 16 KiB to look like them. What the
 * transfer syntax says may be wrong, and a sequence in a value of unknown representation (UN) is
 * implicit in any syntax. */
static bool is_implicit(const struct dicom_source *s, uint64_t at)
{
    uint8_t h[6];
    return get(s, at, h, sizeof h) && !(h[4] >= 'A' && h[4] <= 'Z' && h[5] >= 'A' && h[5] <= 'Z');
}

/* Moves behind a value of undefined length: items until the delimiter of the sequence. */
static bool skip_undefined(const struct dicom_source *s, bool implicit, uint64_t *at, int depth)
{
    struct element x;
    while (depth && next_element(s, implicit, at, &x)) {
        if (x.tag == 0xfffee0dd || x.tag == 0xfffee00d) return true;
        if (x.n == UNDEFINED) {
            if (!skip_undefined(s, implicit || (x.tag == 0xfffee000 && is_implicit(s, *at)), at, depth - 1))
                return false;
        } else {
            *at += (uint64_t)x.n;
        }
    }
    return false;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Reads a text without the blanks around it. */
static void read_text(const struct dicom_source *s, const struct element *x, char *to, size_t room)
{
    size_t n = (size_t)min_u64((uint64_t)(x->n < 0 ? 0 : x->n), room - 1);
    if (!get(s, x->value, to, n)) n = 0;
    while (n && (to[n - 1] == ' ' || !to[n - 1])) n--;
    to[n] = 0;
}

/* Reads decimal texts, separated by backslashes; returns how many. */
static int read_numbers(const struct dicom_source *s, const struct element *x, double *to, int room)
{
    char text[256];
    int n = 0;
    read_text(s, x, text, sizeof text);
    for (char *at = text; n < room && *at;) {
        char *end;
        to[n] = strtod(at, &end);
        if (end == at || !isfinite(to[n])) break;
        n++;
        at = end;
        while (*at == ' ') at++;
        if (*at != '\\') break;
        at++;
    }
    return n;
}

static uint32_t read_short(const struct dicom_source *s, const struct element *x)
{
    uint8_t b[2] = {0};
    if (x->n >= 2) get(s, x->value, b, 2);
    return u16(b);
}

static void take(struct dicom_header *h, const struct dicom_source *s, const struct element *x)
{
    double frames = 0;
    switch (x->tag) {
    case 0x00020010: read_text(s, x, h->syntax, sizeof h->syntax); break;
    case 0x00180088: read_numbers(s, x, &h->between, 1); break;
    case 0x00100020: read_text(s, x, h->patient, sizeof h->patient); break;
    case 0x0020000e: read_text(s, x, h->series, sizeof h->series); break;
    case 0x00200032: h->has_position = read_numbers(s, x, h->position, 3) == 3; break;
    case 0x00200037: h->has_orientation = read_numbers(s, x, h->orientation, 6) == 6; break;
    case 0x00280002: h->samples = read_short(s, x); break;
    case 0x00280004: read_text(s, x, h->photometric, sizeof h->photometric); break;
    case 0x00280006: h->planar = read_short(s, x); break;
    case 0x00280008:
        h->frames = read_numbers(s, x, &frames, 1) == 1 && frames > 0 && frames < 1e6 ? (uint32_t)frames : 1;
        break;
    case 0x00280010: h->rows = read_short(s, x); break;
    case 0x00280011: h->columns = read_short(s, x); break;
    case 0x00280030: read_numbers(s, x, h->spacing, 2); break;
    case 0x00280100: h->allocated = read_short(s, x); break;
    case 0x00280101: h->stored = read_short(s, x); break;
    case 0x00280102: h->high = read_short(s, x); break;
    case 0x00280103: h->is_signed = read_short(s, x) == 1; break;
    case 0x00281052: read_numbers(s, x, &h->inter, 1); break;
    case 0x00281053: read_numbers(s, x, &h->slope, 1); break;
    default: break;
    }
}

/* Returns the first item of the Modality LUT Sequence: how many entries it has, the value that the
 * first one is for, their bits, and where they are. */
static bool read_lut(struct dicom_header *h, const struct dicom_source *s, bool implicit, uint64_t at)
{
    struct element x;
    uint8_t three[6];
    bool described = false;
    if (!next_element(s, implicit, &at, &x) || x.tag != 0xfffee000) return false;
    const uint64_t end = x.n == UNDEFINED ? s->n : at + (uint64_t)x.n;
    implicit |= is_implicit(s, at);
    while (at < end && next_element(s, implicit, &at, &x) && x.n != UNDEFINED) {
        if (x.tag == 0x00283002 && x.n == 6 && get(s, x.value, three, sizeof three)) {
            described = true;
            h->lut = (struct dicom_lut){.at = h->lut.at, .bytes = h->lut.bytes, .n = u16(three) ? u16(three) : 65536,
                                        .first = (int32_t)u16(three + 2), .bits = u16(three + 4)};
        }
        if (x.tag == 0x00283006) h->lut.at = x.value, h->lut.bytes = (uint64_t)x.n;
        at += (uint64_t)x.n;
    }
    return described && h->lut.bits >= 8 && h->lut.bits <= 16 && h->lut.bytes >= (h->lut.bits == 8 ? 1 : 2) * h->lut.n;
}

/* --- the file --------------------------------------------------------------------------------- */

static const struct {
    const char *uid;
    enum dicom_coding coding;
} syntaxes[] = {
    {"1.2.840.10008.1.2", DICOM_NATIVE},        {"1.2.840.10008.1.2.1", DICOM_NATIVE},
    {"1.2.840.10008.1.2.5", DICOM_RLE},         {"1.2.840.10008.1.2.4.50", DICOM_JPEG},
    {"1.2.840.10008.1.2.4.57", DICOM_LOSSLESS}, {"1.2.840.10008.1.2.4.70", DICOM_LOSSLESS},
    {"1.2.840.10008.1.2.4.90", DICOM_JPEG2000}, {"1.2.840.10008.1.2.4.91", DICOM_JPEG2000},
};

static int find_syntax(struct dicom_header *h, struct error *e)
{
    h->coding = DICOM_UNREAD;
    for (size_t i = 0; i < COUNT(syntaxes); i++)
        if (!strcmp(h->syntax, syntaxes[i].uid)) h->coding = syntaxes[i].coding;
    if (!strcmp(h->syntax, "1.2.840.10008.1.2.2") || !strcmp(h->syntax, "1.2.840.10008.1.2.1.99"))
        return error_set(e, PL_USAGE,
            "its transfer syntax is %s (big endian, or deflated), which is not read: convert it, such as with dcm2niix",
            h->syntax);
    return PL_OK;
}

/* Reads the meta elements, which are explicit; then *at is the first element of the data set. */
static int read_meta(struct dicom_header *h, const struct dicom_source *s, uint64_t *at, struct error *e)
{
    uint8_t head[132] = {0};
    struct element x;
    *at = 132;
    if (!get(s, 0, head, sizeof head) || memcmp(head + 128, "DICM", 4))
        return error_set(e, PL_USAGE, "it is not a DICOM file: DICM is missing at byte 128");
    for (uint64_t from = *at; next_element(s, false, &from, &x) && x.tag >> 16 == 2; *at = from) {
        if (x.n == UNDEFINED) return error_set(e, PL_USAGE, "its meta elements are damaged");
        take(h, s, &x);
        from += (uint64_t)x.n;
    }
    return find_syntax(h, e);
}

static int read_elements(struct dicom_header *h, const struct dicom_source *s, uint64_t at, struct error *e)
{
    struct element x;
    h->implicit = is_implicit(s, at);
    while (at < s->n) {
        if (!next_element(s, h->implicit, &at, &x))
            return error_set(e, PL_USAGE, "it ends inside of an element, at byte %llu", (unsigned long long)at);
        if (x.tag == 0x7fe00010) {
            h->pixels = x.value;
            h->pixels_n = x.n == UNDEFINED ? s->n - x.value : (uint64_t)x.n;
            return PL_OK;
        }
        if (x.tag == 0x00283000 && x.n && !read_lut(h, s, h->implicit, x.value))
            return error_set(e, PL_USAGE, "its Modality LUT (0028,3000) is damaged");
        if (x.n == UNDEFINED) {
            if (!skip_undefined(s, h->implicit, &at, DEPTH))
                return error_set(e, PL_USAGE, "a sequence of it does not end, at byte %llu",
                                 (unsigned long long)x.value);
            continue;
        }
        if (!x.sequence) take(h, s, &x);
        at += (uint64_t)x.n;
    }
    return PL_OK;
}

static int check_image(const struct dicom_header *h, struct error *e)
{
    const bool to_rgb =
        !strcmp(h->photometric, "RGB") || (h->coding == DICOM_JPEG && !strncmp(h->photometric, "YBR_FULL", 8)) ||
        (h->coding == DICOM_JPEG2000 && (!strcmp(h->photometric, "YBR_ICT") || !strcmp(h->photometric, "YBR_RCT")));
    const bool grey = h->samples == 1 && !strncmp(h->photometric, "MONOCHROME", 10),
               colour = h->samples == 3 && h->allocated == 8 && to_rgb;
    if (!h->syntax[0])
        return error_set(e, PL_USAGE,
            "it names no transfer syntax (0002,0010), so its values cannot be read: convert it, such as with dcm2niix");
    if (h->coding == DICOM_UNREAD)
        return error_set(e, PL_USAGE,
                         "its pixels are compressed by %s, which is not read: decompress them, such as with GDCM: "
                         "gdcmconv --raw IN.dcm OUT.dcm", h->syntax);
    if (h->frames > 1)
        return error_set(e, PL_USAGE,
                         "it has %u frames; expected a series of one file per slice: convert it with dcm2niix",
                         h->frames);
    if (!h->rows || !h->columns || (!grey && !colour) || (h->allocated != 8 && h->allocated != 16) || !h->stored ||
        h->stored > h->allocated || h->high >= h->allocated || h->high + 1 < h->stored)
        return error_set(e, PL_USAGE,
            "its image is %ux%u, %s, %u samples of %u bits in %u; expected grey of 8 or 16 bits, or RGB of 8",
            h->columns, h->rows, h->photometric, h->samples, h->stored, h->allocated);
    if (h->lut.n && !grey)
        return error_set(e, PL_USAGE, "it has a Modality LUT (0028,3000) and %u samples a pixel; expected one",
                         h->samples);
    if (h->coding == DICOM_NATIVE && h->pixels_n < dicom_stored_bytes(h))
        return error_set(e, PL_USAGE, "its header describes %zu bytes of pixels, and it has %llu",
                         dicom_stored_bytes(h), (unsigned long long)h->pixels_n);
    return PL_OK;
}

int dicom_parse(struct dicom_header *h, const struct dicom_source *s, struct error *e)
{
    uint64_t at;
    *h = (struct dicom_header){.samples = 1, .frames = 1, .slope = 1, .spacing = {1, 1}};
    if (read_meta(h, s, &at, e) || read_elements(h, s, at, e)) return e->code;
    if (!h->pixels) {
        h->rows = 0;
        return PL_OK;
    }
    if (h->lut.n && h->is_signed && h->lut.first > INT16_MAX) h->lut.first -= 65536;
    if (h->lut.n) h->slope = 1, h->inter = 0; /* instead of them */
    if (h->slope == 0) h->slope = 1;
    if (!(h->spacing[0] > 0 && h->spacing[1] > 0)) h->spacing[0] = h->spacing[1] = 1;
    return check_image(h, e);
}
