/*
 * dicom_j2k.c: OpenJPEG behind dicom.h.
 */
#include "data/volumes/dicom.h"

#include <openjpeg.h>

const char *dicom_j2k_version(void) { return opj_version(); }

struct j2k_reader {
    const uint8_t *at;
    size_t n, used;
};

static OPJ_SIZE_T read_some(void *to, OPJ_SIZE_T n, void *user)
{
    struct j2k_reader *r = user;
    const size_t take = (size_t)min_u64(n, r->n - r->used);
    if (!take) return (OPJ_SIZE_T)-1;
    memcpy(to, r->at + r->used, take);
    r->used += take;
    return take;
}

static OPJ_OFF_T skip_some(OPJ_OFF_T n, void *user)
{
    struct j2k_reader *r = user;
    if (n < 0) return -1;
    const size_t take = (size_t)min_u64((uint64_t)n, r->n - r->used);
    r->used += take;
    return (OPJ_OFF_T)take;
}

static OPJ_BOOL seek_to(OPJ_OFF_T at, void *user)
{
    struct j2k_reader *r = user;
    if (at < 0 || (uint64_t)at > r->n) return OPJ_FALSE;
    r->used = (size_t)at;
    return OPJ_TRUE;
}

static bool fits(const opj_image_t *i, uint32_t w, uint32_t h, uint32_t channels, int bytes)
{
    if (i->numcomps < channels) return false;
    for (uint32_t c = 0; c < channels; c++)
        if (i->comps[c].w != w || i->comps[c].h != h || i->comps[c].dx != 1 || i->comps[c].dy != 1 ||
            i->comps[c].prec > 8 * (uint32_t)bytes)
            return false;
    return true;
}

static void copy(const opj_image_t *i, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to)
{
    for (uint32_t c = 0; c < channels; c++)
        for (size_t k = 0; k < (size_t)w * h; k++) {
            if (bytes == 1) ((uint8_t *)to)[k * channels + c] = (uint8_t)i->comps[c].data[k];
            else ((uint16_t *)to)[k * channels + c] = (uint16_t)i->comps[c].data[k];
        }
}

/* Decodes an image. Its header is checked before the pixels are decoded, so that memory is bounded
 * by the size that DICOM's header says. */
static bool decode(opj_codec_t *codec, opj_stream_t *stream, opj_image_t **image, uint32_t w, uint32_t h,
                   uint32_t channels, int bytes)
{
    opj_dparameters_t p;
    opj_set_default_decoder_parameters(&p);
    if (!opj_setup_decoder(codec, &p) || !opj_read_header(stream, codec, image)) return false;
    const opj_image_t *i = *image;
    if (i->x1 - i->x0 != w || i->y1 - i->y0 != h || i->numcomps < channels || i->numcomps > 4) return false;
    return opj_decode(codec, stream, *image) && opj_end_decompress(codec, stream) &&
           fits(*image, w, h, channels, bytes);
}

int dicom_j2k(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to,
              struct error *e)
{
    size_t inner = n;
    const uint8_t *stream_at = j2k_codestream(at, &inner);
    const uint64_t room = j2k_room(w, h, channels, n), need = j2k_memory(stream_at, inner);
    if (need == UINT64_MAX) return error_set(e, PL_USAGE, "the markers of its JPEG 2000 are damaged");
    if (need > room)
        return error_set(e, PL_USAGE,
                         "its JPEG 2000 has such small tiles or code blocks that decoding takes %llu MiB; expected at "
                         "most %llu: decompress it, such as with GDCM: gdcmconv --raw IN.dcm OUT.dcm",
                         (unsigned long long)(need >> 20) + 1, (unsigned long long)(room >> 20));
    struct j2k_reader r = {.at = at, .n = n};
    opj_image_t *image = NULL;
    const bool boxed = n >= 12 && !memcmp(at, "\0\0\0\x0cjP  ", 8);
    opj_codec_t *codec = opj_create_decompress(boxed ? OPJ_CODEC_JP2 : OPJ_CODEC_J2K);
    opj_stream_t *stream = opj_stream_create(64 << 10, OPJ_TRUE);
    opj_stream_set_user_data(stream, &r, NULL);
    opj_stream_set_user_data_length(stream, n);
    opj_stream_set_read_function(stream, read_some);
    opj_stream_set_skip_function(stream, skip_some);
    opj_stream_set_seek_function(stream, seek_to);
    const bool good = decode(codec, stream, &image, w, h, channels, bytes);
    if (good) copy(image, w, h, channels, bytes, to);
    if (image) opj_image_destroy(image);
    opj_stream_destroy(stream);
    opj_destroy_codec(codec);
    return good ? PL_OK : error_set(e, PL_USAGE, "its JPEG 2000 is damaged, or not of the size that its header says");
}
