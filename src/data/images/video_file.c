/*
 * video_file.c: FFmpeg's libraries behind video.h.
 *
 * A file is gone through twice. The first time its packets are listed, without decoding: each holds
 * a frame, and the times of all frames give the choice. The second time packets are decoded. A
 * decoded frame is known by its timestamp or, in a file where some packets have none, by its
 * number. Up to the last key frame that is no later than the next wanted frame, packets are passed
 * over.
 *
 *     packets     I  P  P  P  I  P  P  P  I  P  P  P
 *     wanted         x                          x
 *     decoded     x  x                    x  x  x
 *
 * FFmpeg reads bytes only through read_bytes and may open nothing by itself. It decodes in one
 * thread.
 */
#include "data/images/video.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>

#include "io/file.h"

/* --- the libraries ---------------------------------------------------------------------------- */

#define NAME_OF(library, major) NAME_OF_(library, major)
#define NAME_OF_(library, major) "lib" #library ".so." #major

enum library { AVUTIL, AVCODEC, AVFORMAT, SWSCALE };
static const char *const library_names[] = {
    [AVUTIL] = NAME_OF(avutil, LIBAVUTIL_VERSION_MAJOR), [AVCODEC] = NAME_OF(avcodec, LIBAVCODEC_VERSION_MAJOR),
    [AVFORMAT] = NAME_OF(avformat, LIBAVFORMAT_VERSION_MAJOR), [SWSCALE] = NAME_OF(swscale, LIBSWSCALE_VERSION_MAJOR)};

#define FUNCTIONS(F)                                                                                                 \
    F(AVUTIL, av_dict_free) F(AVUTIL, av_dict_set) F(AVUTIL, av_frame_alloc) F(AVUTIL, av_frame_free)                \
    F(AVUTIL, av_frame_move_ref) F(AVUTIL, av_frame_unref) F(AVUTIL, av_freep) F(AVUTIL, av_log_set_level)           \
    F(AVUTIL, av_malloc) F(AVUTIL, av_max_alloc) F(AVUTIL, av_strerror) F(AVUTIL, av_version_info)                   \
    F(AVCODEC, av_packet_alloc) F(AVCODEC, av_packet_free) F(AVCODEC, av_packet_unref)                               \
    F(AVCODEC, avcodec_alloc_context3) F(AVCODEC, avcodec_find_decoder) F(AVCODEC, avcodec_flush_buffers)            \
    F(AVCODEC, avcodec_free_context) F(AVCODEC, avcodec_get_name) F(AVCODEC, avcodec_open2)                          \
    F(AVCODEC, avcodec_parameters_to_context) F(AVCODEC, avcodec_receive_frame) F(AVCODEC, avcodec_send_packet)      \
    F(AVFORMAT, av_find_best_stream) F(AVFORMAT, av_read_frame) F(AVFORMAT, avformat_alloc_context)                  \
    F(AVFORMAT, avformat_close_input) F(AVFORMAT, avformat_find_stream_info) F(AVFORMAT, avformat_free_context)      \
    F(AVFORMAT, avformat_open_input) F(AVFORMAT, avio_alloc_context) F(AVFORMAT, avio_context_free)                  \
    F(SWSCALE, sws_freeContext) F(SWSCALE, sws_getCachedContext) F(SWSCALE, sws_getCoefficients)                     \
    F(SWSCALE, sws_scale) F(SWSCALE, sws_setColorspaceDetails)

#define DECLARE(library, function) __typeof__(function) *function;
static struct {
    FUNCTIONS(DECLARE)
    struct error e; /* why they are not there */
} ff;

static bool find(void *const libraries[], enum library l, const char *name, void *to)
{
    void *found = dlsym(libraries[l], name);
    memcpy(to, &found, sizeof found);
    return found || (error_set(&ff.e, PL_FAIL,
                               "FFmpeg's %s has no function %s: install the FFmpeg that this program was built with",
                               library_names[l], name), false);
}

static void load(void)
{
    enum { MOST = 256 << 20 }; /* bytes of one block: a damaged file must not ask for gigabytes */
    void *l[COUNT(library_names)];
    for (size_t i = 0; i < COUNT(library_names); i++)
        if (!(l[i] = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL))) {
            error_set(&ff.e, PL_FAIL,
                      "FFmpeg's %s, which reads video files, is not found: install FFmpeg's libraries (make deps), or "
                      "give a folder of the frames", library_names[i]);
            return;
        }
