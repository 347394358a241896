/*
 * tracker.h: the masks of objects on all frames of a video, from prompts on some of them, by SAM 2.
 *
 *     prompted frames ─ program "prompted" ─ masks, pointers, memories ─┐ kept
 *                                                                       ▼
 *     frame ─ program "tracked" ◄─ bank: memories and pointers of prompted and of recent frames
 *                 │                   ▲
 *                 └─ masks, pointer ──┴─ memory
 *
 * From the first prompted frame on the objects are tracked forwards to the end, then backwards to
 * the beginning. Both programs take one frame, have fixed addresses and are planned, one after the
 * other: a video of any length runs in the memory of the larger one. The bank is beside it, as
 * large for a long video as for a short one: memories in bfloat16, as in the reference, and for
 * each prompt one more.
 */
#pragma once

#include "data/images/video.h"
#include "infer/many.h"

struct tracker_prompt {
    uint32_t frame, object;       /* from 0 */
    const struct image_prompt *at; /* points, a box, or both; NULL: */
    const uint8_t *mask;          /* [h][w], nonzero on the object */
};

/* A video whose frames can be read in any order of calls. */
struct tracker_video {
    uint32_t frames, width, height;
    /* Reads the frames with these ascending numbers, and hands over each: `take` gets its index in
     * the list. */
    int (*read)(const void *of, const uint32_t *chosen, uint32_t n, video_take *take, void *user, struct error *e);
    const void *of;
};

/* The masks of a frame. */
struct tracker_masks {
    uint32_t frame, objects;
    int64_t side;
    const float *logits;  /* [objects][side][side] */
    const float *shown;   /* [objects]: the logit that the object is there */
};
/* Receives the masks of a frame, with its pixels, in the order of tracking. The first prompted
 * frame may come twice; the later masks count. */
typedef int tracker_take(void *user, const struct tracker_masks *m, const struct image *frame, struct error *e);

struct tracker_options {
    const struct config *config;
    int64_t side;                /* of the square; 0: the model's own */
    uint32_t objects;
    const struct tracker_prompt *prompts; /* one of each object at least, and at most one on each frame */
    uint32_t n;
};
struct tracker_result {
    uint64_t prompted_bytes, tracked_bytes; /* planned memory of both programs */
    uint64_t bank_bytes;                    /* of memories and pointers that are kept */
};

/* Checks that the configured model takes videos. */
int tracker_check(const struct config *c, int64_t side, struct error *e);
/* Finds and gives the masks of all frames. */
int tracker_run(const struct tracker_options *o, const struct tracker_video *v, tracker_take *take, void *user,
                struct tracker_result *out, struct error *e);

/* Gives each pixel of an image of w x h the number, from 1, of the object of the highest logit
 * above 0; 0: of none. `scratch` has room for 2 * w * h floats. */
void tracker_labels(const struct tracker_masks *m, uint32_t w, uint32_t h, float *scratch, uint16_t *labels);
