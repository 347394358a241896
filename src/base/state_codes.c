/*
 * state_codes.c: see state_codes.h. code_magnitude relies on at most one border per bucket, which
 * is checked when a map is built.
 */
#include "base/state_codes.h"

#include <math.h>
#include <pthread.h>

#include "base/base.h"

static struct codes with_sign, without_sign;

/* Fills the magnitudes in ascending order, including 0 and 1; returns their number. */
static int list_magnitudes(float *to, bool sign)
{
    int n = 0;
    to[n++] = 0;
    for (int i = 0; i < 7; i++) {
        const int parts = 1 << (i + !sign);
        const double width = 0.9 / parts, decade = pow(10, i - 6);
        for (int k = 0; k < parts; k++) to[n++] = (float)(decade * (0.1 + width * (k + 0.5)));
    }
    to[n++] = 1;
    return n;
}

static float bucket_low(int at)
{
    union { uint32_t u; float f; } v = {(uint32_t)(at + CODE_LOW) << 16};
    return v.f;
}

static int borders_below(const struct codes *c, float x)
{
    int k = 0;
    while (k < c->last && c->border[k] < x) k++;
    return k;
}

static void make(struct codes *c, bool sign)
{
    float magnitude[256];
    const int n = list_magnitudes(magnitude, sign);
    c->last = n - 1;
    c->zero = sign ? n - 2 : 0;
    for (int k = 0; k < n; k++) {
        c->value[c->zero + k] = magnitude[k];
        if (k < c->zero + 1) c->value[c->zero - k] = k ? -magnitude[k] : 0;
    }
    for (int k = 0; k < 256; k++) c->border[k] = k < c->last ? (magnitude[k] + magnitude[k + 1]) / 2 : INFINITY;
    for (int at = 0; at < CODE_BUCKETS; at++) {
        c->bucket[at] = (uint8_t)borders_below(c, at ? bucket_low(at) : 0);
        CHECK(borders_below(c, bucket_low(at + 1)) <= c->bucket[at] + 1, "two borders in bucket %d", at);
    }
    CHECK(c->zero + c->last == 255, "a map of %d codes", c->zero + c->last + 1);
}

static void make_both(void)
{
    make(&with_sign, true);
    make(&without_sign, false);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct codes *codes_signed(void)
{
    pthread_once(&once, make_both);
    return &with_sign;
}

const struct codes *codes_unsigned(void)
{
    pthread_once(&once, make_both);
    return &without_sign;
}