#define FIND(library, function) && find(l, library, #function, &ff.function)
    if (true FUNCTIONS(FIND)) ff.av_log_set_level(AV_LOG_QUIET), ff.av_max_alloc(MOST);
}

static bool loaded(struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    *e = ff.e;
    return !ff.e.code;
}

const char *video_file_version(struct error *e) { return loaded(e) ? ff.av_version_info() : NULL; }

/* Reports FFmpeg's reason, with ours before it. */
static int failed(int code, const char *what, struct error *e)
{
    char why[128] = "it gives no reason";
    ff.av_strerror(code, why, sizeof why);
    return error_set(e, PL_USAGE, "%s: %s", what, why);
}

/* --- an open file ----------------------------------------------------------------------------- */

struct video_file {
    int fd;
    bool opened;       /* the descriptor is closed with it */
    uint64_t first;    /* of the file's bytes in what the descriptor reads: those of a tar begin somewhere in it */
    uint64_t at, size; /* of the file's bytes */
    AVIOContext *bytes;
    AVFormatContext *format;
    AVStream *stream;
    AVPacket *packet;
};

static int read_bytes(void *user, uint8_t *to, int n)
{
    struct video_file *v = user;
    const size_t most = v->at < v->size ? (size_t)min_u64((uint64_t)n, v->size - v->at) : 0;
    ssize_t got = most ? pread(v->fd, to, most, (off_t)(v->first + v->at)) : 0;
    if (got <= 0) return got ? AVERROR(EIO) : AVERROR_EOF;
    v->at += (uint64_t)got;
    return (int)got;
}

static int64_t seek_bytes(void *user, int64_t offset, int whence)
{
    struct video_file *v = user;
    if (whence & AVSEEK_SIZE) return (int64_t)v->size;
    whence &= ~AVSEEK_FORCE;
    const int64_t from = whence == SEEK_CUR ? (int64_t)v->at : whence == SEEK_END ? (int64_t)v->size : 0;
    if (offset < -from || offset > INT64_MAX - from) return AVERROR(EINVAL);
    return (int64_t)(v->at = (uint64_t)(from + offset));
}

static void close_file(struct video_file *v)
{
    if (v->packet) ff.av_packet_free(&v->packet);
    if (v->format) ff.avformat_close_input(&v->format);
    if (v->bytes) ff.av_freep(&v->bytes->buffer), ff.avio_context_free(&v->bytes);
    if (v->opened) close(v->fd);
}

