/*
 * upsample.h: mask logits of a model as a mask at the image's own size.
 *
 *     logits [m][m] ─ bilinear ─ the padded square, of which the image's part is kept ─ bilinear ─
 *     the image
 */
#ifndef UPSAMPLE_H
#define UPSAMPLE_H

#include "base/base.h"

struct mask_view {
    int64_t logits;       /* side of the logits */
    int64_t side;         /* of the padded square */
    int64_t fit_w, fit_h; /* the image's size in the square */
    int64_t w, h;         /* of the image */
};
/* One byte per pixel, 1 where the resized logits are above 0. `fitted` is scratch, [fit_h][fit_w].
 * Returns the stability score: pixels above `offset` over pixels above -offset, 0 if there are
 * none. */
double mask_upsample(const struct mask_view *v, const float *logits, float *fitted, float offset, uint8_t *mask);

#endif
