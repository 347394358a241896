/*
 * video_text.h: a video in SmolVLM's text: how many frames it has and how long it is, then each
 * frame with its time.
 *
 *     You are provided the following series of two frames from a 0:00:07 [H:MM:SS] video.
 *
 *     Frame from 00:00:<before><image><after>
 *     Frame from 00:03:<before><image><after>
 */
#ifndef VIDEO_TEXT_H
#define VIDEO_TEXT_H

#include "base/base.h"

struct video_words {
    const uint32_t *seconds;             /* [frames] */
    uint32_t frames, duration;
    const char *image, *before, *after;  /* what stands for a frame */
};
void video_text(const struct video_words *v, struct text *out);

/* A number in English words, as num2words writes it: "one thousand, two hundred and five". */
void number_words(uint32_t n, struct text *out);

#endif