/* Finds the video in an open file. */
static int open_stream(struct video_file *v, struct error *e)
{
    AVDictionary *options = NULL;
    ff.av_dict_set(&options, "protocol_whitelist", "none", 0);
    int code = ff.avformat_open_input(&v->format, "", NULL, &options); /* on failure it frees v->format */
    ff.av_dict_free(&options);
    if (code >= 0) code = ff.avformat_find_stream_info(v->format, NULL);
    if (code < 0) return failed(code, "FFmpeg cannot read it as a video", e);
    const int stream = ff.av_find_best_stream(v->format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    if (stream < 0) return error_set(e, PL_USAGE, "a video without frames: FFmpeg finds no video in the file");
    v->stream = v->format->streams[stream];
    for (unsigned i = 0; i < v->format->nb_streams; i++)
        if ((int)i != stream) v->format->streams[i]->discard = AVDISCARD_ALL;
    return PL_OK;
}

/* Opens the bytes. */
static int open_bytes(struct video_file *v, const struct video_at *at, struct error *e)
{
    *v = (struct video_file){.fd = at->fd, .first = at->offset, .size = at->size};
    if (at->fd >= 0) return PL_OK;
    if ((v->fd = file_open(at->path, &v->size, e)) < 0) return e->code;
    v->opened = true;
    return PL_OK;
}

static int open_file(struct video_file *v, const struct video_at *at, struct error *e)
{
    enum { BUFFER = 1 << 16 };
    if (!loaded(e)) return error_prepend(e, "%s", at->path);
    if (open_bytes(v, at, e)) return e->code;
    uint8_t *buffer = ff.av_malloc(BUFFER);
    v->bytes = buffer ? ff.avio_alloc_context(buffer, BUFFER, 0, v, read_bytes, NULL, seek_bytes) : NULL;
    v->format = ff.avformat_alloc_context();
    v->packet = ff.av_packet_alloc();
    CHECK(v->bytes && v->format && v->packet, "out of memory");
    v->format->pb = v->bytes;
    if (!open_stream(v, e)) return PL_OK;
    close_file(v);
    return error_prepend(e, "%s", at->path);
}

/* Returns the next packet of the video; false at the end, which damage makes early. */
static bool next_packet(struct video_file *v)
{
    ff.av_packet_unref(v->packet);
    while (ff.av_read_frame(v->format, v->packet) >= 0) {
        if (v->packet->stream_index == v->stream->index) return true;
        ff.av_packet_unref(v->packet);
    }
    return false;
}

/* --- the choice ------------------------------------------------------------------------------- */

struct key_frame {
    int64_t time; /* in units of the stream */
    uint32_t packet;
};

/* What a file holds. */
struct listing {
    VEC(int64_t) frames;        /* the times of those that are shown, ascending; their numbers, if not `timed` */
    VEC(struct key_frame) keys; /* in the file's order */
    bool timed;                 /* every packet has a time */
    int64_t end;                /* when the last frame ends, if `timed` */
    double *times;              /* of all frames, in seconds from the first one on */
    uint32_t *chosen, n;        /* numbers in `frames` */
    struct video_facts facts;
};

static void free_listing(struct listing *l)
{
    vec_free(&l->frames);
    vec_free(&l->keys);
    mem_free(l->times);
    mem_free(l->chosen);
}

/* Reports whether a packet gives a frame: it is complete, and is neither cut off by an edit list
 * nor VP8's hidden frame. */
static bool is_shown(const struct video_file *v, const AVPacket *p)
{
    if (p->flags & (AV_PKT_FLAG_CORRUPT | AV_PKT_FLAG_DISCARD) || p->size < 1) return false;
    return v->stream->codecpar->codec_id != AV_CODEC_ID_VP8 || p->data[0] & 0x10;
}

static int compare_times(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void list_packets(struct video_file *v, struct listing *l)
{
    l->timed = true;
    for (uint32_t i = 0; next_packet(v); i++) {
        const AVPacket *p = v->packet;
        l->timed &= p->pts != AV_NOPTS_VALUE;
        if (p->flags & AV_PKT_FLAG_KEY) vec_push(&l->keys, ((struct key_frame){p->pts, i}));
        if (is_shown(v, p)) vec_push(&l->frames, p->pts);
        if (is_shown(v, p) && l->timed)
            l->end = max_i64(l->frames.n > 1 ? l->end : INT64_MIN, p->pts + max_i64(p->duration, 0));
    }
    for (uint32_t i = 0; i < l->frames.n && !l->timed; i++) l->frames.at[i] = i;
    if (l->frames.n) qsort(l->frames.at, l->frames.n, sizeof *l->frames.at, compare_times);
}

/* Returns the seconds of a unit of the frames' times. Without timestamps the file's average rate
 * counts, or 25 frames a second. */
static AVRational unit_of(const struct video_file *v, const struct listing *l)
{
    const AVRational rate = v->stream->avg_frame_rate;
    if (l->timed) return v->stream->time_base;
    return rate.num > 0 && rate.den > 0 ? (AVRational){rate.den, rate.num} : (AVRational){1, 25};
}

/* Returns seconds from the first frame on. */
static double *seconds(const struct video_file *v, const struct listing *l)
{
    const AVRational unit = unit_of(v, l);
    double *out = mem_alloc(l->frames.n * sizeof *out);
    for (uint32_t i = 0; i < l->frames.n; i++)
        out[i] = ((double)l->frames.at[i] - (double)l->frames.at[0]) * unit.num / unit.den;
    return out;
}

static struct video_facts facts_of(const struct video_file *v, const struct listing *l)
{
    const AVCodecParameters *p = v->stream->codecpar;
    const AVRational unit = unit_of(v, l);
    const double units = l->timed ? (double)l->end - (double)l->frames.at[0] : l->frames.n;
    return (struct video_facts){l->frames.n, units > 0 ? l->frames.n / (units * unit.num / unit.den) : 0,
                                (uint32_t)max_i64(p->width, 0), (uint32_t)max_i64(p->height, 0)};
}

static int choose(struct video_file *v, const struct video_options *o, struct listing *l, struct error *e)
{
    list_packets(v, l);
    if (!l->frames.n)
        return error_set(e, PL_USAGE, "a video without frames: the file ends or is damaged before the first one");
    l->times = seconds(v, l);
    l->chosen = mem_alloc(l->frames.n * sizeof *l->chosen);
    l->facts = facts_of(v, l);
    if (o->choose) return o->choose(o->chooser, &l->facts, l->chosen, &l->n, e);
    l->n = video_choose(l->times, l->frames.n, o, l->chosen);
    return PL_OK;
}

static int list_file(const struct video_at *at, const struct video_options *o, struct listing *l, struct error *e)
{
    struct video_file v;
    *l = (struct listing){0};
    if (open_file(&v, at, e)) return e->code;
    int rc = choose(&v, o, l, e);
    close_file(&v);
    return rc ? error_prepend(e, "%s", at->path) : PL_OK;
}

int video_file_scan(const struct video_at *at, const struct video_options *o, uint32_t *frames, struct error *e)
{
    struct listing l;
    int rc = list_file(at, o, &l, e);
    *frames = l.n;
    free_listing(&l);
    return rc;
}

int video_file_list(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_choice *out,
                    struct error *e)
{
    struct listing l;
    int rc = list_file(at, o, &l, e);
    if (!rc) video_choice_fill(&l.facts, l.chosen, l.n, b, out);
    free_listing(&l);
    return rc;
}

int video_file_time(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_times *out,
                    struct error *e)
{
    struct listing l;
    int rc = list_file(at, o, &l, e);
    const uint32_t n = l.frames.n;
    if (!rc) video_times_fill(l.times, n, n > 1 ? l.times[n - 1] * n / (n - 1) : 0, l.chosen, l.n, b, out);
    free_listing(&l);
    return rc;
}

/* --- decoding --------------------------------------------------------------------------------- */

struct video_decoder {
    struct video_file v;
    struct listing *list;
    AVCodecContext *context;
    AVFrame *last, *next;    /* the last good frame, if it has pixels; the one that comes */
    struct SwsContext *rgb;
    const struct video_options *o;
    struct image image;      /* a frame as RGB */
    size_t room;             /* of its pixels on the heap */
    uint32_t key;            /* the key frame from which is decoded */
    uint32_t decoded, given; /* how many frames; how many of the chosen ones */
    uint32_t *replaced;
    video_take *take;
    void *user;
};

static bool has_pixels(const AVFrame *f) { return f->data[0]; }

/* Converts a frame to RGB by the file's own matrix and range of values. */
static int convert(struct video_decoder *d, const AVFrame *f, struct error *e)
{
    const int w = f->width, h = f->height, flags = SWS_BILINEAR | SWS_FULL_CHR_H_INT | SWS_ACCURATE_RND | SWS_BITEXACT;
    const size_t bytes = (size_t)w * (size_t)h * 3;
    if (w < 1 || h < 1 || (uint64_t)w * (uint64_t)h > IMAGE_MAX_PIXELS)
        return error_set(e, PL_USAGE, "a frame has %dx%d pixels; at most %d pixels are allowed", w, h,
                         IMAGE_MAX_PIXELS);
    d->rgb = ff.sws_getCachedContext(d->rgb, w, h, f->format, w, h, AV_PIX_FMT_RGB24, flags, NULL, NULL, NULL);
    if (!d->rgb) return error_set(e, PL_USAGE, "FFmpeg cannot convert the pixels of the video to RGB");
    ff.sws_setColorspaceDetails(d->rgb, ff.sws_getCoefficients(f->colorspace), f->color_range == AVCOL_RANGE_JPEG,
                                ff.sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
    if (d->o->to && bytes > d->o->room)
        return error_set(e, PL_NOFIT, "a frame of %dx%d pixels takes %zu bytes; expected at most %zu", w, h, bytes,
                         d->o->room);
    if (d->o->to) d->image.rgb = d->o->to;
    else if (bytes > d->room) {
        d->image.rgb = mem_resize(d->image.rgb, bytes);
        d->room = bytes;
    }
    d->image.width = (uint32_t)w;
    d->image.height = (uint32_t)h;
    ff.sws_scale(d->rgb, (const uint8_t *const *)f->data, f->linesize, 0, h, (uint8_t *const[]){d->image.rgb},
                 (const int[]){w * 3});
    return PL_OK;
}

static int64_t wanted(const struct video_decoder *d) { return d->list->frames.at[d->list->chosen[d->given]]; }

/* Gives a frame as the next of the chosen ones. */
static int give(struct video_decoder *d, const AVFrame *f, bool good, struct error *e)
{
    *d->replaced += !good;
    if (convert(d, f, e)) return e->code;
    return d->take(d->user, d->given++, &d->image, e);
}

/* Gives what the decoded frame d->next decides: itself where it is wanted, and the last good one,
 * else itself, for wanted frames before it, which did not come. */
static int take_frame(struct video_decoder *d, struct error *e)
{
    const int64_t time = d->list->timed ? d->next->pts : d->decoded;
    int rc = PL_OK;
    d->decoded++;
    if (d->next->flags & AV_FRAME_FLAG_CORRUPT || d->next->decode_error_flags) return PL_OK;
    while (d->given < d->list->n && wanted(d) < time && !rc)
        rc = give(d, has_pixels(d->last) ? d->last : d->next, false, e);
    if (!rc && d->given < d->list->n && wanted(d) == time) rc = give(d, d->next, true, e);
    ff.av_frame_unref(d->last);
    ff.av_frame_move_ref(d->last, d->next);
    return rc;
}

/* Takes the frames that the decoder has ready. */
static int take_frames(struct video_decoder *d, struct error *e)
{
    int rc = PL_OK;
    while (!rc && d->given < d->list->n && ff.avcodec_receive_frame(d->context, d->next) >= 0) {
        rc = take_frame(d, e);
        ff.av_frame_unref(d->next);
    }
    return rc;
}

/* Returns the last key frame that is no later than the next wanted frame: packets before it are
 * passed over. Frames without times are counted, so that none is passed over. */
static uint32_t find_start(struct video_decoder *d)
{
    const struct listing *l = d->list;
    while (l->timed && d->key + 1 < l->keys.n && l->keys.at[d->key + 1].time <= wanted(d)) d->key++;
    return l->timed && l->keys.n && l->keys.at[d->key].time <= wanted(d) ? l->keys.at[d->key].packet : 0;
}

static int decode_packets(struct video_decoder *d, struct error *e)
{
    bool passed = false;
    int rc = PL_OK;
    for (uint32_t i = 0; !rc && d->given < d->list->n && next_packet(&d->v); i++) {
        if (i < find_start(d)) {
            passed = true;
            continue;
        }
        if (passed) ff.avcodec_flush_buffers(d->context);
        passed = false;
        ff.avcodec_send_packet(d->context, d->v.packet); /* a damaged packet gives no frame */
        rc = take_frames(d, e);
    }
    if (rc) return rc;
    ff.avcodec_send_packet(d->context, NULL);
    rc = take_frames(d, e);
    while (!rc && d->given < d->list->n && has_pixels(d->last)) rc = give(d, d->last, false, e);
    if (!rc && d->given < d->list->n) rc = error_set(e, PL_USAGE, "a video without frames: none can be decoded");
    return rc;
}

static int open_decoder(struct video_decoder *d, struct error *e)
{
    const AVCodecParameters *p = d->v.stream->codecpar;
    const AVCodec *codec = ff.avcodec_find_decoder(p->codec_id);
    if (!codec)
        return error_set(e, PL_USAGE, "FFmpeg has no decoder for its codec, %s", ff.avcodec_get_name(p->codec_id));
    d->context = ff.avcodec_alloc_context3(codec);
    d->last = ff.av_frame_alloc();
    d->next = ff.av_frame_alloc();
    CHECK(d->context && d->last && d->next, "out of memory");
    int code = ff.avcodec_parameters_to_context(d->context, p);
    d->context->thread_count = 1;
    d->context->max_pixels = IMAGE_MAX_PIXELS;
    if (code >= 0) code = ff.avcodec_open2(d->context, codec, NULL);
    return code < 0 ? failed(code, "FFmpeg cannot decode it", e) : PL_OK;
}

static void close_decoder(struct video_decoder *d)
{
    if (d->rgb) ff.sws_freeContext(d->rgb);
    if (d->context) ff.avcodec_free_context(&d->context);
    if (d->last) ff.av_frame_free(&d->last);
    if (d->next) ff.av_frame_free(&d->next);
    if (!d->o->to) mem_free(d->image.rgb);
    close_file(&d->v);
}

int video_file_read(const struct video_at *at, const struct video_options *o, video_take *take, void *user,
                    uint32_t *replaced, struct error *e)
{
    struct listing l;
    int rc = list_file(at, o, &l, e);
    struct video_decoder d = {.list = &l, .o = o, .take = take, .user = user, .replaced = replaced};
    if (!rc && !(rc = open_file(&d.v, at, e))) {
        rc = open_decoder(&d, e);
        if (!rc) rc = decode_packets(&d, e);
        if (rc) error_prepend(e, "%s", at->path);
        close_decoder(&d);
    }
    free_listing(&l);
    return rc;
}
