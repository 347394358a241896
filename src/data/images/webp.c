/*
 * webp.c: libwebp behind image.h.
 */
#include "data/images/image.h"

#include <webp/decode.h>

const char *webp_version(void)
{
    static char version[16];
    const int v = WebPGetDecoderVersion();
    snprintf(version, sizeof version, "%d.%d.%d", v >> 16 & 255, v >> 8 & 255, v & 255);
    return version;
}

static int bad(VP8StatusCode status, struct error *e)
{
    static const char *const reasons[] = {[VP8_STATUS_OUT_OF_MEMORY] = "out of memory",
                                          [VP8_STATUS_BITSTREAM_ERROR] = "its data is damaged",
                                          [VP8_STATUS_UNSUPPORTED_FEATURE] =
                                              "it uses a feature that libwebp does not know",
                                          [VP8_STATUS_NOT_ENOUGH_DATA] = "the file ends too early"};
    const char *reason = (size_t)status < COUNT(reasons) ? reasons[status] : NULL;
    return error_set(e, PL_USAGE, "the WebP cannot be read: %s", reason ? reason : "libwebp refuses it");
}

int webp_peek(const void *bytes, size_t n, struct webp_header *h, struct error *e)
{
    WebPBitstreamFeatures f;
    VP8StatusCode status = WebPGetFeatures(bytes, n, &f);
    if (status) return bad(status, e);
    if (f.has_animation)
        return error_set(e, PL_USAGE,
                         "the WebP is animated, and only still images are read: save its first frame as PNG");
    *h = (struct webp_header){.width = (uint32_t)f.width, .height = (uint32_t)f.height, .alpha = f.has_alpha,
                              .lossless = f.format == 2};
    return PL_OK;
}

int webp_decode(const void *bytes, size_t n, bool alpha, uint8_t *to, size_t room, struct error *e)
{
    WebPDecoderConfig c;
    struct webp_header h = {0};
    const uint32_t channels = alpha ? 4 : 3;
    if (webp_peek(bytes, n, &h, e)) return e->code;
    CHECK(WebPInitDecoderConfig(&c), "libwebp has another version than its header");
    CHECK(room >= (size_t)h.width * h.height * channels, "a WebP of %ux%u pixels in %zu bytes", h.width, h.height,
          room);
    c.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA = (WebPRGBABuffer){.rgba = to, .stride = (int)(h.width * channels), .size = room};
    VP8StatusCode status = WebPDecode(bytes, n, &c);
    WebPFreeDecBuffer(&c.output);
    return status ? bad(status, e) : PL_OK;
}
