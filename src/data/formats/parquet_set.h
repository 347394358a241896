/*
 * parquet_set.h: whether a Parquet table is one of images and masks (parquet_set.c).
 */
#ifndef PARQUET_SET_H
#define PARQUET_SET_H

#include "base/base.h"

/* Whether it has columns of images with usual names for images and for masks. */
bool parquet_set_usual(const char *path);

#endif
