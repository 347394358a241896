/*
 * calibrate.h: measures this machine: peak rates, and how close each op comes to them.
 */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "models/model.h"
#include "cost/calibration.h"

/* Fills `p` and `c`, which `p` points to. threads 0: all. Takes about a minute and 2 GiB. */
int calibrate(struct profile *p, struct calibration *c, int threads, struct error *e);

/* A small convolutional network of `image` pixels and `channels` channels that uses the ops on
 * feature maps and every activation function (calibrate_maps.c). */
struct maps_config {
    int64_t image, channels;
};
extern const struct family calibrate_maps_family;

#endif
